"""The measured numbers in README.md and the documentation, computed from the ledger and from what benchmarks wrote.

A page names a part by `<!-- measured: NAME -->`, and `scripts/pages.py` writes it up to the next `<!-- /measured -->`.
"""

import csv
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from textwrap import fill

from protograph.cli.figures import number_text
from protograph.data import open_dataset
from protograph.evaluation.metrics import PAPER_MEASURES
from protograph.nn.few_shot import FEW_SHOT_METHODS
from protograph.paper.ledger import read_ledger, scores
from protograph.paper.published import FEW_SHOT_VARIANT_OF, UNPUBLISHED, VARIANT_OF, Cell, published
from protograph.paper.statistics import Scores
from protograph.paper.summary import DATASET_TITLES, known_scores
from protograph.paper.tables import ALLOWANCE, PUBLISHED, few_shot_table_rows, shortfalls
from protograph.training.recipes import RECIPES
from protograph.variants import find_variant

ROOT = Path(__file__).parents[1]
WIDTH = 128  # of a line of text
NAMES = ("cub", "mini-imagenet")
FITTED, ADDED, EXAMPLES = "8", "50", ("1", "5", "20")  # of the table of encoders
PART = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- /measured -->)", re.S)
BEST = {  # the cell with the paper's best H-Mean of each dataset and K
    column: max((cell for cell in published() if (cell.dataset, cell.shots) == column and "gcgpn" in cell.variant),
                key=lambda cell: published()[cell]["h_mean"].mean)
    for column in (("mini-imagenet", 1), ("mini-imagenet", 5), ("cub", 1), ("cub", 5))
}  # fmt: skip
ACASTLE = {("mini-imagenet", 1): 66.24, ("mini-imagenet", 5): 78.33}  # H-Mean as its authors publish it with their code


def with_measured(text: str) -> str:
    """Return a page with the parts that it names."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", text)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose first column holds words."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], f"|---|{'---:|' * (len(head) - 1)}", *lines[1:]])


def demo() -> str:
    """Return what relations are worth on the letters, as `protograph demo` measures it."""
    ledger = read_ledger(ROOT / "results" / "letters")
    known, ways = scores(ledger, "demo"), {entry.config.recipe.ways for entry in ledger.values()}
    names = ("novel_novel", "joint_joint", "h_mean")
    titles = {"aux-only": "its one example", "gcgpn-aux": "its example and relations"}
    rows = [
        [f"{title} (`{variant}`)", *(str(known[Cell("letters", 1, variant)][name]) for name in names)]
        for variant, title in titles.items()
    ]
    shown = table(["a new letter is known by", *(PAPER_MEASURES[name] for name in names)], rows)
    seen = open_dataset("letters").seen
    return f"Each test episode adds {ways.pop()} letters, from one example each, to {seen} known ones.\n\n{shown}"


def standing() -> str:
    """Return how H-Mean compares with the paper's and with peers, and in how many cells each recipe reaches the paper."""
    return f"{_best_cells()}\n\n{_reached()}"


def _best_cells() -> str:
    """Return a table of H-Mean at the paper's best cell of each dataset and K."""
    known = known_scores(read_ledger(ROOT / "results"))
    baseline = {column: published()[Cell(*column, "dfslwof-att")]["h_mean"].mean for column in BEST}
    rows = [
        ["DFSLwoF (the paper's baseline), published", "1", *(f"{baseline[column]:.2f}" for column in BEST)],
        ["GcGPN, published", "1", *(f"{published()[cell]['h_mean'].mean:.2f}" for cell in BEST.values())],
    ]
    for recipe, title in (("fast", "GcGPN, our `fast` (like for like)"), ("strong", "GcGPN, our `strong` (our best)")):
        of_recipe: list[Scores] = [known[recipe][cell] for cell in BEST.values()]
        seeds = {len(score["h_mean"].values) for score in of_recipe}
        rows.append([title, "/".join(map(str, sorted(seeds))), *(f"{score['h_mean'].mean:.2f}" for score in of_recipe)])
    rows.append(["ACASTLE (larger network: ResNet-12), published", "", *(f"{ACASTLE.get(column, ''):}" for column in BEST)])
    return table(["H-Mean in per cent", "seeds", *(f"{DATASET_TITLES[name]}, K = {k}" for name, k in BEST)], rows)


def _reached() -> str:
    """Return how far the recipes are from the paper's best cells, and in how many cells each reaches the paper."""
    known = known_scores(read_ledger(ROOT / "results"))
    gaps = {
        recipe: {column: known[recipe][cell]["h_mean"].mean - published()[cell]["h_mean"].mean for column, cell in BEST.items()}
        for recipe in ("fast", "strong")
    }
    reaching = {recipe: sum(cell not in shortfalls(known[recipe]) for cell in published()) for recipe in gaps}
    points = [
        f"`{recipe}` "
        + ", ".join(
            f"{gaps[recipe][name, 1]:+.1f} and {gaps[recipe][name, 5]:+.1f} on {DATASET_TITLES[name]}" for name in NAMES
        )
        for recipe in gaps
    ]
    return fill(
        "K is the number of images of each new class. In each column, the GcGPN rows show the variant with the paper's highest "
        f"H-Mean. In points from the published GcGPN, at K = 1 and 5: {'; '.join(points)}. A result counts if our "
        "means are at least the lower end of the paper's interval; on miniImageNet, where we train on fewer images, "
        f"{ALLOWANCE['mini-imagenet']:g} points less. By this count, `fast` reaches {reaching['fast']} of the "
        f"{len(published())} results in the paper's tables, and `strong` {reaching['strong']}.",
        WIDTH,
    )


