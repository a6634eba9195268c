"""The rows of RESULTS.md's tables, from scores alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from protograph.evaluation.metrics import PAPER_MEASURES, Measure
from protograph.paper.claims import KEY_MEASURES, WITHOUT_RELATIONS
from protograph.paper.grid import STUDY_DEFAULT, Task
from protograph.paper.ledger import Entry, Notes
from protograph.paper.published import (
    MODEL_OF,
    PAPER_DATASETS,
    VARIANT_OF,
    Cell,
    PublishedRow,
    few_shot_rows,
    gfsl_rows,
    published,
)
from protograph.paper.statistics import Scores, Spreads, cell_difference
from protograph.paper.trials import Trials
from protograph.paper.verdicts import Finding, Outcome, differences_text
from protograph.report.document import MARKS, Table, plain
from protograph.training.loop import SCALE
from protograph.training.optimiser import is_operator_scalar
from protograph.variants import find_variant

JUDGED = ("h_mean", "joint_joint")  # the measures that a cell is judged by
BOLD = ("joint_joint", "h_mean")  # the measures that the paper prints in bold
ALLOWANCE = {"mini-imagenet": 1.5}  # points, since the dataset has fewer training images than the paper's
HEAD = ("", "", *PAPER_MEASURES.values())

KnownScores = Mapping[str, Mapping[Cell, Scores]]  # by recipe


def shortfalls(known: Mapping[Cell, Scores], allowance: Mapping[str, float] = ALLOWANCE) -> dict[Cell, dict[str, float]]:
    """Return the cells that fall short of the paper, with the points that each measure lacks.

    A measure falls short if it is below the paper's minus its interval and the allowance.

    Args:
        known: The scores of each cell.
        allowance: Further points that are allowed, by dataset.

    """
    short: dict[Cell, dict[str, float]] = {}
    for cell, paper in published().items():
        for name in JUDGED if cell in known else ():
            least = paper[name].mean - paper[name].ci95 - allowance.get(cell.dataset, 0.0)
            if (lacking := least - known[cell][name].mean) > 0:
                short.setdefault(cell, {})[name] = lacking
    return short


def interval_mark(mean: float, paper: Measure) -> str:
    """Return whether a mean is 'above', 'within' or 'below' the paper's interval."""
    if abs(mean - paper.mean) <= paper.ci95:
        return "within"
    return "above" if mean > paper.mean else "below"


def gap_table(recipe: str, known: Mapping[Cell, Scores]) -> Table:
    """Return our measures minus the paper's for every cell of a recipe, and their means and medians over each dataset."""
    short = shortfalls(known)
    gaps = {cell: {name: score.mean - published()[cell][name].mean for name, score in known[cell].items()} for cell in known}

    def texts(points: Mapping[str, float]) -> list[str]:
        return [f"{points[name]:+.2f}" for name in PAPER_MEASURES]

    rows = [
        (str(cell), str(_seed_count(known[cell])), *texts(gaps[cell]), "no" if cell in short else "yes")
        for cell in sorted(known, key=_paper_order)
    ]
    for dataset in PAPER_DATASETS:
        if of_dataset := [points for cell, points in gaps.items() if cell.dataset == dataset]:
            for title, middle in (("mean", fmean), ("median", median)):
                middles = {name: middle([points[name] for points in of_dataset]) for name in PAPER_MEASURES}
                rows.append((f"**{title} of {dataset}**", "", *(f"**{text}**" for text in texts(middles)), ""))
    aligned = False, True, *(True for _ in PAPER_MEASURES), False
    return Table((f"by `{recipe}`", "seeds", *PAPER_MEASURES.values(), "reaches the paper"), tuple(rows), aligned)


