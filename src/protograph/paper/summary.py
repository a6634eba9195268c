"""RESULTS.md and the CSV files of a ledger: which cells reach the paper, the verdicts on its claims, the known gaps."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph.paper.grid import Task, grid_stages
from protograph.paper.ledger import Entry, read_gaps, scores, table_path
from protograph.paper.published import MODEL_OF, PAPER_DATASETS, TITLES, Cell, published
from protograph.paper.statistics import Scores
from protograph.paper.tables import ALLOWANCE, JUDGED, PUBLISHED, KnownScores, Row, csv_tables, measure_gaps, shortfalls
from protograph.paper.trials import recipe_changes
from protograph.paper.verdicts import CONTRADICTED, INCONCLUSIVE, MISSING, SUPPORTED, Finding, check_conclusions
from protograph.report.document import Block, Bullets, Heading, Paragraph, Table, as_markdown, plain_text
from protograph.training.recipes import RECIPES

NARROW = 0.5  # points: about the standard deviation between seeds
MARKER = "<!-- Written by `protograph reproduce`. -->\n\n"  # how every file begins that `write_summary` wrote
EARLIER_MARKER = "# Results\n\nMade from the ledger in "
RECIPE_TEXTS = {
    "paper": "the paper's training",
    "fast": "the paper's model and data augmentation, with a tenth to a fifth of its training, in larger batches",
    "strong": "not like for like: mostly trained longer than by `fast`; training images are also scaled, stretched, "
    "recoloured and partly erased; 128 channels in every block; evaluation averages the features of an image and its "
    "horizontal flip; PN+ trains on episodes of 20 classes; on miniImageNet, GcGPN starts from a trained cosine classifier",
    "best": "not like for like: a residual network, trained as a plain classifier of parts of images and of their rotations; "
    "behind it, whitened features that stay as they are, and what is learned on out-of-fold episodes",
}
BEYOND_PAPER = ("strong", "best")  # recipes with additions that the paper did not have
DATASET_TITLES = {"mini-imagenet": TITLES["mIN"], "cub": TITLES["CUB"]}
FILES = {
    "summary.csv": "all six measures of every cell, with intervals",
    "gaps.csv": "the mean and median distance from the paper",
    "claims.csv": "every verdict and what it rests on",
    "comparisons.csv": "every comparison behind the claims",
    "few_shot.csv": "Novel-Novel beside few-shot methods",
    "relations.csv": "what other side information brings",
    "learned.csv": "learned temperatures and scales",
    "last_epochs.csv": "the last epoch beside the selected one",
    "trials.csv": "other settings, on validation classes",
    "notes/": "the experiment log",
}


def check_summary(results: Path) -> None:
    """Refuse to replace a RESULTS.md of the user.

    Raises:
        InputError: If the file exists and `write_summary` did not write it.

    """
    path = table_path(results)
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith((MARKER, EARLIER_MARKER)):
        raise InputError(f"{path} exists and was not written by `reproduce`: move it, or choose another --results")


def write_summary(results: Path, ledger: Mapping[Task, Entry]) -> Path:
    """Write the tables of a ledger, such as RESULTS.md and results/summary.csv, and return the path of the first.

    Args:
        results: The folder of the ledger.
        ledger: Its entries.

    Raises:
        InputError: If the file exists and was not written by this function.

    """
    check_summary(results)
    findings = check_conclusions(ledger)
    for name, rows in csv_tables(ledger, known_scores(ledger), findings).items():
        if rows:
            write_atomically(results / f"{name}.csv", _as_csv(rows).encode())
    path = table_path(results)
    write_atomically(path, (MARKER + as_markdown(summary_blocks(ledger, findings, results))).encode())
    return path


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    lines = csv.DictWriter(text, rows[0], lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)
    return text.getvalue()


def known_scores(ledger: Mapping[Task, Entry]) -> dict[str, dict[Cell, Scores]]:
    """Return the scores of the cells by every recipe that has one."""
    return {recipe: cells for recipe in RECIPES if (cells := scores(ledger, recipe))}


def summary_blocks(ledger: Mapping[Task, Entry], findings: Sequence[Finding], results: Path) -> list[Block]:
    """Return the contents of RESULTS.md.

    Args:
        ledger: The entries.
        findings: The verdicts on the paper's claims.
        results: The folder of the ledger.

    """
    known = known_scores(ledger)
    reference = [cell for cell in published() if any(cell in cells for cells in known.values())]
    reference.sort(key=lambda cell: (PAPER_DATASETS.index(cell.dataset), cell.shots))
    blocks = [Heading(1, "Results"), *_verdict(known), Heading(2, "The cells"), *_cells(known, reference)]
    if findings:
        blocks += [Heading(2, "The paper's claims"), *_claims(findings)]
    if gaps := read_gaps(results):
        blocks += [
            Heading(2, "Known gaps"),
            Bullets(tuple(f"**{plain_text(title)}** {plain_text(answer)}" for title, answer in gaps)),
        ]
    return [*blocks, Heading(2, "How to reproduce it"), *_again(ledger, bool(reference), results)]


def _verdict(known: KnownScores) -> list[Block]:
    """Say how many of the paper's cells each recipe reaches, and how far it is from the paper in the mean."""
    of_paper = _paper_cells(known)
    if not of_paper:
        return []
    widest = next(iter(of_paper.items()))
    return [Bullets(tuple(_reached(recipe, cells, *widest) for recipe, cells in of_paper.items()))]


