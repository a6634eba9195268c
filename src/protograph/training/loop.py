"""One training, top to bottom, resumable.

Every step draws its episodes and augmentations from a generator of its own, seeded by the run's seed and the step's number.
So a checkpoint needs no random state, and a run that was killed ends with the same numbers as one that was not.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.files import write_json
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress, Silent
from protograph.data import DATASETS, IN_MEMORY, Augmentation, Dataset, FeatureStore, ImageStore, Pool, Store
from protograph.data.kept_split import keep_split
from protograph.device import PLAIN, PRECISIONS, TRITON, WARM_UP, RepeatedStep, best_device
from protograph.episodes import Batch, Episodes, EpisodeSpec, draw, draw_batch, fixed_episodes, step_seed
from protograph.evaluation.metrics import MEASURES, Measures, class_means, evaluate, evaluation_spec, measure
from protograph.nn.backbones import Centred
from protograph.nn.model import GraphPrototypeNetwork
from protograph.relations import RelationSpec, canonical_name, check_similarities, open_relations
from protograph.training.config import Recipe, RunConfig, can_be_pretrained, has_use, recipe_for, stage_before, unused
from protograph.training.run import Checkpoint, Run
from protograph.variants import Variant, build, find_variant

VALIDATION_SEED = 20_180_618
SAVE_EVERY = 60.0  # seconds between checkpoints at most
SAVING = 0.05  # share of the time that those after an epoch may take
SCALE = "scale "  # what stands before an operator's label where its scale is recorded

Embed = Callable[..., list[Tensor]]  # groups of image indices [...] -> features [..., D] of each
Head = Callable[..., Tensor]  # support, mask, queries, classes, seen -> joint logits [E, Q, V]


def train(
    config: RunConfig,
    dataset: Dataset,
    folder: Path | str,
    device: torch.device | None = None,
    progress: Progress | None = None,
    start: Path | str | None = None,
) -> dict[str, Any]:
    """Train a configuration into a run folder, or go on where an earlier attempt stopped; the final measures.

    start: the finished run that the variant starts from, where it starts from one
    """
    progress = progress or Silent()
    device = device or best_device()
    recipe, variant = config.recipe, find_variant(config.variant)
    # Everything that can be wrong is found before the folder is touched.
    model, spec, validation_spec = plan(config, dataset)
    config = begin(model, config, None if start is None else Path(start))
    model.to(device)
    model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.precision = PRECISIONS[config.precision]
    spec = spec.to(device)
    validation = fixed_episodes(validation_spec, VALIDATION_SEED, recipe.validation_episodes)
    optimiser = make_optimiser(model, recipe)
    run = Run.claim(Path(folder), config)
    keep_split(dataset, run.folder)
    if run.measures is not None:
        return run.measures

    keep_freed_memory()
    state = restore(run, model, optimiser) or Checkpoint(tensors={})
    store = dataset.store.to(device)
    loss_sum = state.tensors.get("progress.loss_sum", torch.zeros((), dtype=torch.float64)).to(device)
    started = saved = time.monotonic()
    saving = 0.0
    began, setup_seconds = started - state.seconds, 0.0
    last_step = recipe.epochs * recipe.steps
    best = state.part("best.")

    count = recipe.batch_size if variant.objective == "classify" else recipe.episodes
    augmentation = replace(dataset.augmentation, **recipe.image_changes)
    one_step = repeated_step(model, optimiser, store, augmentation, spec, count, variant, loss_sum, recipe.dropout)

    with progress.task(f"train {config.variant}", last_step, "steps", done=state.step) as advance:
        for step in range(state.step, state.step if out_of_patience(recipe, state) else last_step):
            if variant.objective == "none":
                set_parameters(model, variant.candidates[step])
            else:
                set_rate(optimiser, learning_rate(recipe, step))
                one_step(step_seed(config.seed, step))
                if one_step.calls == (WARM_UP + 1 if one_step.capture else 1):  # the first that costs what all others will
                    loss_sum.item()  # waits for it
                    setup_seconds = time.monotonic() - started
            advance(1)

            state.step = step + 1
            epoch, ends = state.step // recipe.steps, state.step % recipe.steps == 0
            if ends:
                mean_loss = loss_sum.item() / recipe.steps
                if not math.isfinite(mean_loss):
                    raise InputError(
                        f"training diverged in epoch {epoch} (loss {mean_loss}): lower the learning rate, now "
                        f"{recipe.learning_rate}"
                    )
                if variant.seen_means:
                    set_parameters(model, {"prototypes": class_means(model, store, dataset.train)})
                measures = measure(model, store, validation)
                state.history.append(epoch_record(epoch, learning_rate(recipe, step), mean_loss, measures, model))
                score, label = measures[variant.chosen_by], MEASURES[variant.chosen_by]
                progress.say(f"epoch {epoch:3d}  loss {mean_loss:6.3f}  validation {label} {score}")
                loss_sum.zero_()
                if score.mean > state.best_score:
                    state.best_epoch, state.best_score = epoch, score.mean
                    best = {name: value.detach().clone() for name, value in model.state_dict().items()}
            stops = ends and out_of_patience(recipe, state)
            since = time.monotonic() - saved
            if stops or state.step == last_step or since > SAVE_EVERY or (ends and since * SAVING >= saving):
                loss_sum.item()  # waits for the steps: what follows is the time of saving alone
                state.seconds = time.monotonic() - began
                state.tensors = snapshot(model, optimiser, best, loss_sum)
                run.save(state)
                saved = time.monotonic()
                saving = saved - began - state.seconds
            if stops:
                progress.say(f"stopped: no better validation {label} for {recipe.patience} epochs")
                break
    return conclude(run, model, replace(dataset, store=store), state, setup_seconds, progress)


def out_of_patience(recipe: Recipe, state: Checkpoint) -> bool:
    """Whether the last `patience` epochs brought no better validation."""
    return bool(recipe.patience) and len(state.history) - state.best_epoch >= recipe.patience


def repeated_step(
    model: GraphPrototypeNetwork,
    optimiser: torch.optim.Optimizer,
    store: Store,
    augmentation: Augmentation,
    spec: EpisodeSpec | Pool,
    count: int,
    variant: Variant,
    loss_sum: Tensor,
    dropout: float = 0.0,
) -> RepeatedStep:
    """`training_step` as training repeats it, from a seed for each, on the store's device; losses are added to `loss_sum`.

    On a GPU the head is compiled and the whole step recorded, where they can be.
    """
    device = store.device
    torch.backends.cudnn.benchmark = device.type == "cuda"  # shapes are fixed: let it find the fastest convolutions
    capture = device.type == "cuda" and can_be_captured(model, store, spec)
    head = torch.compile(model.forward, dynamic=False) if capture and TRITON else model.forward

    def step_from(generator: torch.Generator) -> None:
        drawn_from = store, augmentation, spec, count, generator
        loss_sum.add_(training_step(model, optimiser, *drawn_from, variant, head, dropout))

    return RepeatedStep(step_from, device, capture)


def training_step(
    model: GraphPrototypeNetwork,
    optimiser: torch.optim.Optimizer,
    store: Store,
    augmentation: Augmentation,
    spec: EpisodeSpec | Pool,
    count: int,
    generator: torch.Generator,
    variant: Variant,
    head: Head | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Draw `count` episodes (or single images), and go one step down the gradient of the variant's objective; the loss.

    head: what computes the model's joint logits, if not the model as it is
    dropout: share of the features, of support and queries alike, set to zero where the backbone is trained
    """
    model.train()
    for part, module in model.named_children():
        if part in variant.frozen:
            module.eval()

    def embed(*groups: Tensor) -> list[Tensor]:
        sizes = [indices.numel() for indices in groups]
        images = store.gather(torch.cat([indices.flatten() for indices in groups]), augmentation, generator)
        features = model.embed(images, sizes)
        if dropout and model.backbone.training:
            features = dropped(features, dropout, generator)
        apart = torch.split(features, sizes)
        return [own.view(*indices.shape, -1) for own, indices in zip(apart, groups, strict=True)]

    drawn = draw(spec, count, generator) if isinstance(spec, EpisodeSpec) else draw_batch(spec, count, generator)
    loss = LOSSES[variant.objective](model, drawn, embed, head or model.forward)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return loss.detach()


