"""The training loop: one stage from start, or from its last checkpoint, to the final measures.

Every step draws its episodes and augmentations from a generator of its own, seeded by the run's seed and the step's number.
So a checkpoint needs no random state, and a killed run ends with the same numbers as an undisturbed one.
"""

import copy
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError
from protograph._internal.files import write_json
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress
from protograph.data import Dataset, Pool
from protograph.data.kept_split import keep_split
from protograph.device import PRECISIONS, WARM_UP
from protograph.episodes import Episodes, EpisodeSpec, fixed_episodes, step_seed
from protograph.evaluation.metrics import (
    MEASURES,
    EvaluationSizes,
    Measures,
    best_bias,
    cached,
    choose_bias,
    class_means,
    measure,
    measures_as_json,
    run_episodes,
    summarise,
)
from protograph.nn.model import EpisodeModel
from protograph.training.optimiser import learning_rate_at, make_optimiser, momentum_of, restore_momentum, set_learning_rate
from protograph.training.out_of_fold import OutOfFold
from protograph.training.processes import Processes, share_statistics
from protograph.training.recipes import Recipe
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Checkpoint, Run, lock_run
from protograph.training.setup import load_first_stage, load_teacher, load_weights, plan_training, set_parameters
from protograph.training.start_features import prepare_second_stage
from protograph.training.step import TrainingStep, teacher_logits
from protograph.variants import find_variant

VALIDATION_SEED = 20_180_618
SAVE_EVERY = 60.0  # seconds between checkpoints at most
SAVING = 0.05  # share of the time that checkpoints after an epoch may take
SCALE = "scale "  # precedes an operator's label where its scale is recorded


def train_stage(
    config: RunConfig, dataset: Dataset, folder: Path, device: torch.device, progress: Progress, start: Path | None
) -> dict[str, Any]:
    """Train one stage into a run folder, or continue it, and return its final measures.

    Args:
        config: The configuration.
        dataset: The dataset it was made for.
        folder: The run folder.
        device: The device to train on.
        progress: Where progress is shown.
        start: The finished run of the stage before, if the variant or recipe names one.

    """
    # All mistakes are reported before the folder is touched.
    model, spec, validation_spec = plan_training(config, dataset)
    config = load_first_stage(model, config, start)
    teacher, config = load_teacher(config, dataset)
    model.to(device)
    model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.precision = PRECISIONS[config.precision]
    validation = fixed_episodes(validation_spec, VALIDATION_SEED, config.recipe.validation_episodes)
    if (finished := Run.find(folder, config)) is not None and finished.measures is not None:
        return finished.measures
    processes = Processes.current()
    with lock_run(folder) if processes.leads else nullcontext():
        with processes.first_alone():
            run = Run.claim(folder, config) if processes.leads else Run(folder, config)
        if processes.leads:
            keep_split(dataset, run.folder)
        if processes.agreed(run.measures is not None):  # another process has just finished it
            return finished_measures(run)
        keep_freed_memory()
        stored = replace(dataset, store=dataset.store.to(device))
        with processes.first_alone():
            stored, training_spec = prepare_second_stage(model, stored, spec, config, start, progress)
        share_statistics(model)
        session = Session(run, model, stored, training_spec.to(device), teacher)
        return train_session(session, validation, progress)


def finished_measures(run: Run) -> dict[str, Any]:
    """Return the measures of a finished run."""
    assert run.measures is not None
    return run.measures


def train_session(session: "Session", validation: Episodes, progress: Progress) -> dict[str, Any]:
    """Take the steps that a training lacks, save it now and then, and return its final measures.

    Of several processes, all take the steps, and the first does everything else.
    """
    saver, processes = Saver(session), Processes.current()
    recipe, variant, state = session.recipe, session.variant, session.state
    last_step = recipe.epochs * recipe.steps
    stops = patience_is_exhausted(recipe, state)
    with progress.task(f"train {variant.name}", last_step, "steps", done=state.step) as advance:
        while state.step < last_step and not stops:
            session.take_step()
            advance(1)
            epoch_ends = state.step % recipe.steps == 0
            if epoch_ends:
                mean_loss = session.end_epoch()
                if processes.leads:
                    measures = session.validate(validation)
                    session.record_epoch(mean_loss, measures)
                    scores = ", ".join(f"{MEASURES[name]} {measures[name]}" for name in variant.chosen_by)
                    progress.say(f"epoch {len(state.history):3d}  loss {mean_loss:6.3f}  validation {scores}")
                stops = processes.agreed(patience_is_exhausted(recipe, state))
            if processes.leads and (stops or state.step == last_step or saver.is_due(epoch_ends)):
                saver.save()
            if stops:
                chosen_by = " and ".join(MEASURES[name] for name in variant.chosen_by)
                progress.say(f"stopped: no better validation {chosen_by} for {recipe.patience} epochs")
    with processes.first_alone():
        if not processes.leads:
            return finished_measures(session.run)
        return conclude(session.run, session.averaged, session.dataset, state, session.setup_seconds, progress)