def shortfall_table(recipe: str, known: Mapping[Cell, Scores], notes: Notes) -> Table:
    """Return the cells of a recipe that fall short, with the points they lack and where the reasons are given."""
    short = shortfalls(known)
    rows = [_shortfall_row(cell, known[cell], short[cell], notes) for cell in sorted(short, key=_paper_order)]
    lacking = [f"{PAPER_MEASURES[name]} lacks" for name in JUDGED]
    head = (f"by `{recipe}`", *(text for name in JUDGED for text in (PAPER_MEASURES[name], "paper")), *lacking, "reason")
    return Table(head, tuple(rows), (False, *(True for _ in JUDGED for _ in range(3)), False))


def _shortfall_row(cell: Cell, scores: Scores, lacking: Mapping[str, float], notes: Notes) -> tuple[str, ...]:
    numbers = [text for name in JUDGED for text in (str(scores[name]), str(published()[cell][name]))]
    points = [f"{lacking[name]:.2f}" if name in lacking else "" for name in JUDGED]
    of_dataset = f"as for all of {cell.dataset}" if cell.dataset in notes.datasets else "not investigated yet"
    reason = "see its note above" if cell in notes.cells else of_dataset
    return (f"{cell}, {_seeds(scores)}", *numbers, *points, reason)


def published_table(table: str, shots: int, known: KnownScores) -> Table:
    """Return a table of the paper's at one K: each published row, and below it ours by every recipe."""
    published_rows = [row for row in gfsl_rows() if row.table == table and row.cell.shots == shots]
    return Table.of(HEAD, _published_block(published_rows, known), 2)


def _published_block(published_rows: Sequence[PublishedRow], known: KnownScores) -> list[tuple[str, ...]]:
    paper = {row.cell: row.measures for row in published_rows}
    best = {name: max(row.measures[name].mean for row in published_rows) for name in BOLD}
    ours = {recipe: {cell: cells[cell] for cell in paper if cell in cells} for recipe, cells in known.items()}
    bests = {recipe: _best(cells.values()) if len(cells) == len(paper) else {} for recipe, cells in ours.items()}
    rows = []
    for row in published_rows:
        texts = [_bold(str(measure), measure.mean == best.get(name)) for name, measure in row.measures.items()]
        rows.append((row.model, "published", *texts))
        for recipe, cells in ours.items():
            if row.cell in cells:
                rows.append(_score_row("", recipe, cells[row.cell], bests[recipe], row.measures))
    return rows


def _score_row(
    name: str, recipe: str, scores: Scores, best: Mapping[str, float], paper: Mapping[str, Measure] | None = None
) -> tuple[str, ...]:
    texts = []
    for measure, score in scores.items():
        text = _bold(str(score), score.mean == best.get(measure))
        texts.append(f"{text} {MARKS[interval_mark(score.mean, paper[measure])]}" if paper else text)
    return (name, f"ours by `{recipe}`, {_seeds(scores)}", *texts)


def few_shot_table(known: KnownScores) -> Table:
    """Return Novel-Novel on miniImageNet of the few-shot methods that the paper quotes, and ours by every recipe."""
    by_recipe = {recipe: cells for recipe, cells in known.items() if any(_in_few_shot_table(cell) for cell in cells)}
    head = ["method", "kind", *(f"published, {k}-shot" for k in (1, 5))]
    head += [f"ours by `{recipe}`, {k}-shot" for recipe in by_recipe for k in (1, 5)]
    best = {k: max(row.novel_novel[k].mean for row in few_shot_rows()) for k in (1, 5)}
    rows = []
    for row in few_shot_rows():
        plain_texts = {k: str(paper) if paper.ci95 else f"{paper.mean:.2f}" for k, paper in row.novel_novel.items()}
        texts = [_bold(plain_texts[k], paper.mean == best[k]) for k, paper in row.novel_novel.items()]
        for cells in by_recipe.values():
            for k, paper in row.novel_novel.items():
                scores = cells.get(Cell("mini-imagenet", k, VARIANT_OF.get(row.model, "")))
                score = scores["novel_novel"] if scores else None
                texts.append(f"{score} {MARKS[interval_mark(score.mean, paper)]}" if score else "")
        rows.append((row.model, row.kind, *texts))
    return Table.of(head, rows, 2)


