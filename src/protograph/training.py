"""One training, top to bottom, resumable.

Every step draws its episodes and augmentations from a generator of its own, seeded by the run's seed and the step's number.
So a checkpoint needs no random state, and a run that was killed ends with the same numbers as one that was not.
"""

import ctypes
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protograph.config import Recipe, RunConfig, find_recipe, typed
from protograph.data import DATASETS, OWN, Augmentation, Dataset, Store
from protograph.episodes import EpisodeSpec, draw, fixed_episodes, seeded
from protograph.errors import InputError
from protograph.evaluation import Measures, evaluate, evaluation_spec, measure
from protograph.files import write_json
from protograph.nn.model import GraphPrototypeNetwork
from protograph.progress import Progress, Silent
from protograph.relations import RelationSpec, canonical, checked, open_relations
from protograph.runs import Checkpoint, Run
from protograph.variants import Variant, build, find_variant

VALIDATION_SEED = 20_180_618
SAVE_EVERY = 60.0  # seconds between checkpoints inside an epoch


def train(
    config: RunConfig,
    dataset: Dataset,
    folder: Path | str,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a configuration into a run folder, or go on where an earlier attempt stopped; the final measures."""
    progress = progress or Silent()
    device = device or best_device()
    recipe = config.recipe
    # Everything that can be wrong is found before the folder is touched.
    model = make_model(config, dataset).to(device)
    model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    spec = training_spec(dataset, recipe, config.shots).to(device)
    validation = fixed_episodes(
        evaluation_spec(dataset, "validation", recipe.ways, config.shots, recipe.test_queries),
        VALIDATION_SEED,
        recipe.validation_episodes,
    )
    evaluation_spec(dataset, "test", recipe.ways, config.shots, recipe.test_queries)
    optimiser = make_optimiser(model, recipe)
    run = Run.claim(Path(folder), config)
    if run.measures is not None:
        return run.measures

    keep_freed_memory()
    state = restore(run, model, optimiser) or Checkpoint(tensors={})
    store = dataset.store.to(device)
    loss_sum = state.tensors.get("progress.loss_sum", torch.zeros((), dtype=torch.float64)).to(device)
    began, saved = time.monotonic() - state.seconds, time.monotonic()
    last_step = recipe.epochs * recipe.steps
    best = state.part("best.")

    with progress.task(f"train {config.variant}", last_step, "steps", done=state.step) as advance:
        for step in range(state.step, state.step if out_of_patience(recipe, state) else last_step):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(recipe, step)
            generator = seeded(config.seed, "train", step, device=device)
            loss_sum += training_step(model, optimiser, store, dataset.augmentation, spec, recipe.episodes, generator)
            advance(1)

            state.step = step + 1
            epoch, ends = state.step // recipe.steps, state.step % recipe.steps == 0
            if ends:
                mean_loss = loss_sum.item() / recipe.steps
                if not math.isfinite(mean_loss):
                    raise InputError(
                        f"training diverged in epoch {epoch} (loss {mean_loss}): lower the rate, now {recipe.rate}"
                    )
                measures = measure(model, store, validation)
                state.history.append(epoch_record(epoch, learning_rate(recipe, step), mean_loss, measures, model))
                progress.say(f"epoch {epoch:3d}  loss {mean_loss:6.3f}  validation H-Mean {measures['h_mean']}")
                loss_sum.zero_()
                if measures["h_mean"].mean > state.best_h_mean:
                    state.best_epoch, state.best_h_mean = epoch, measures["h_mean"].mean
                    best = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if ends or time.monotonic() - saved > SAVE_EVERY:
                state.seconds = time.monotonic() - began
                state.tensors = snapshot(model, optimiser, best, loss_sum)
                run.save(state)
                saved = time.monotonic()
            if ends and out_of_patience(recipe, state):
                progress.say(f"stopped: no better validation H-Mean for {recipe.patience} epochs")
                break
    return conclude(run, model, dataset, state, progress)


def out_of_patience(recipe: Recipe, state: Checkpoint) -> bool:
    """Whether the last `patience` epochs brought no better validation H-Mean."""
    return bool(recipe.patience) and len(state.history) - state.best_epoch >= recipe.patience


def training_step(
    model: GraphPrototypeNetwork,
    optimiser: torch.optim.Optimizer,
    store: Store,
    augmentation: Augmentation,
    spec: EpisodeSpec,
    count: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw `count` episodes, and go one step down the gradient of their joint cross-entropy; the loss."""
    model.train()
    episodes = draw(spec, count, generator)
    # Two passes, so that batch norm sees support and queries apart.
    support, queries = (
        model.embed(store.gather(indices.flatten(), augmentation, generator)).view(*indices.shape, -1)
        for indices in (episodes.support, episodes.queries)
    )
    logits = model(support, episodes.mask, queries, episodes.classes, episodes.seen)
    loss = cross_entropy(logits.flatten(0, 1), episodes.targets.flatten())
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return loss.detach()


def configure(
    dataset: Dataset,
    variant: str,
    shots: int = 1,
    seed: int = 0,
    recipe: str | None = None,
    backbone: str | None = None,
    relations: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
) -> RunConfig:
    """A complete configuration; what is not given takes the dataset's own default. `changes` are made to the recipe."""
    source = DATASETS.get(dataset.name, OWN)
    needed = find_variant(variant).needs_relation
    if relations and not needed:
        raise InputError(f"variant '{variant}' uses no side information: leave out the relation '{relations[0]}'")
    named = relations if relations is not None else list(dataset.relations)
    base = find_recipe(recipe or source.recipe)
    own = {**source.changes.get("*", {}), **source.changes.get(base.name, {})}

    def digest(name: str) -> str:
        return "" if name in dataset.relations else RelationSpec.parse(name, dataset.relations).digest

    return RunConfig(
        dataset=dataset.name,
        variant=variant,
        shots=shots,
        seed=seed,
        backbone=backbone or source.backbone,
        relations=tuple(canonical(name, dataset.relations) for name in named) if needed else (),
        recipe=typed(base, {**own, **(changes or {})}, "recipe"),
        fingerprint=dataset.fingerprint,
        plugins=tuple(plugins),
        relation_digests=tuple(digest(name) for name in named) if needed else (),
    )


def training_spec(dataset: Dataset, recipe: Recipe, shots: int) -> EpisodeSpec:
    """Episodes in which some of the seen classes act as novel."""
    return EpisodeSpec(dataset.train, None, recipe.ways, shots, recipe.novel_queries, recipe.seen_queries, recipe.scheme)


def make_model(config: RunConfig, dataset: Dataset) -> GraphPrototypeNetwork:
    """A fresh model of a configuration for a dataset."""
    variant = find_variant(config.variant)
    similarities = find_similarities(variant, dataset, config.relations)
    shape = dataset.store.picture_shape
    return build(variant, config.backbone, shape, dataset.seen, similarities, config.seed, config.recipe.temperature)


def find_similarities(variant: Variant, dataset: Dataset, names: Sequence[str]) -> dict[str, Tensor]:
    """Similarities [C, C] by class id of each named relation: one of the dataset's own, or what its name specifies."""
    if not variant.needs_relation:
        return {}
    found = open_relations(names, dataset.relations, dataset.titles)
    return {label: checked(relation.similarities(dataset.classes), dataset.classes, label) for label, relation in found.items()}


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD over all parameters; vectors and scalars escape weight decay only where the recipe says so."""
    free = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1 and not recipe.decay_scalars]
    decayed = [p for p in model.parameters() if p.requires_grad and (p.ndim > 1 or recipe.decay_scalars)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=recipe.rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        weight_decay=recipe.weight_decay,
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step (from 0)."""
    rate = recipe.rate
    if recipe.anneal:
        rate *= 0.5 * (1 + math.cos(math.pi * step / (recipe.epochs * recipe.steps)))
    for epoch, lower in recipe.drops:
        if step // recipe.steps >= epoch:
            rate = lower
    return rate * min(1.0, (step + 1) / recipe.warmup) if recipe.warmup else rate


def epoch_record(epoch: int, rate: float, loss: float, measures: Measures, model: GraphPrototypeNetwork) -> dict[str, Any]:
    """One line of epochs.jsonl; learned scalars are in it because they tell whether the relations are used."""
    scalars = {name: round(p.item(), 5) for name, p in model.named_parameters() if p.ndim == 0}
    scales = {
        f"scale {label}": round(scale, 5)
        for layer in model.graph.layers
        for label, scale in zip(layer.labels, layer.scales.tolist(), strict=True)  # type: ignore[arg-type, operator]
    }
    return {"epoch": epoch, "rate": rate, "loss": loss, "validation": as_json(measures), "learned": {**scalars, **scales}}


def as_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Measures as the ledger holds them, in per cent."""
    return {name: {"mean": round(value.mean, 4), "ci95": round(value.ci95, 4)} for name, value in measures.items()}


def snapshot(model: nn.Module, optimiser: torch.optim.SGD, best: dict[str, Tensor], loss_sum: Tensor) -> dict[str, Tensor]:
    """All tensors a resume needs, by name."""
    tensors = {f"last.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimiser.state.items():
        if state.get("momentum_buffer") is not None:
            tensors[f"momentum.{names[id(parameter)]}"] = state["momentum_buffer"]
    return tensors | {"progress.loss_sum": loss_sum}


def restore(run: Run, model: nn.Module, optimiser: torch.optim.SGD) -> Checkpoint | None:
    """Put a run's checkpoint, if there is one, into model and optimiser."""
    checkpoint = run.load()
    if checkpoint is None:
        return None
    load_weights(model, checkpoint.part("last."), run)
    momentum = checkpoint.part("momentum.")
    for name, parameter in model.named_parameters():
        if name in momentum:
            optimiser.state[parameter]["momentum_buffer"] = momentum[name].to(parameter.device)
    return checkpoint


def load_weights(model: nn.Module, weights: dict[str, Tensor], run: Run) -> None:
    """Set a model's weights, which must be exactly its own."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the checkpoint in {run.folder} does not fit its configuration: remove the folder") from error


def conclude(run: Run, model: GraphPrototypeNetwork, dataset: Dataset, state: Checkpoint, progress: Progress) -> dict[str, Any]:
    """Test the best and the last epoch and write the final measures."""
    config, recipe = run.config, run.config.recipe

    def test() -> Measures:
        return evaluate(model, dataset, "test", config.shots, recipe.ways, recipe.test_queries, progress=progress)

    last = test()
    load_weights(model, state.part("best."), run)
    best = last if state.best_epoch == len(state.history) else test()
    result = {
        "dataset": config.dataset,
        "shots": config.shots,
        "variant": config.variant,
        "recipe": recipe.name,
        "seed": config.seed,
        "measures": as_json(best),
        "epoch": state.best_epoch,
        "last_epoch": {"epoch": len(state.history), "measures": as_json(last)},
        "training_seconds": round(state.seconds, 1),
    }
    run.write_history(state)
    write_json(run.folder / "measures.json", result)
    return result


def best_device() -> torch.device:
    """The GPU where there is one, the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory instead of returning it to the system.

    A step allocates and frees the same large tensors again and again; fetching fresh pages for them every time costs up to
    half of the time of a step on a CPU.
    """
    if sys.platform == "linux":
        trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(mmap_max, 0)
            libc.mallopt(trim_threshold, 2**31 - 1)