def dropped(features: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Features [n, D] with a random share of their numbers zero and the others larger, so that their mean is unchanged.

    Drawn from the step's own generator, unlike PyTorch's dropout, so that a resumed run draws the same.
    """
    kept = torch.rand(features.shape, generator=generator, device=features.device) >= share
    return features * kept / (1 - share)


def joint_loss(model: GraphPrototypeNetwork, episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Cross-entropy in the joint label space."""
    return cross_entropy(episode_logits(episodes, embed, head).flatten(0, 1), episodes.targets.flatten())


def few_shot_loss(model: GraphPrototypeNetwork, episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Cross-entropy among the episodes' novel classes, of which all queries are."""
    logits = episode_logits(episodes, embed, head)[..., episodes.seen :]
    return cross_entropy(logits.flatten(0, 1), (episodes.targets - episodes.seen).flatten())


def classification_loss(model: GraphPrototypeNetwork, batch: Batch, embed: Embed, head: Head) -> Tensor:
    """Cross-entropy of single images among all seen classes."""
    return cross_entropy(model.seen_logits(embed(batch.images)[0]), batch.targets)


LOSSES: dict[str, Callable[[GraphPrototypeNetwork, Any, Embed, Head], Tensor]] = {
    "joint": joint_loss,
    "few-shot": few_shot_loss,
    "classify": classification_loss,
}


def episode_logits(episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Joint logits [E, Q, V]. Support and queries pass the backbone together, but batch norm sees them apart."""
    support, queries = embed(episodes.support, episodes.queries)
    return head(support, episodes.mask, queries, episodes.classes, episodes.seen)


def set_parameters(model: GraphPrototypeNetwork, values: Mapping[str, Any]) -> None:
    """Set parameters, by name, to numbers or tensors."""
    with torch.no_grad():
        for name, value in values.items():
            parameter = model.get_parameter(name)
            parameter.copy_(torch.as_tensor(value, dtype=parameter.dtype))


def plan(config: RunConfig, dataset: Dataset) -> tuple[GraphPrototypeNetwork, EpisodeSpec | Pool, EpisodeSpec]:
    """A fresh model, what it is trained on and what it is validated on; whatever cannot be trained is refused."""
    recipe, variant = config.recipe, find_variant(config.variant)
    if variant.chosen_by not in MEASURES:
        raise unknown_name("measure", variant.chosen_by, MEASURES)
    if variant.objective == "none" and recipe.epochs * recipe.steps != len(variant.candidates):
        raise InputError(f"variant '{variant.name}' has {len(variant.candidates)} candidates: give it as many epochs of 1 step")
    if isinstance(dataset.store, FeatureStore) and (changed := recipe.image_changes):
        raise InputError(
            f"recipe '{recipe.name}' changes images ({', '.join(changed)}), and dataset '{dataset.name}' has features in "
            "their place: leave that out, or choose another recipe"
        )
    model = make_model(config, dataset)
    spec = training_spec(dataset, recipe, config.shots, variant.objective)
    validation, _ = (
        evaluation_spec(dataset, split, recipe.ways, config.shots, recipe.test_queries) for split in ("validation", "test")
    )
    return model, spec, validation


def begin(model: GraphPrototypeNetwork, config: RunConfig, start: Path | None) -> RunConfig:
    """Put the run that a variant starts from, if it does, into its model; the configuration with that run's fingerprint."""
    own = find_variant(config.variant)
    before = stage_before(own, config.recipe)
    if before is None:
        if start is not None:
            way = " or, to train it further, add --set pretrain=cosine" if can_be_pretrained(own) else ""
            raise InputError(f"variant '{config.variant}' starts from no other run: leave out the start {start}{way}")
        return config
    if start is None:
        raise InputError(
            f"variant '{config.variant}' starts from a trained '{before.name}': train that first and name its run folder"
        )
    run, wanted = Run.open(start), replace(config, variant=before.name)
    for name in ("variant", "dataset", "fingerprint", "backbone"):
        if getattr(run.config, name) != getattr(wanted, name):
            raise InputError(
                f"{start} cannot be the start: its {name} is '{getattr(run.config, name)}', not '{getattr(wanted, name)}'; "
                "name another --start"
            )
    if run.measures is None:
        raise InputError(f"{start} cannot be the start before its training is finished: run its command again")
    weights = run.weights("best")
    given = {name: value for name, value in weights.items() if name.split(".")[0] in ("backbone", "prototypes", "classifier")}
    load_weights(model, {**model.state_dict(), **given}, run)
    return replace(config, start=run.fingerprint)


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
    precision: str = "float32",
) -> RunConfig:
    """A complete configuration; what is not given takes the dataset's own default. `changes` are made to the recipe."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    source, changes = DATASETS.get(dataset.name, IN_MEMORY), changes or {}
    chosen, recipe = find_variant(variant), recipe or source.recipe
    if chosen.objective == "classify" and shots != 1:
        raise InputError(f"variant '{variant}' is trained without examples, once for every K: give the shots to `evaluate`")
    own = recipe_for(chosen, recipe, changes, source.changes)
    for name in changes:
        if not has_use(chosen, own, name):
            raise InputError(f"variant '{variant}' has no use for the recipe's setting '{name}': leave it out")
    needed = chosen.needs_relation
    if relations and not needed:
        raise InputError(f"variant '{variant}' uses no side information: leave out the relation '{relations[0]}'")
    named = relations if relations is not None else dataset.default_relations or ()

    def digest(name: str) -> str:
        return "" if name in dataset.relations else RelationSpec.parse(name, dataset.relations).digest

    return RunConfig(
        dataset=dataset.name,
        variant=variant,
        shots=shots,
        seed=seed,
        backbone=backbone or source.backbone_for(recipe),
        relations=tuple(canonical_name(name, dataset.relations) for name in named) if needed else (),
        recipe=own,
        fingerprint=dataset.fingerprint,
        plugins=tuple(plugins),
        relation_digests=tuple(digest(name) for name in named) if needed else (),
        precision=precision,
    )


def configure_start(config: RunConfig, dataset: Dataset, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """A configuration of the run that one starts from: the same for every K, with the changes it has a use for."""
    before = stage_before(find_variant(config.variant), config.recipe)
    assert before is not None, f"{config.variant} starts from no other run"
    spared = unused(before, config.recipe)
    return configure(
        dataset,
        before.name,
        seed=config.seed,
        recipe=config.recipe.name,
        backbone=config.backbone,
        changes={name: value for name, value in (changes or {}).items() if name not in spared},
        plugins=config.plugins,
        precision=config.precision,
    )


def training_spec(dataset: Dataset, recipe: Recipe, shots: int, objective: str = "joint") -> EpisodeSpec | Pool:
    """Episodes in which some of the seen classes act as novel or, where the objective knows none, the training images."""
    if objective in ("joint", "few-shot"):
        seen_queries = recipe.seen_queries if objective == "joint" else 0
        queries = recipe.novel_queries, seen_queries
        ways = recipe.training_ways or recipe.ways
        return EpisodeSpec(dataset.train, None, ways, shots, *queries, recipe.query_scheme, names=dataset.classes)
    if int(dataset.train.counts.min()) < 1:
        bare = dataset.classes[int(dataset.train.classes[dataset.train.counts.argmin()])]
        raise InputError(f"class '{bare}' has no training image: give it one, or leave it out")
    return dataset.train


def make_model(config: RunConfig, dataset: Dataset) -> GraphPrototypeNetwork:
    """A fresh model of a configuration for a dataset."""
    variant = find_variant(config.variant)
    similarities = find_similarities(variant, dataset, config.relations)
    store = dataset.store
    backbone: str | nn.Module = config.backbone
    if isinstance(store, FeatureStore) and backbone == "identity":  # what all features share would make all classes alike
        backbone = Centred.of([store.features[rows] for rows in dataset.train.by_class()])
    starts = config.recipe.temperature, config.recipe.relation_temperature
    return build(variant, backbone, store.image_shape, dataset.seen, similarities, config.seed, *starts)


def trained_model(run: Run, dataset: Dataset, which: str = "best") -> GraphPrototypeNetwork:
    """A run's model with the `best` or `last` weights, on the CPU; the dataset must be the one it was trained on."""
    if dataset.fingerprint != run.config.fingerprint:
        raise InputError(
            f"{run.folder} was trained on another version of {run.config.dataset} "
            f"({run.config.fingerprint}, here {dataset.fingerprint}): train again"
        )
    model = make_model(run.config, dataset)
    load_weights(model, run.weights(which), run)
    return model


def find_similarities(variant: Variant, dataset: Dataset, names: Sequence[str]) -> dict[str, Tensor]:
    """Similarities [C, C] by class id of each named relation: one of the dataset's own, or what its name specifies."""
    if not variant.needs_relation:
        return {}
    found = open_relations(names, dataset.relations, dataset.titles)
    return {
        label: check_similarities(relation.similarities(dataset.classes), dataset.classes, label)
        for label, relation in found.items()
    }


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD over all parameters, in groups that the recipe decays alike and lets learn at the same share of the rate.

    On a GPU rates are tensors there, so that a recorded step follows them.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay if parameter.ndim > 1 or recipe.decay_scalars else 0.0
            share = recipe.scalar_learning_rate_factor if weighs_operators(name) else 1.0
            groups.setdefault((decay, share), []).append(parameter)
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    return torch.optim.SGD(
        [
            {
                "params": own,
                "weight_decay": decay,
                "share": share,
                "lr": torch.tensor(share * recipe.learning_rate, device=device) if on_gpu else share * recipe.learning_rate,
            }
            for (decay, share), own in groups.items()
        ],
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        fused=on_gpu,
    )


def weighs_operators(name: str) -> bool:
    """Whether the parameter of that name is a scale or a temperature of operators."""
    return name.startswith(("operators.", "graph.")) and name.endswith((".scales", ".temperature"))


def set_rate(optimiser: torch.optim.SGD, rate: float) -> None:
    """Let all parameters learn at this rate, or at their share of it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["share"] * rate)
        else:
            group["lr"] = group["share"] * rate


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate of a step (from 0)."""
    rate = recipe.learning_rate
    if recipe.anneal:
        rate *= 0.5 * (1 + math.cos(math.pi * step / (recipe.epochs * recipe.steps)))
    for epoch, lower in recipe.learning_rate_drops:
        if step // recipe.steps >= epoch:
            rate = lower
    return rate * min(1.0, (step + 1) / recipe.warmup_steps) if recipe.warmup_steps else rate


def epoch_record(epoch: int, rate: float, loss: float, measures: Measures, model: GraphPrototypeNetwork) -> dict[str, Any]:
    """One line of epochs.jsonl; learned scalars are in it because they tell whether the relations are used."""
    scalars = {name: round(p.item(), 5) for name, p in model.named_parameters() if p.ndim == 0}
    scales = {
        f"{SCALE}{label}": round(scale, 5)
        for layer in model.graph.layers
        for label, scale in zip(layer.labels, layer.scales.tolist(), strict=True)  # type: ignore[arg-type, operator]
    }
    return {
        "epoch": epoch,
        "learning_rate": rate,
        "loss": loss,
        "validation": as_json(measures),
        "learned": {**scalars, **scales},
    }


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
            # Laid out as the parameter is, which the fused optimiser insists on: a checkpoint does not keep channels-last.
            optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum[name])
    return checkpoint


def load_weights(model: nn.Module, weights: dict[str, Tensor], run: Run) -> None:
    """Set a model's weights, which must be exactly its own."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the checkpoint in {run.folder} does not fit its configuration: remove the folder") from error


def conclude(
    run: Run, model: GraphPrototypeNetwork, dataset: Dataset, state: Checkpoint, setup_seconds: float, progress: Progress
) -> dict[str, Any]:
    """Test the best and the last epoch and write the final measures.

    setup_seconds: what this start took, of all training seconds, until its first step of the usual cost had run
    """
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
        "setup_seconds": round(setup_seconds, 1),
    }
    run.write_history(state)
    write_json(run.folder / "measures.json", result)
    return result


def can_be_captured(model: GraphPrototypeNetwork, store: Store, spec: EpisodeSpec | Pool) -> bool:
    """Whether a step on a GPU may be recorded: it never has to ask the host, images resident, sizes fixed."""
    capturable = all(component.capturable for component in model.components())
    resident = not isinstance(store, ImageStore) or store.pixels.is_cuda
    return not PLAIN and resident and capturable and not (isinstance(spec, EpisodeSpec) and spec.scarce)