def _in_few_shot_table(cell: Cell) -> bool:
    return cell.dataset == "mini-imagenet" and any(VARIANT_OF.get(row.model) == cell.variant for row in few_shot_rows())


def unpublished_table(dataset: str, shots: int, known: KnownScores) -> Table:
    """Return the cells of a dataset and K that the paper has no numbers for, by every recipe."""
    order = {variant: index for index, variant in enumerate(MODEL_OF)}
    rows = []
    for recipe, cells in known.items():
        block = {
            cell: cells[cell]
            for cell in unpublished_cells(known)
            if cell in cells and (cell.dataset, cell.shots) == (dataset, shots)
        }
        for cell in sorted(block, key=lambda cell: (order.get(cell.variant, len(order)), cell.variant)):
            rows.append(_score_row(cell.variant, recipe, block[cell], _best(block.values())))
    return Table.of(HEAD, rows, 2)


def unpublished_cells(known: KnownScores) -> set[Cell]:
    """Return the cells that the paper has no numbers for, with the default relations."""
    return {cell for cells in known.values() for cell in cells if cell not in published() and not cell.relations}


def relation_table(cells: Sequence[Cell], known: KnownScores) -> Table:
    """Return the scores of one variant with different relations.

    Args:
        cells: The cells, the one with the default relations first.
        known: The scores by recipe.

    """
    rows = []
    for recipe, scores in known.items():
        block = {cell: scores[cell] for cell in cells if cell in scores}
        best = _best(block.values()) if len(block) > 1 else {}
        rows += [_score_row(_relations(cell), recipe, of_cell, best) for cell, of_cell in block.items()]
    return Table.of(HEAD, rows, 2)


def relation_gain_table(cells: Sequence[Cell], known: KnownScores, spreads: Spreads) -> Table:
    """Return what relations bring over the default ones, and over none; without a row where nothing can be compared.

    Args:
        cells: The cells, as `relation_table` takes them.
        known: The scores by recipe.
        spreads: How much measures differ between seeds.

    """
    default = replace(cells[0], relations=())
    references = [(cell, name) for cell in (default, replace(default, variant=WITHOUT_RELATIONS)) for name in KEY_MEASURES]
    rows = []
    for recipe, scores in known.items():
        for cell in cells:
            if cell in scores and cell != default:
                gains = [cell_difference(scores, spreads, cell, reference, name) for reference, name in references]
                if any(gains):
                    rows.append(
                        (_relations(cell), f"ours by `{recipe}`", *("" if gain is None else str(gain) for gain in gains))
                    )
    heads = [
        f"{PAPER_MEASURES[name]} minus that of {STUDY_DEFAULT[cell.dataset] if cell == default else 'none'}"
        for cell, name in references
    ]
    return Table.of(("", "", *heads), rows, 2)


def _relations(cell: Cell) -> str:
    return " and ".join(cell.relations) or STUDY_DEFAULT[cell.dataset]


def verdict_table(recipe: str, findings: Sequence[Finding]) -> Table:
    """Return the verdict on each conclusion by a recipe's cells and by the paper's own numbers, with what each rests on."""
    rows = []
    for finding in findings:
        ours, paper = finding.ours, finding.paper
        certain, against = ours.signs.count(True), ours.signs.count(False)
        counts = f"{ours.agreeing} of {len(ours.compared)}", str(certain), str(against)
        means = ours.mean, paper.verdict, paper.mean, differences_text(finding.gaps)
        rows.append((finding.conclusion.claim, f"**{ours.verdict}**", *counts, *means))
    counted = "as claimed", "certainly", "certainly not"
    head = (f"ours by `{recipe}`", "verdict", *counted, "mean", "the paper's numbers", "mean", "ours minus the paper's")
    return Table(head, tuple(rows), (False, False, True, True, True, False, False, False, False))