class Session:
    """A training in progress: a model, its optimiser, and how far both are.

    Args:
        run: The claimed run, whose checkpoint is loaded if it has one.
        model: The model, on its device.
        dataset: The dataset, with its store on that device.
        spec: The training episodes or images, on that device.
        teacher: The teacher, if the recipe names one.

    Attributes:
        averaged: The model that is validated and kept: the moving average of the trained one, or the trained one itself.
        state: How far the training is, as a checkpoint keeps it.
        best: Weights of the best epoch so far, by name.
        loss_sum: Sum of the losses of this epoch, on the device.
        setup_seconds: Seconds until the first step of the usual cost had ended.

    """

    def __init__(
        self,
        run: Run,
        model: EpisodeModel,
        dataset: Dataset,
        spec: EpisodeSpec | Pool | OutOfFold,
        teacher: EpisodeModel | None = None,
    ) -> None:
        self.run, self.model, self.dataset = run, model, dataset
        self.recipe, self.variant = run.config.recipe, find_variant(run.config.variant)
        self.averaged = copy.deepcopy(model) if self.recipe.ema else model
        self.optimiser = make_optimiser(model, self.recipe)
        self.state = restore_checkpoint(run, model, self.averaged, self.optimiser) or Checkpoint(tensors={})
        self.best = self.state.part("best.")
        loss_sum = self.state.tensors.get("progress.loss_sum", torch.zeros((), dtype=torch.float64))
        self.loss_sum = loss_sum.to(dataset.store.device)
        self.started, self.setup_seconds = time.monotonic(), 0.0
        self.training_step = TrainingStep(
            model,
            self.optimiser,
            dataset.store,
            replace(dataset.augmentation, **self.recipe.image_changes),
            spec,
            self.recipe.batch_size if self.variant.objective == "classify" else self.recipe.episodes,
            self.variant,
            self.recipe,
            self.averaged if self.recipe.ema else None,
            teacher=None if teacher is None else teacher_logits(teacher, dataset.store.device),
        )
        self.step = self.training_step.repeated(self.loss_sum)

    def take_step(self) -> None:
        """Take the next step, or try the next candidate."""
        if self.variant.objective == "none":
            set_parameters(self.model, self.variant.candidates[self.state.step])
        else:
            set_learning_rate(self.optimiser, learning_rate_at(self.recipe, self.state.step))
            self.training_step.progress.fill_(self.state.step / (self.recipe.epochs * self.recipe.steps))
            self.step(step_seed(self.run.config.seed, self.state.step))
            if self.step.calls == (WARM_UP + 1 if self.step.capture else 1):  # the first step of the usual cost
                self.loss_sum.item()  # waits for it
                self.setup_seconds = time.monotonic() - self.started
        self.state.step += 1

    def end_epoch(self) -> float:
        """Return the mean loss of the epoch, and compute seen prototypes that are means."""
        mean_loss = self.loss_sum.item() / self.recipe.steps
        if not math.isfinite(mean_loss):
            raise InputError(
                f"training diverged in epoch {self.state.step // self.recipe.steps} (loss {mean_loss}): lower the learning "
                f"rate, now {self.recipe.learning_rate}"
            )
        if self.variant.seen_means:
            means = class_means(self.averaged, self.dataset.store, self.dataset.train)
            for model in (self.model, self.averaged):
                set_parameters(model, {"prototypes": means})
        self.loss_sum.zero_()
        return mean_loss

    def validate(self, episodes: Episodes) -> Measures:
        """Return measures on validation episodes, with the bias on novel logits that suits them best if the recipe says so."""
        if not self.recipe.select_balanced:
            return measure(self.averaged, self.dataset.store, episodes)
        tested = cached(self.averaged, self.dataset.store, episodes)
        return summarise(run_episodes(self.averaged, *tested, bias=best_bias(self.averaged, *tested)))

    def record_epoch(self, mean_loss: float, measures: Measures) -> None:
        """Add the epoch to the history, and keep its weights if it is the best."""
        epoch = self.state.step // self.recipe.steps
        score = fmean(measures[name].mean for name in self.variant.chosen_by)
        learning_rate = learning_rate_at(self.recipe, self.state.step - 1)
        self.state.history.append(epoch_record(epoch, learning_rate, mean_loss, measures, self.averaged))
        if score > self.state.best_score:
            self.state.best_epoch, self.state.best_score = epoch, score
            self.best = {name: value.detach().clone() for name, value in self.averaged.state_dict().items()}