def _paper_cells(known: KnownScores) -> dict[str, dict[Cell, Scores]]:
    """Return the scores of the paper's cells by recipe, the recipe with the most cells first."""
    ours = {recipe: {cell: cells[cell] for cell in published() if cell in cells} for recipe, cells in known.items()}
    return dict(sorted(((recipe, cells) for recipe, cells in ours.items() if cells), key=lambda item: -len(item[1])))


def _reached(recipe: str, cells: Mapping[Cell, Scores], widest: str, widest_cells: Mapping[Cell, Scores]) -> str:
    """Say how far a recipe gets and, if it has fewer cells than the widest one, how far that one gets on them."""
    short, shared = shortfalls(cells), {cell: widest_cells[cell] for cell in cells if cell in widest_cells}
    counts, gaps = [], []
    for dataset in PAPER_DATASETS:
        if of_dataset := [cell for cell in cells if cell.dataset == dataset]:
            gap, title = fmean(measure_gaps(cells, dataset, "joint_joint")), DATASET_TITLES[dataset]
            counts.append(f"{sum(cell not in short for cell in of_dataset)} of {len(of_dataset)} on {title}")
            gaps.append(f"{_points(gap)} the paper's on {title}")
            if len(cells) < len(widest_cells) and (others := measure_gaps(shared, dataset, "joint_joint")):
                gaps[-1] += f" (`{widest}` on the same cells: {_points(fmean(others))})"
    beyond = ", which is not like for like" if recipe in BEYOND_PAPER else ""
    return (
        f"**With the `{recipe}` recipe{beyond}, {len(cells) - len(short)} of {len(cells)} cells reach the paper's numbers** "
        f"({_seed_text(cells.values())}): {' and '.join(counts)}. On average, Joint-Joint is {' and '.join(gaps)}."
    )


def _points(gap: float) -> str:
    return f"{abs(gap):.1f} points {'above' if gap >= 0 else 'below'}"


