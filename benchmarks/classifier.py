"""The kept classifier on this machine: how long adding a class takes and, with --root, what it measures on CUB.

    python benchmarks/classifier.py                                          # speed alone
    python benchmarks/classifier.py --root DATA [--encoder conv4] [--steps N] # and the CUB figures
    python benchmarks/classifier.py --root DATA --run RUN                    # of a run's own backbone and prototypes

CUB: fitted on the training images of the seen classes, with the dataset's attributes. The novel test classes are then added
from five images each: one after another, in the opposite order, and, from the same images, all at once by the evaluation
code. All are asked for the held-out images of the seen classes and the other images of the novel ones, among all classes.
Unknown images are those of the novel classes before these are added; the false-alarm rate is chosen as 5 % on held-out
training images.
"""

import argparse
import copy
import statistics
import time
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protograph import Classifier, open_dataset
from protograph.classifier.fitting import open_run
from protograph.cli.display import ShownProgress
from protograph.data import Dataset
from protograph.encoders import open_encoder
from protograph.evaluation.metrics import extract
from protograph.training.run_folder import Run
from protograph.variants import renew_relations
from report import Section

REPEATS, SHOTS, RATE = 20, 5, 0.05


def random_graph(classes: int, neighbours: int | None, generator: torch.Generator) -> Tensor:
    """A sparse graph [V, V] with so many edges from every class."""
    assert neighbours is not None
    row = torch.arange(classes).repeat_interleave(neighbours)
    column = torch.randint(0, classes, (classes * neighbours,), generator=generator)
    return torch.sparse_coo_tensor(
        torch.stack([row, column]), torch.rand(len(row), generator=generator), (classes, classes), check_invariants=True
    ).coalesce()


