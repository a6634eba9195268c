"""Measure large model files: save, load, add a class and save, undo: `python benchmarks/model_file.py`.

Each number of classes is measured in a process of its own. Its results stay in build/model-file, so that a run that was ended
goes on. Classes have features of 256 numbers, and eight related classes each; a class is added with `update="novel"`, so that
one row changes. benchmarks/MODEL_FILE.md is the report.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, REPORT = ROOT / "build" / "model-file", Path(__file__).with_name("MODEL_FILE.md")
COUNTS = (1_000, 10_000, 100_000, 1_000_000)
FEATURES, NEIGHBOURS, TURNS = 256, 8, 5


def measure(count: int) -> dict[str, float]:
    """Return seconds and bytes of a model with so many classes."""
    sys.path.insert(0, str(ROOT / "src"))
    import numpy as np

    from protograph import Classifier

    known = made_up(count)
    found: dict[str, float] = {"classes": count}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        answer = act()
        found.setdefault(name, float("inf"))
        found[name] = min(found[name], time.perf_counter() - begun)
        return answer

    with tempfile.TemporaryDirectory(dir=os.environ.get("PROTOGRAPH_SCRATCH")) as folder:
        path = Path(folder) / "classes.pg"
        timed("save", partial(known.save, path))
        found["bytes"] = path.stat().st_size
        del known
        for _ in range(2):
            loaded = timed("load", partial(Classifier.load, path))
        generator = np.random.default_rng(0)
        for turn in range(TURNS):
            before = path.stat().st_size
            loaded.add_class(f"new {turn}", generator.normal(size=(3, FEATURES)), {"class 0": 0.5})
            timed("save one added", partial(loaded.save, path))
            found["growth"] = path.stat().st_size - before
        with Classifier.edit(path) as edited:
            edited.add_class("edited", generator.normal(size=(3, FEATURES)), {"class 0": 0.5})
        timed("undo", partial(Classifier.undo, path))
        timed("load again", partial(Classifier.load, path))
    found["peak memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def made_up(count: int) -> Any:
    """Return a classifier of so many classes, as `fit` would have made it."""
    import torch

    from protograph import Classifier
    from protograph.classifier.gaussian_space import ClassStatistics, GaussianSettings, GaussianSpace
    from protograph.classifier.state import State
    from protograph.nn.whitening import Whitening, WithinSpread
    from protograph.relations import KeptRelation

    generator = torch.Generator().manual_seed(0)
    means = torch.nn.functional.normalize(torch.randn(count, FEATURES, generator=generator), dim=1)
    spread = WithinSpread(torch.randn(64, FEATURES, generator=generator), 10.0, 4 * count)
    fitted = ClassStatistics(means, (5,) * count, torch.zeros(FEATURES), spread)
    rows = torch.arange(count).repeat_interleave(NEIGHBOURS)
    edges = torch.stack([rows, torch.randint(0, count, rows.shape, generator=generator)])
    values = torch.rand(len(rows), generator=generator)
    similarities = torch.sparse_coo_tensor(edges, values, (count, count), check_invariants=False).coalesce()
    names = [f"class {index}" for index in range(count)]
    relations = {"near": KeptRelation("near", similarities, 0.0, (None,) * count)}
    whitening = Whitening.of(1.0, fitted.centre, spread, 10.0)
    space = GaussianSpace(GaussianSettings(), fitted, names, relations, state=(whitening, 1.0, 0.9 * means))
    known = Classifier(update="novel")
    known.encoder_, known.n_features_in_ = None, FEATURES
    return known._begin(State.of(space, names, "<U1", {}, None))


def report_lines(found: list[dict[str, float]]) -> list[str]:
    """Return the report as lines of Markdown."""
    lines = [
        "# Large model files",
        "",
        f"`python benchmarks/model_file.py` wrote this: {FEATURES} features, {NEIGHBOURS} related classes each, "
        f"{os.cpu_count()} cores. Seconds are the least of several turns, of `save` those of the first; loading and saving "
        "find the file in memory. Growth is by one class of three examples.",
        "",
        "| classes | file | save | load | save one added | growth | undo | peak memory |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        times = [f"{row[name]:.3f} s" for name in ("save", "load", "save one added", "undo")]
        sizes = [f"{row['bytes'] / 1e6:,.1f} MB", f"{row['growth']:,.0f} B", f"{row['peak memory'] / 1e6:,.0f} MB"]
        cells = [f"{row['classes']:,.0f}", sizes[0], *times[:3], sizes[1], times[3], sizes[2]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(counts: list[int]) -> None:
    """Measure what has not been measured, and write the report."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for count in counts:
        path = RESULTS / f"{count}.json"
        if not path.exists():
            command = [sys.executable, __file__, "--one", str(count)]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            path.write_text(ended.stdout.splitlines()[-1] + "\n", encoding="utf-8")
        print(path.read_text(encoding="utf-8").strip(), flush=True)
    found = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    lines = report_lines(sorted(found, key=lambda row: row["classes"]))
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"wrote {REPORT}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="*", default=list(COUNTS), help="The numbers of classes.")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
    else:
        main(arguments.count)