def _cells(known: KnownScores, reference: Sequence[Cell]) -> list[Block]:
    """Show H-Mean and Joint-Joint of every cell, beside the published ones where there are any."""
    if not known:
        return [Paragraph("The ledger has no cell yet.")]
    others = {cell for cells in known.values() for cell in cells if not reference or cell.dataset not in PAPER_DATASETS}
    shown = [*reference, *sorted(others)]
    recipes = {recipe: cells for recipe, cells in known.items() if any(cell in cells for cell in shown)}
    short = {recipe: shortfalls(cells) for recipe, cells in recipes.items()}
    rows = []
    for cell in shown:
        name = ", ".join((MODEL_OF.get(cell.variant, cell.variant), *cell.relations))
        texts = [DATASET_TITLES.get(cell.dataset, cell.dataset), str(cell.shots), name]
        if reference:
            texts.append(_pair({name: measure.mean for name, measure in published().get(cell, {}).items()}))
        for recipe, cells in recipes.items():
            tick = " ✓" if cell in cells and cell in published() and cell not in short[recipe] else ""
            texts.append(_pair({name: score.mean for name, score in cells.get(cell, {}).items()}) + tick)
        rows.append(texts)
    head = ["dataset", "K", "model", *(["published"] if reference else [])]
    head += [f"`{recipe}`, {_seed_text(cells[cell] for cell in shown if cell in cells)}" for recipe, cells in recipes.items()]
    explained = "H-Mean / Joint-Joint in per cent, over 600 test episodes that are the same for every model and seed."
    table = Table.of(head, rows, 3)
    if not reference:
        return [Paragraph(explained), table]
    allowances = "".join(
        f" On {DATASET_TITLES[dataset]}, where the paper had 100 training images more per class, a further {points:g} points "
        "are allowed."
        for dataset, points in ALLOWANCE.items()
    )
    rule = "✓: the cell reaches the paper, that is, both means reach the lower end of the paper's 95 % interval."
    narrow = tuple(_narrow(recipe, cells) for recipe, cells in _paper_cells(known).items())
    return [Paragraph(f"{explained} {rule}{allowances}"), table, Bullets(narrow)]


def _pair(means: Mapping[str, float]) -> str:
    return " / ".join(f"{means[name]:.2f}" for name in JUDGED) if means else ""


def _narrow(recipe: str, cells: Mapping[Cell, Scores]) -> str:
    """Describe a recipe, and count the cells that another seed may turn over and those that need the allowance."""
    harder, easier = (
        len(shortfalls(cells, {dataset: ALLOWANCE.get(dataset, 0.0) + points for dataset in PAPER_DATASETS}))
        for points in (-NARROW, NARROW)
    )
    short, strictly = len(shortfalls(cells)), len(shortfalls(cells, {}))
    return (
        f"`{recipe}`: {RECIPE_TEXTS.get(recipe, 'another training')}. Within {NARROW:g} points of the limit: {harder - short} "
        f"of the {len(cells) - short} cells that reach the paper and {short - easier} of the {short} that do not. Without the "
        f"allowance, {len(cells) - strictly} reach it."
    )


def _seed_text(cells: Iterable[Scores]) -> str:
    counts = {len(next(iter(scores.values())).values) for scores in cells}
    if counts == {1}:
        return "1 seed"
    return f"{min(counts)} to {max(counts)} seeds" if len(counts) > 1 else f"{max(counts)} seeds"


def _claims(findings: Sequence[Finding]) -> list[Block]:
    """Show one word for each claim by the paper's own numbers and by each recipe."""
    recipes = list(dict.fromkeys(finding.recipe for finding in findings))
    by_claim: dict[str, dict[str, str]] = {}
    for finding in findings:
        verdicts = by_claim.setdefault(finding.conclusion.claim, {PUBLISHED: finding.paper.verdict})
        verdicts[finding.recipe] = finding.ours.verdict
    words = {claim: [verdicts[column] for column in (PUBLISHED, *recipes)] for claim, verdicts in by_claim.items()}
    rows = [[claim, *("" if word == MISSING else word for word in of_claim)] for claim, of_claim in words.items()]
    head = ["claim", "the paper's numbers", *(f"ours by `{recipe}`" for recipe in recipes)]
    counts = []
    for title, *column in list(zip(head, *rows, strict=True))[1:]:
        counted = (f"{column.count(word)} {word}" for word in (SUPPORTED, CONTRADICTED, INCONCLUSIVE) if word in column)
        counts.append(f"{title}: {', '.join(counted)}")
    explained = (
        "Each claim is checked on all cells that the paper's sentence is about: on its own numbers and on ours. It is "
        "supported or contradicted only if 95 % intervals over test episodes and seeds exclude the opposite. Fields are empty "
        "where cells are missing."
    )
    table = Table(tuple(head), tuple(map(tuple, rows)), (False,) * len(head))
    return [Paragraph(explained), Paragraph(f"{'; '.join(counts)}."), table]