def comparison_table(finding: Finding) -> Table:
    """Return every comparison behind a conclusion."""
    rows = zip(finding.conclusion.comparisons, _signs(finding.ours), _signs(finding.paper), strict=True)
    return Table(
        ("comparison", "ours", "", "the paper's numbers", ""),
        tuple((str(comparison), *ours, *paper) for comparison, ours, paper in rows),
        (False, True, False, True, False),
    )


def _signs(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the difference of every comparison, and whether it is as claimed, and certainly so, as texts."""
    signs = iter(outcome.signs)
    texts = []
    for comparison, gap in zip(outcome.conclusion.comparisons, outcome.differences, strict=True):
        if gap is None:
            texts.append(("", "cells missing"))
        else:
            agrees = "as claimed" if comparison.agrees(gap) else "not as claimed"
            texts.append((str(gap), agrees if next(signs) is None else f"{agrees}, certain"))
    return texts


def trial_table(title: str, trials: Trials) -> Table:
    """Return the trials of one cell, the best first.

    Args:
        title: The cell.
        trials: Its trials.

    """
    names = [name for name in PAPER_MEASURES if any(name in measures for measures in trials.values())]
    rows = []
    for trial, measures in sorted(trials.items(), key=lambda item: -item[1].get("h_mean", 0.0)):
        numbers = [f"{measures[name]:.1f}" if name in measures else "" for name in names]
        changes = plain(trial.changes or "unchanged recipe")
        rows.append((changes, trial.recipe, trial.relations, str(trial.seed), str(trial.epoch), *numbers))
    return Table.of((title, "recipe", "relations", "seed", "epoch", *(PAPER_MEASURES[name] for name in names)), rows, 3)


def learned_table(ledger: Mapping[Task, Entry]) -> Table:
    """Return the temperatures of relations and the scales of operators of every run in which they are known."""
    rows = []
    for task, entry in sorted(ledger.items()):
        scales = {name.removeprefix(SCALE): value for name, value in entry.learned.items() if name.startswith(SCALE)}
        temperatures = [value for name, value in entry.learned.items() if is_operator_scalar(name)]
        if temperatures and find_variant(task.cell.variant).scales:
            weights = ", ".join(f"{label} {value:.2f}" for label, value in scales.items())
            judged = (f"{entry.measures[name].mean:.2f}" for name in JUDGED)
            rows.append((str(task), ", ".join(f"{value:.2f}" for value in temperatures), weights, *judged))
    head = ("run", "temperature", "scales", *(PAPER_MEASURES[name] for name in JUDGED))
    return Table(head, tuple(rows), (False, True, False, *(True for _ in JUDGED)))


def last_epoch_table(ledger: Mapping[Task, Entry]) -> Table:
    """Return the measures of the selected and of the last epoch of every run that was trained."""
    rows = []
    for task, entry in sorted(ledger.items()):
        if find_variant(task.cell.variant).objective != "none":
            texts = [str(measures[name]) for name in JUDGED for measures in (entry.measures, entry.last)]
            rows.append((str(task), str(entry.epoch), str(entry.last_epoch), *texts))
    columns = (f"{PAPER_MEASURES[name]} of {epoch}" for name in JUDGED for epoch in ("selected", "last"))
    return Table.of(("run", "selected", "last", *columns), rows, 1)


def _paper_order(cell: Cell) -> tuple[int, int]:
    return PAPER_DATASETS.index(cell.dataset), cell.shots


def _best(rows: Iterable[Scores]) -> dict[str, float]:
    rows = list(rows)
    return {name: max(scores[name].mean for scores in rows) for name in BOLD}


def _seed_count(scores: Scores) -> int:
    return len(next(iter(scores.values())).values)


def _seeds(scores: Scores) -> str:
    return "1 seed" if _seed_count(scores) == 1 else f"{_seed_count(scores)} seeds"


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text
