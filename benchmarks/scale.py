"""Classifiers of a thousand to a million classes on this machine: how long everything takes, and how it grows.

    python benchmarks/scale.py                                 # what is missing of all sizes; writes benchmarks/SCALE.md
    python benchmarks/scale.py --classes 1000 10000 --again    # some sizes, measured anew

Classes are clustered: 50 share a centre, from which each lies 0.7 away in every feature. Images lie 0.3 around their class,
in 256 features; each class is fitted on two, the first 400 on six. 1,000 images around random classes are asked about. Two
models are measured: the default one, and a variant whose relations are the cosines of prototypes, 8 neighbours for each class.
Each model of each size runs in a process of its own; its row is kept in benchmarks/SCALE.csv as soon as it is measured.
"""

import argparse
import csv
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protograph import Classifier
from protograph._internal.progress import Advance
from protograph._internal.rows import ROWS_AT_ONCE
from protograph.variants import AUX, Op, Variant
from report import measured, table

HERE = Path(__file__).parent
CLASSES, FEATURES, NEIGHBOURS, STEPS = (1000, 10_000, 100_000, 1_000_000), 256, 8, 50
CLUSTER, APART, AROUND = 50, 0.7, 0.3
IMAGES, MORE_IMAGES, WITH_MORE = 2, 6, 400
ASKED, SHOTS, REPEATS = 1000, 5, 5
MODELS = {
    "default": None,
    "neighbours": Variant("neighbours", (Op("cos", options={"top": NEIGHBOURS}), *AUX), "cosine of the nearest prototypes"),
}
TITLES = {
    "fit_s": "fit, s",
    "search_s": "of this neighbour search, s",
    "add_ms": "add one, ms",
    "add_hundred_ms": "add a hundred, ms",
    "remove_ms": "remove, ms",
    "predict_one_ms": "predict 1, ms",
    "predict_s": f"predict {ASKED:,}, s",
    "product_s": "bare product, s",
    "explain_ms": "explain, ms",
    "save_s": "save, s",
    "load_s": "load, s",
    "file_mb": "file, MB",
    "peak_gb": "peak memory, GB",
    "index_s": "build an index, s",
    "indexed_s": f"predict {ASKED:,} by the index, s",
    "recall": "recall@1 of the index",
}
LIMITS = {"search_s": 1.25}  # of growth exponents; of all other times, 1.1


class Timed:
    """A display that keeps how long each task took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        began = time.perf_counter()
        yield lambda count: None
        self.seconds[title] = self.seconds.get(title, 0.0) + time.perf_counter() - began

    def say(self, line: str) -> None:
        pass


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def images(classes: int) -> tuple[Tensor, np.ndarray[Any, Any], Tensor]:
    """Features [n, D] to fit on, their labels [n], and features [ASKED, D] around random classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(math.ceil(classes / CLUSTER), FEATURES, generator=generator)
    means = centres.repeat_interleave(CLUSTER, 0)[:classes] + APART * torch.randn(classes, FEATURES, generator=generator)
    counts = torch.where(torch.arange(classes) < WITH_MORE, MORE_IMAGES, IMAGES)
    rows = torch.arange(classes).repeat_interleave(counts)
    features = torch.empty(len(rows), FEATURES)
    for part in torch.split(torch.arange(len(rows)), 2**16):
        features[part] = means[rows[part]] + AROUND * torch.randn(len(part), FEATURES, generator=generator)
    asked = means[torch.randint(0, classes, (ASKED,), generator=generator)]
    asked = asked + AROUND * torch.randn(ASKED, FEATURES, generator=generator)
    labels = np.array([f"{row:07d}" for row in range(classes)])[rows.numpy()]
    return features, labels, asked


def fit(known: Classifier, classes: int, progress: Timed) -> tuple[np.ndarray[Any, Any], Tensor, dict[str, float]]:
    """Fit, and return the labels of the classes, the images to ask about, and how long it took."""
    features, labels, asked = images(classes)
    taken = seconds(lambda: known.fit(features, labels, progress=progress))
    return np.unique(labels), asked, {"fit_s": taken}


def in_turns(known: Classifier, asked: Tensor) -> tuple[float, float]:
    """Seconds of the product of images and prototypes, block by block and in the same precision, and of predicting."""
    blocks, queries = torch.split(known.space_.prototypes, ROWS_AT_ONCE), asked.numpy()

    def product() -> None:
        for block in blocks:
            asked @ block.T

    both = [(seconds(product), seconds(lambda: known.predict(queries))) for _ in range(3)]
    products, answers = zip(*both, strict=True)
    return statistics.median(products), statistics.median(answers)