def letters_time() -> str:
    """Return how long the paper's cells took on the letters, by the ledger."""
    folders = [f"{k}-shot/{variant}/demo-0.json" for k in (1, 5) for variant in VARIANT_OF.values()]
    files = [json.loads((ROOT / "results" / "letters" / "letters" / name).read_text(encoding="utf-8")) for name in folders]
    (threads,) = {file["environment"]["threads"] for file in files}
    minutes = [file["training_seconds"] / 60 for file in files]
    longest = f"the longest one {max(minutes):.0f} minutes"
    return f"Its {len(files)} cells took {sum(minutes):.0f} minutes with {threads} threads of a CPU, {longest}."


def relations() -> str:
    """Return what other side information brings on CUB over relations computed from prototypes."""
    with (ROOT / "results" / "relations.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] == "cub" and row["compared_with"].startswith("none")]
    cells = known_scores(read_ledger(ROOT / "results"))["fast"]
    gain = cells[Cell("cub", 1, "gcgpn-aux")]["h_mean"].mean - cells[Cell("cub", 1, "gcgpn-cos-aux")]["h_mean"].mean
    shown = [["attributes of birds (the paper's)", f"{gain:+.2f}"]]
    titles = {"words": "word vectors of the names", "tree": "the tree of families"}
    shown += [
        [titles[row["relations"]], row["difference"]]
        for row in rows
        if row["measure"] == "H-Mean" and row["relations"] in titles
    ]
    return table(["relation", "H-Mean, points"], shown)


def encoders() -> str:
    """Return what benchmarks/quality.py measured on birds: ours beside the best simple rule, by encoder and examples."""
    with (ROOT / "benchmarks" / "QUALITY.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["fitted"], row["added"]) == (FITTED, ADDED)]
    ours = {
        "cub-conv4": "`conv4`",
        "cub-lite0-128": "`efficientnet-lite0`, 128 px",
        "cub-lite0-224": "`efficientnet-lite0`, 224 px",
    }
    shown = []
    for pool, title in ours.items():
        cells = [title]
        for shots in EXAMPLES:
            by_rule: dict[str, list[float]] = {}
            for row in rows:
                if (row["pool"], row["shots"]) == (pool, shots):
                    by_rule.setdefault(row["rule"], []).append(float(row["joint"]))
            means = {rule: fmean(values) for rule, values in by_rule.items() if not rule.startswith("ours with")}
            cells.append(f"{means.pop('ours'):.0f} / {max(means.values()):.0f}")
        shown.append(cells)
    head = ["encoder", *(f"{shots} example{'s' * (shots != '1')}" for shots in EXAMPLES)]
    explained = (
        f"Accuracy in per cent among {int(FITTED) + int(ADDED)} kinds of birds, of which {FITTED} were fitted and {ADDED} "
        "added from a few examples each: Protograph / the best of five simple rules on the same features (nearest mean, plain "
        "and whitened; k-NN; logistic regression; linear discriminant). Every class counts alike."
    )
    return f"{fill(explained, WIDTH)}\n\n{table(head, shown)}"


def speed() -> str:
    """Return what benchmarks/speed.py measured of training and evaluation."""
    steps, peer = _rows("steps: conv4-64-128"), _rows("peer")
    best = next(row for row in steps if row[:3] == ["fast", "1", "bfloat16"])
    training = {name: _rows(f"train: {name}") for name in ("mini-imagenet", "cub")}
    seconds = {name: next(row[6] for row in rows if row[0] == "fast") for name, rows in training.items()}
    ratios = {row[0].partition(",")[0]: row[3] for row in peer}
    rows = [
        ["training steps of `fast`", f"{best[5]} images a second, {best[7]} times PyTorch's own layers, compiled"],
        [
            "speed-up over a loop as other few-shot libraries write it",
            f"{ratios['training']} times as fast in training, {ratios['evaluation']} in evaluation",
        ],
        ["600 test episodes", f"{_rows('evaluation')[0][5]} s"],
        *([f"gcgpn-aux on {DATASET_TITLES[name]}, trained and tested", f"{value} s"] for name, value in seconds.items()),
    ]
    return table(["on one H200", ""], rows).replace("---:|", "---|")


def _rows(section: str) -> list[list[str]]:
    """Return the rows of the table in a section of benchmarks/RESULTS.md."""
    text = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    lines = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def scale() -> str:
    """Return what benchmarks/scale.py measured of many classes."""
    if not _scale_rows():
        return NOT_MEASURED
    parts = []
    for model, title in (("default", "The default model"), ("neighbours", "A variant with 8 neighbours for each class")):
        rows = [row for row in _scale_rows() if row["model"] == model]
        shown = [[name, *(_short(float(row[key])) if row[key] else "–" for row in rows)] for key, name in SCALE_SHOWN.items()]
        parts.append(table([title, *(f"{int(row['classes']):,} classes" for row in rows)], shown))
    return "\n\n".join(parts)


def on_paper() -> str:
    """Return what ten million classes and 10,000 requests a second would need, from the largest size that was measured."""
    if not _scale_rows():
        return NOT_MEASURED
    row = max((row for row in _scale_rows() if row["model"] == "default"), key=lambda row: int(row["classes"]))
    times, threads = PAPER_CLASSES / int(row["classes"]), os.cpu_count() or 1
    memory = times * float(row["peak_gb"])
    machines = math.ceil(memory / PAPER_MEMORY)
    each = float(row["indexed_s"]) / 1000
    cores = math.ceil(PAPER_REQUESTS * each * threads * machines)
    exact = float(row["predict_s"]) / 1000 * times
    lines = [
        ["measured", f"{int(row['classes']):,} classes, {threads} cores"],
        [
            "memory, as that of the measured size times as much",
            f"{_short(memory)} GB: {machines} machines of {PAPER_MEMORY} GB",
        ],
        ["files", f"{_short(times * float(row['file_mb']) / 1000)} GB"],
        ["an image, compared with all classes", f"{_short(1000 * exact)} ms by {threads} cores"],
        ["an image, by the index of a shard", f"{_short(1000 * each)} ms by {threads} cores, if shards have the measured size"],
        ["cores for all requests, by the index of every shard", f"{cores:,}"],
        ["cores for all requests, compared with all classes", f"{math.ceil(PAPER_REQUESTS * exact * threads):,}"],
        ["making all indexes anew", f"{_short(times * float(row['index_s']) / 3600)} hours by {threads} cores"],
        ["adding a class to its shard", f"{_short(float(row['add_ms']))} ms"],
    ]
    return table(["", "ten million classes, 10,000 requests a second"], lines).replace("---:|", "---|")


def _short(value: float) -> str:
    """Return a number with as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _scale_rows() -> list[dict[str, str]]:
    path = ROOT / "benchmarks" / "SCALE.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def few_shot_methods() -> str:
    """Return the few-shot methods with what each does, and whether it classifies seen classes too."""
    rows = [
        [f"`{method.name}`", method.summary, "yes" if method.joint else "no", method.published_statistics]
        for method in FEW_SHOT_METHODS
    ]
    return table(["variant", "what it is", "joint label space", "published with batch norm by"], rows)


def few_shot() -> str:
    """Return the published numbers of few-shot methods beside the ledger's, for 1 and 5 shots."""
    ledger = read_ledger(ROOT / "results")
    recipes = [name for name in RECIPES if scores(ledger, name)]
    rows = list(few_shot_table_rows(ledger, recipes))
    variants = {**FEW_SHOT_VARIANT_OF, **UNPUBLISHED}
    lines = []
    for method, variant in variants.items():
        line = [f"{method} (`{variant}`)"]
        for shots in (1, 5):
            of_method = [row for row in rows if row["method"] == method and row["shots"] == shots]
            used = find_variant(variant).method.published_statistics  # type: ignore[union-attr]
            alike = [row for row in of_method if row["recipe"] != PUBLISHED and row["statistics"] in ("", used)]
            other = [row for row in of_method if row["recipe"] != PUBLISHED and row not in alike]
            quoted = [row for row in of_method if row["recipe"] == PUBLISHED]
            line += [", ".join(map(number_text, cell)) for cell in (quoted, alike, other)]
        lines.append(line)
    head = [f"{shots}-shot, {kind}" for shots in (1, 5) for kind in ("published", "measured", "other batch norm")]
    return table(["method", *head], lines)


SCALE_SHOWN = {
    "fit_s": "fit, s",
    "add_ms": "add a class, ms",
    "remove_ms": "remove a class, ms",
    "predict_one_ms": "predict 1 image, ms",
    "predict_s": "predict 1,000 images, s",
    "indexed_s": "the same by the index, s",
    "recall": "share for which the index finds the best class",
    "index_s": "make the index, s",
    "load_s": "load, s",
    "file_mb": "file, MB",
    "peak_gb": "peak memory without the index, GB",
}
NOT_MEASURED = "`python benchmarks/scale.py` has not been run with this version yet."
PAPER_CLASSES, PAPER_REQUESTS, PAPER_MEMORY = 10_000_000, 10_000, 64  # and gigabytes of a machine

PARTS: dict[str, Callable[[], str]] = {
    "demo": demo,
    "letters_time": letters_time,
    "standing": standing,
    "relations": relations,
    "encoders": encoders,
    "speed": speed,
    "few_shot_methods": few_shot_methods,
    "few_shot": few_shot,
    "scale": scale,
    "on_paper": on_paper,
}