class Saver:
    """Saves a session's checkpoints, often enough and within a share of the time."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.saved = session.started
        self.began = session.started - session.state.seconds  # as if one process had done all the training
        self.saving_seconds = 0.0

    def is_due(self, epoch_ends: bool) -> bool:
        """Return whether a checkpoint should be written now."""
        since = time.monotonic() - self.saved
        return since > SAVE_EVERY or (epoch_ends and since * SAVING >= self.saving_seconds)

    def save(self) -> None:
        """Write a checkpoint."""
        session, state = self.session, self.session.state
        session.loss_sum.item()  # waits for the steps, so that only saving is timed below
        state.seconds = time.monotonic() - self.began
        state.tensors = snapshot_tensors(session.model, session.averaged, session.optimiser, session.best, session.loss_sum)
        session.run.save(state)
        self.saved = time.monotonic()
        self.saving_seconds = self.saved - self.began - state.seconds


def patience_is_exhausted(recipe: Recipe, state: Checkpoint) -> bool:
    """Return whether the last `patience` epochs brought no better validation."""
    return bool(recipe.patience) and len(state.history) - state.best_epoch >= recipe.patience


def epoch_record(epoch: int, learning_rate: float, loss: float, measures: Measures, model: EpisodeModel) -> dict[str, Any]:
    """Return a line of epochs.jsonl, with the learned scalars, which show whether relations are used."""
    scalars = {name: round(p.item(), 5) for name, p in model.named_parameters() if p.ndim == 0}
    scales = {f"{SCALE}{label}": round(scale, 5) for label, scale in model.scales().items()}
    return {
        "epoch": epoch,
        "learning_rate": learning_rate,
        "loss": loss,
        "validation": measures_as_json(measures),
        "learned": {**scalars, **scales},
    }


def snapshot_tensors(
    model: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor], loss_sum: Tensor
) -> dict[str, Tensor]:
    """Return all tensors that resuming needs, by name. The weights `last.` are those of the averaged model."""
    tensors = {f"last.{name}": value for name, value in averaged.state_dict().items()}
    if averaged is not model:
        tensors |= {f"trained.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best.items()}
    tensors |= {f"momentum.{name}": value for name, value in momentum_of(model, optimiser).items()}
    return tensors | {"progress.loss_sum": loss_sum}


def restore_checkpoint(run: Run, model: nn.Module, averaged: nn.Module, optimiser: torch.optim.Optimizer) -> Checkpoint | None:
    """Load a run's checkpoint, if it has one, into the trained and the averaged model and the optimiser, and return it."""
    checkpoint = run.load()
    if checkpoint is None:
        return None
    load_weights(averaged, checkpoint.part("last."), run)
    if averaged is not model:
        load_weights(model, checkpoint.part("trained."), run)
    restore_momentum(model, optimiser, checkpoint.part("momentum."))
    return checkpoint


def conclude(
    run: Run, model: EpisodeModel, dataset: Dataset, state: Checkpoint, setup_seconds: float, progress: Progress
) -> dict[str, Any]:
    """Test the best and the last epoch, write the final measures and return them.

    The best epoch is also tested with the bias on novel classes that is best on the validation episodes.

    Args:
        run: The run.
        model: Its model, with the last weights.
        dataset: Its dataset, with images on the model's device.
        state: Its last checkpoint.
        setup_seconds: Training seconds of this process until its first step of the usual cost had ended.
        progress: Where progress is shown.

    """
    config, recipe = run.config, run.config.recipe

    sizes = EvaluationSizes(config.shots, recipe.ways, recipe.test_queries)
    drawn = sizes.draw(dataset, "test")
    tested = cached(model, dataset.store, drawn, progress)
    last = summarise(run_episodes(model, *tested))
    load_weights(model, state.part("best."), run)
    if state.best_epoch != len(state.history):
        tested = cached(model, dataset.store, drawn, progress)
    best = summarise(run_episodes(model, *tested))
    joint = {}
    if model.joint:
        bias = choose_bias(model, dataset, replace(sizes, episodes=recipe.validation_episodes), progress)
        balanced = summarise(run_episodes(model, *tested, bias=bias))
        joint["balanced"] = {"bias": round(bias, 4), "measures": measures_as_json(balanced)}
    result = {
        "dataset": config.dataset,
        "shots": config.shots,
        "variant": config.variant,
        "recipe": recipe.name,
        "seed": config.seed,
        "measures": measures_as_json(best),
        "epoch": state.best_epoch,
        **joint,
        **with_other_statistics(model, dataset, drawn, progress),
        "last_epoch": {"epoch": len(state.history), "measures": measures_as_json(last)},
        "training_seconds": round(state.seconds, 1),
        "setup_seconds": round(setup_seconds, 1),
    }
    run.write_history(state)
    write_json(run.folder / "measures.json", result)
    return result


def with_other_statistics(model: EpisodeModel, dataset: Dataset, episodes: Episodes, progress: Progress) -> dict[str, Any]:
    """Return what batch norm used, and the measures with other statistics by their names; nothing if there are no others."""
    measured = {}
    for statistics in model.other_statistics:
        with model.using(statistics):
            measures = measure(model, dataset.store, episodes, progress)
        measured[statistics] = {"measures": measures_as_json(measures)}
    return {"statistics": model.statistics, "other_statistics": measured} if measured else {}