def measure(model: str, classes: int) -> dict[str, float]:
    """The row of one model and size."""
    variant, progress = MODELS[model], Timed()
    known = Classifier(variant=variant, steps=None if variant is None else STEPS)
    labels, asked, row = fit(known, classes, progress)
    if "find neighbours" in progress.seconds:
        row["search_s"] = progress.seconds["find neighbours"]
    queries, one = asked.numpy(), asked[:1].numpy()
    known.predict(one)
    row["predict_one_ms"] = 1000 * statistics.median(seconds(lambda: known.predict(one)) for _ in range(REPEATS))
    row["product_s"], row["predict_s"] = in_turns(known, asked)
    generator = torch.Generator().manual_seed(1)
    new = asked[:, None] + AROUND * torch.randn(ASKED, SHOTS, FEATURES, generator=generator)
    known.add_class("first", new[0])  # what is computed once
    adding = [seconds(lambda number=number: known.add_class(f"new {number}", new[number])) for number in range(1, 1 + REPEATS)]
    row["add_ms"] = 1000 * statistics.median(adding)
    hundred = {f"many {number}": new[number] for number in range(100, 200)}
    row["add_hundred_ms"] = 1000 * seconds(lambda: known.add_classes(hundred))
    names = ["new 1", labels[-1], labels[len(labels) // 2], "new 3", labels[2]]
    row["remove_ms"] = 1000 * statistics.median(seconds(lambda name=name: known.remove_class(name)) for name in names)
    known.explain(one)
    row["explain_ms"] = 1000 * statistics.median(seconds(lambda: known.explain(one)) for _ in range(REPEATS))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "classes.pg"
        row["save_s"] = seconds(lambda: known.save(path))
        row["file_mb"] = path.stat().st_size / 1e6
        row["load_s"] = seconds(lambda: Classifier.load(path))
    row["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    row["index_s"] = seconds(lambda: known.predict(one, index=True))
    row["indexed_s"] = statistics.median(seconds(lambda: known.predict(queries, index=True)) for _ in range(3))
    row["recall"] = known.index_recall(queries)
    return row


def exponent(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """The exponent of growth of a value with the number of classes, by least squares of logarithms."""
    points = [(math.log(float(row["classes"])), math.log(float(row[name]))) for row in rows if row.get(name)]
    if len(points) < 2:
        return None
    left, right = (np.array(values) for values in zip(*points, strict=True))
    return float(np.polyfit(left, right, 1)[0])


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keep(rows: Sequence[dict[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["model", "classes", *TITLES], lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (list(MODELS).index(row["model"]), int(row["classes"]))))


def report(rows: Sequence[dict[str, str]]) -> str:
    """The page on all that was measured."""
    about = " ".join(line.strip() for line in (__doc__ or "").split("\n\n")[2].splitlines())
    parts = [f"# Many classes\n\n{about}"]
    for model in MODELS:
        own = [row for row in rows if row["model"] == model]
        if not own:
            continue
        shown = [
            {"": title, **{f"{int(row['classes']):,}": float(row[name]) if row.get(name) else None for row in own}}
            for name, title in TITLES.items()
        ]
        for line, name in zip(shown, TITLES, strict=True):
            timed = name.endswith(("_s", "_ms"))
            line["growth"] = f"{exponent(own, name):.2f}" if timed and exponent(own, name) is not None else None
        parts.append(f"## {model}\n\n{table(shown)}")
    parts.append("Growth is the exponent that fits best over all sizes.\n\n" + measured())
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=list(CLASSES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--again", action="store_true", help="measure anew what was measured")
    parser.add_argument("--out", type=Path, default=HERE / "SCALE.md", help="where to write the table, and the .csv beside it")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in a process of its own
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.models[0], given.classes[0])))
        return
    path = given.out.with_suffix(".csv")
    for model in given.models:
        for classes in given.classes:
            rows = read(path)
            done = [row for row in rows if (row["model"], int(row["classes"])) == (model, classes)]
            if done and not given.again:
                continue
            command = [sys.executable, __file__, "--one", "--models", model, "--classes", str(classes)]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            row = {"model": model, "classes": classes, **{name: f"{value:.6g}" for name, value in json.loads(answer).items()}}
            keep([*(other for other in rows if other not in done), row], path)
            print(row, flush=True)
    given.out.write_text(report(read(path)), encoding="utf-8")
    print(f"written into {given.out}")


if __name__ == "__main__":
    main()