def adding(classes: int, features: int, neighbours: int | None) -> dict[str, object]:
    """Milliseconds of adding one class to so many, from five ready features, related to 32 others."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    dense = neighbours is None
    similarities = torch.rand(classes, classes, generator=generator) if dense else random_graph(classes, neighbours, generator)
    names = [f"{place:05d}" for place in range(classes)]
    known, times = Classifier(update="novel").fit(centres, names, similarities), []
    for place in range(REPEATS + 1):
        examples = torch.randn(SHOTS, features, generator=generator)
        related = {names[other]: 0.5 for other in torch.randperm(classes, generator=generator)[:32].tolist()}
        began = time.perf_counter()
        known.add_class(f"new {place}", examples, related)
        times.append(1000 * (time.perf_counter() - began))
        known.remove_class(f"new {place}")
    graph = "dense" if dense else f"sparse, {neighbours} neighbours"
    median, slowest = statistics.median(times[1:]), max(times[1:])
    return {"classes": classes, "D": features, "graph": graph, "median ms": median, "slowest ms": slowest}


def asking(classes: int, features: int, images: int) -> dict[str, object]:
    """Milliseconds of predicting images among so many classes, and of the product of two matrices of these sizes, in turns."""
    generator = torch.Generator().manual_seed(0)
    centres, asked = torch.randn(classes, features, generator=generator), torch.randn(images, features, generator=generator)
    known = Classifier().fit(centres, [f"{row:06d}" for row in range(classes)])
    product, predicting = [], []
    for _ in range(REPEATS // 2 + 1):
        began = time.perf_counter()
        asked @ centres.T
        product.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        known.predict(asked)
        predicting.append(1000 * (time.perf_counter() - began))
    bare, ours = statistics.median(product[1:]), statistics.median(predicting[1:])
    return {"images": images, "classes": classes, "D": features, "product ms": bare, "predict ms": ours, "ratio": ours / bare}


def asking_speed() -> Section:
    notes = [f"Medians of {REPEATS // 2} times in turns, {torch.get_num_threads()} threads."]
    return Section("Predicting, beside the bare product of two matrices", "", [asking(100_000, 640, 1000)], notes)


def speed() -> Section:
    rows = [adding(200, 3200, None), adding(10_000, 640, 32)]
    about = "One class is added from 5 ready feature vectors and its similarity to 32 classes; the others stay as they are."
    return Section(
        "Adding a class", about, rows, [f"Median and slowest of {REPEATS} times, {torch.get_num_threads()} threads."]
    )


def features_of(data: Dataset, arguments: argparse.Namespace, progress: ShownProgress) -> Tensor:
    """Features [P, D] of all images of a dataset, kept beside --features where it is given."""
    if arguments.features and arguments.features.exists():
        return torch.from_numpy(np.load(arguments.features)).float()
    everything = torch.arange(len(data.store))
    if arguments.run:
        model, _ = open_run(Run.open(arguments.run), data)
        found = extract(model, data.store, everything, progress)
    else:
        pixels = data.store.pixels  # type: ignore[attr-defined]
        found = open_encoder(arguments.encoder).encode(list(pixels), progress)
    if arguments.features:
        np.save(arguments.features, found.half().numpy())
    return found


def rows_of(pool: Any) -> list[list[int]]:
    """The images of every class of a pool."""
    return [rows.tolist() for rows in pool.by_class()]


def flat(rows: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(rows))


def cub(arguments: argparse.Namespace) -> Section:
    progress = ShownProgress()
    data = open_dataset("cub", arguments.root, progress)
    features = features_of(data, arguments, progress)
    names = np.array(data.classes)
    began = time.perf_counter()
    if arguments.run:
        known = Classifier.from_run(arguments.run, data, progress, unknown=RATE)
    else:
        train = rows_of(data.train)
        labels = np.repeat(names[: data.seen], [len(rows) for rows in train])
        options = {} if arguments.steps is None else {"steps": arguments.steps}
        relations = {name: data.relations[name] for name in data.default_relations}
        known = Classifier(variant="gcgpn-aux", unknown=RATE, **options).fit(features[flat(train)], labels, relations, progress)
    fitted = time.perf_counter() - began

    seen_rows, novel_rows = rows_of(data.seen_test), rows_of(data.novel_test)
    seen_queries, novel_names = features[flat(seen_rows)], names[data.novel_test.classes]
    seen_targets = np.repeat(names[data.seen_test.classes], [len(rows) for rows in seen_rows])
    support, queries = [rows[:SHOTS] for rows in novel_rows], [rows[SHOTS:] for rows in novel_rows]
    novel_queries, novel_targets = features[flat(queries)], np.repeat(novel_names, [len(rows) for rows in queries])
    false_alarms = float(np.mean(known.predict(seen_queries) == known.unknown_label))
    strangers = float(np.mean(known.predict(novel_queries) == known.unknown_label))
    auroc = known.auroc(seen_queries, novel_queries)

    known.threshold_ = None
    together = at_once(known, data, features, support)
    backwards = copy.deepcopy(known)
    began = time.perf_counter()
    for name, rows in zip(novel_names, support, strict=True):
        known.add_class(str(name), features[rows])
    added = time.perf_counter() - began
    for name, rows in zip(novel_names[::-1], support[::-1], strict=True):
        backwards.add_class(str(name), features[rows])

    def shares(logits: Tensor, order: np.ndarray) -> list[float]:
        answers = order[logits.argmax(1).numpy()]
        seen, novel = answers[: len(seen_targets)] == seen_targets, answers[len(seen_targets) :] == novel_targets
        return [100 * float(part.mean()) for part in (np.concatenate([seen, novel]), seen, novel)]

    asked = torch.cat([seen_queries, novel_queries])
    rows = []
    for title, logits, order in (
        ("one after another", known.space_.logits(asked), known.classes_),
        ("in the opposite order", backwards.space_.logits(asked), backwards.classes_),
        ("all at once, by the evaluation code", together(asked), known.classes_),
    ):
        joint, seen, novel = shares(logits, order)
        rows.append({"classes added": title, "joint %": joint, "seen %": seen, "novel %": novel})
    of_what = f"encoder {arguments.encoder}"
    if arguments.run or arguments.features:
        of_what = f"run {arguments.run.name}" if arguments.run else f"features {arguments.features.name}"
    notes = [
        f"{of_what}; {len(data.train)} seen classes fitted in {fitted:.1f} s; {len(novel_names)} added in {added:.2f} s; "
        f"{len(seen_targets)} images of seen classes and {len(novel_targets)} of novel ones asked.",
        f"Unknown, before any is added: AUROC {100 * auroc:.2f} %; false alarms on seen test images {100 * false_alarms:.2f} "
        f"% where {100 * RATE:.0f} % were chosen; {100 * strangers:.2f} % of novel images found unknown.",
    ]
    return Section("CUB: joint accuracy after adding the novel classes from 5 images each", "", rows, notes)


def at_once(known: Classifier, data: Dataset, features: Tensor, support: list[list[int]]) -> Any:
    """What the evaluation code answers when all novel classes come in one episode: features [n, D] -> logits [n, V]."""
    space = known.space_
    model, order = copy.deepcopy(space.model), [data.classes.index(name) for name in space.names]
    ids = torch.tensor([*order, *data.novel_test.classes.tolist()])
    everyone = [data.classes[class_id] for class_id in ids]
    similarities = {label: kept.source.similarities(everyone) for label, kept in space.relations.items()}  # type: ignore[union-attr]
    if similarities:
        renew_relations(model, space.variant, similarities)
    classes = torch.arange(len(ids))[None]
    shown = torch.stack([model.embed(features[rows]) for rows in support])[None]
    mask = torch.ones(shown.shape[:3], dtype=torch.bool)

    def logits(asked: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(shown, mask, model.embed(asked)[None], classes, space.seen)[0]
        return found

    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="where CUB is; without it, speed alone is measured")
    parser.add_argument("--encoder", default="conv4", help="encoder of the images")
    parser.add_argument("--run", type=Path, help="a run trained on CUB instead: its backbone, prototypes and graph block")
    parser.add_argument("--features", type=Path, help="a .npy to keep all features in, or to take them from")
    parser.add_argument("--steps", type=int, help="training steps of the fit")
    arguments = parser.parse_args()
    print(speed().markdown())
    print(asking_speed().markdown())
    if arguments.root:
        print(cub(arguments).markdown())


if __name__ == "__main__":
    main()