def _again(ledger: Mapping[Task, Entry], of_paper: bool, results: Path) -> list[Block]:
    """Name the commands, what the numbers were computed with, and the files with everything else."""
    folder = results.resolve().name
    datasets = "".join(f" --dataset {name}" for name in sorted({task.cell.dataset for task in ledger}))
    command = f"protograph reproduce{' --root DATA' if of_paper else datasets}"
    runs = "1 run" if len(ledger) == 1 else f"{len(ledger)} runs"
    planned = ""
    if of_paper:
        tasks = {task for stage in grid_stages().values() for task in stage}
        planned = f" {len(tasks & ledger.keys())} of the {len(tasks)} planned runs are finished."
    text = (
        f"`{command}` trains the runs that are missing from the ledger `{folder}/`, which holds {runs}, and writes this file. "
        f"`--table-only` only writes it.{planned}"
    )
    files = tuple(f"`{folder}/{name}`: {text}" for name, text in FILES.items() if (results / name).exists())
    listed: list[Block] = [Paragraph("Everything else is in these files:"), Bullets(files)] if files else []
    return [Paragraph(text), *listed, *_dataset_lines(ledger)]


def _dataset_lines(ledger: Mapping[Task, Entry]) -> list[Block]:
    """Name the backbones, contents and versions behind each dataset's numbers, and everything that is not like for like."""
    blocks: list[Block] = []
    for dataset in sorted({task.cell.dataset for task in ledger}):
        entries = [entry for task, entry in ledger.items() if task.cell.dataset == dataset]
        contents = sorted({entry.config.fingerprint for entry in entries})
        versions = sorted({entry.versions for entry in entries})
        text = f"{dataset}: {_backbones(entries)}; fingerprint {', '.join(contents)}; {plain_text('; '.join(versions))}."
        if changed := sorted({recipe_changes(entry.config) for entry in entries} - {""}):
            text += f" **Some runs changed their recipe: {plain_text('; '.join(changed))}.**"
        if len(contents) > 1:
            text += " **These runs saw different images: their numbers cannot be compared.**"
        for run, count in _first_stages(entries).items():
            text += f" Second stages of {run} started from {count} different trainings of the first stage."
        blocks.append(Paragraph(text))
    return blocks


def _backbones(entries: Iterable[Entry]) -> str:
    """Name the backbones and, where recipes have different ones, their recipes."""
    recipes: dict[str, set[str]] = {}
    for entry in entries:
        recipes.setdefault(entry.config.backbone, set()).add(entry.task.recipe)
    if len({frozenset(of_backbone) for of_backbone in recipes.values()}) == 1:
        return ", ".join(sorted(recipes))
    return ", ".join(
        f"{backbone} by {' and '.join(f'`{name}`' for name in sorted(names))}" for backbone, names in sorted(recipes.items())
    )


def _first_stages(entries: Iterable[Entry]) -> dict[str, int]:
    """Return how many first stages the second ones of a recipe and seed started from, where that is more than one."""
    starts: dict[str, set[str]] = {}
    for entry in entries:
        if entry.config.start:
            starts.setdefault(f"`{entry.task.recipe}-{entry.task.seed}`", set()).add(entry.config.start)
    return {run: len(digests) for run, digests in starts.items() if len(digests) > 1}
