"""The tables of a ledger as rows of CSV files; RESULTS.md sums them up, and docs/results.md explains the columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, median

from protograph.evaluation.metrics import PAPER_MEASURES, Measure
from protograph.paper.claims import KEY_MEASURES, WITHOUT_RELATIONS
from protograph.paper.grid import SHOTS, STUDY_DEFAULT, Task
from protograph.paper.ledger import Entry, scores, scores_by_statistics
from protograph.paper.published import (
    FEW_SHOT_VARIANT_OF,
    PAPER_DATASETS,
    UNPUBLISHED,
    VARIANT_OF,
    Cell,
    few_shot_rows,
    published,
)
from protograph.paper.statistics import Difference, Score, Scores, Spreads, best_spreads, cell_difference
from protograph.paper.verdicts import Finding, Outcome, differences_text, paper_scores
from protograph.variants import find_variant

PUBLISHED = "published"  # stands for the paper's own numbers where a recipe's name stands for ours
JUDGED = ("h_mean", "joint_joint")  # the measures that a cell is judged by
ALLOWANCE = {"mini-imagenet": 1.5}  # points, since the dataset has fewer training images than the paper's

KnownScores = Mapping[str, Mapping[Cell, Scores]]  # by recipe
Row = dict[str, object]  # a value by the name of its column


def csv_tables(ledger: Mapping[Task, Entry], known: KnownScores, findings: Sequence[Finding]) -> dict[str, list[Row]]:
    """Return the rows of each CSV file by its name, without its suffix."""
    mini_imagenet = any(cell.dataset == "mini-imagenet" for cells in known.values() for cell in cells)
    return {
        "summary": list(summary_rows(known)),
        "gaps": list(gap_rows(known)),
        "claims": list(claim_rows(findings)),
        "comparisons": list(comparison_rows(findings)),
        "few_shot": list(few_shot_table_rows(ledger, list(known))) if mini_imagenet else [],
        "relations": list(relation_gain_rows(known)),
        "learned": list(learned_rows(ledger)),
        "last_epochs": list(last_epoch_rows(ledger)),
    }


def lacking_points(paper: Measure, score: Score, dataset: str, allowance: Mapping[str, float] = ALLOWANCE) -> float:
    """Return by how many points a score is below the paper's minus its interval and the allowance; at most 0 if it is not."""
    return paper.mean - paper.ci95 - allowance.get(dataset, 0.0) - score.mean


def shortfalls(known: Mapping[Cell, Scores], allowance: Mapping[str, float] = ALLOWANCE) -> dict[Cell, dict[str, float]]:
    """Return the cells that fall short of the paper, with the points that each measure lacks.

    Args:
        known: The scores of each cell.
        allowance: Further points that are allowed, by dataset.

    """
    short: dict[Cell, dict[str, float]] = {}
    for cell, paper in published().items():
        for name in JUDGED if cell in known else ():
            if (points := lacking_points(paper[name], known[cell][name], cell.dataset, allowance)) > 0:
                short.setdefault(cell, {})[name] = points
    return short


def interval_position(mean: float, paper: Measure) -> str:
    """Return whether a mean is 'above', 'within' or 'below' the paper's interval."""
    if abs(mean - paper.mean) <= paper.ci95:
        return "within"
    return "above" if mean > paper.mean else "below"


def summary_rows(known: KnownScores) -> Iterator[Row]:
    """Yield every measure of every cell: first as published, then by each recipe."""
    datasets = {cell.dataset for cells in known.values() for cell in cells}
    for recipe, cells in {PUBLISHED: paper_scores(), **known}.items():
        for cell, of_cell in cells.items():
            for name, score in of_cell.items() if cell.dataset in datasets else ():
                yield {
                    **_cell_columns(cell),
                    "recipe": recipe,
                    **_score_columns(name, score),
                    **_beside_paper(recipe, cell, name, score),
                }


def _cell_columns(cell: Cell) -> Row:
    return {**vars(cell), "relations": " and ".join(cell.relations)}


def _score_columns(measure: str, score: Score) -> Row:
    several = len(score.values) > 1
    deviation = _points(score.spread) if several else ""
    return {
        "measure": PAPER_MEASURES[measure],
        "seeds": len(score.values),
        "mean": _points(score.mean),
        "ci95": _points(score.ci95) if score.ci95 else "",
        "deviation_of_seeds": deviation,
    }


def _beside_paper(recipe: str, cell: Cell, name: str, score: Score) -> Row:
    columns: Row = dict.fromkeys(("minus_published", "published_interval", "lacks"), "")
    if recipe != PUBLISHED and (paper := published().get(cell)):
        columns["minus_published"] = f"{score.mean - paper[name].mean:+.2f}"
        columns["published_interval"] = interval_position(score.mean, paper[name])
        if name in JUDGED:
            columns["lacks"] = _points(max(0.0, lacking_points(paper[name], score, cell.dataset)))
    return columns


def gap_rows(known: KnownScores) -> Iterator[Row]:
    """Yield the mean and the median of our measures minus the paper's over the cells of each dataset."""
    for recipe, cells in known.items():
        for dataset in PAPER_DATASETS:
            for name, title in PAPER_MEASURES.items():
                if gaps := measure_gaps(cells, dataset, name):
                    middles = {"mean": f"{fmean(gaps):+.2f}", "median": f"{median(gaps):+.2f}"}
                    yield {"dataset": dataset, "recipe": recipe, "measure": title, "cells": len(gaps), **middles}


def measure_gaps(cells: Mapping[Cell, Scores], dataset: str, measure: str) -> list[float]:
    """Return a measure minus the paper's for every known cell of a dataset that the paper has."""
    paper = published()
    return [
        scores[measure].mean - paper[cell][measure].mean
        for cell, scores in cells.items()
        if cell in paper and cell.dataset == dataset
    ]


def claim_rows(findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield the verdict on each claim by the paper's own numbers and by each recipe's cells, with what it rests on."""
    for finding, recipe, outcome in _outcomes(findings):
        yield {
            "claim": finding.conclusion.claim,
            "wording": finding.conclusion.wording,
            "reading": finding.conclusion.reading,
            "recipe": recipe,
            "verdict": outcome.verdict,
            "compared": len(outcome.compared),
            "as_claimed": outcome.agreeing,
            "certainly": outcome.signs.count(True),
            "certainly_not": outcome.signs.count(False),
            "missing": outcome.missing,
            "mean": outcome.mean,
            "minus_published": "" if recipe == PUBLISHED else differences_text(finding.gaps),
        }


def comparison_rows(findings: Sequence[Finding]) -> Iterator[Row]:
    """Yield every comparison behind the claims whose cells are known."""
    for finding, recipe, outcome in _outcomes(findings):
        for (comparison, gap), certain in zip(outcome.compared, outcome.signs, strict=True):
            yield {
                "claim": finding.conclusion.claim,
                "recipe": recipe,
                "comparison": str(comparison),
                **_difference_columns(gap),
                "as_claimed": comparison.agrees(gap),
                "certain": certain is not None,
            }


def _outcomes(findings: Sequence[Finding]) -> Iterator[tuple[Finding, str, Outcome]]:
    """Yield the outcomes of each claim with the recipe they are by, the paper's own first."""
    for conclusion in dict.fromkeys(finding.conclusion for finding in findings):
        of_claim = [finding for finding in findings if finding.conclusion == conclusion]
        yield of_claim[0], PUBLISHED, of_claim[0].paper
        yield from ((finding, finding.recipe, finding.ours) for finding in of_claim)


def _difference_columns(gap: Difference) -> Row:
    return {"difference": f"{gap.mean:+.2f}", "half_interval": _points(gap.half()), "covers_seeds": gap.seeds}


def few_shot_table_rows(ledger: Mapping[Task, Entry], recipes: Sequence[str]) -> Iterator[Row]:
    """Yield Novel-Novel on miniImageNet of the few-shot methods that the paper quotes, and ours by every recipe.

    Where batch norm may use different statistics in evaluation, there is a row for each of them.
    """
    measured = {recipe: (scores(ledger, recipe), scores_by_statistics(ledger, recipe)) for recipe in recipes}
    variants = {**VARIANT_OF, **FEW_SHOT_VARIANT_OF, **UNPUBLISHED}
    quoted = {row.model: row for row in few_shot_rows()}
    kinds = {**{name: row.kind for name, row in quoted.items()}, **dict.fromkeys(UNPUBLISHED, "FSL")}
    for (model, kind), shots in product(kinds.items(), SHOTS):
        cell = Cell("mini-imagenet", shots, variants.get(model, ""))
        columns: Row = {"method": model, "kind": kind, "shots": shots}
        if model in quoted:
            paper = quoted[model].novel_novel[shots]
            statistics = published_statistics(cell)
            of_paper = Score((paper.mean,), paper.ci95)
            yield {**columns, "recipe": PUBLISHED, "statistics": statistics, **_score_columns("novel_novel", of_paper)}
        for recipe, (usual, by_statistics) in measured.items():
            choices = {name: cells[cell] for name, cells in by_statistics.items() if cell in cells}
            for name, cell_scores in (choices or ({"": usual[cell]} if cell in usual else {})).items():
                score = cell_scores["novel_novel"]
                yield {**columns, "recipe": recipe, "statistics": name, **_score_columns("novel_novel", score)}


def published_statistics(cell: Cell) -> str:
    """Return what batch norm used in the published number of a few-shot method, where the method leaves a choice."""
    method = find_variant(cell.variant).method
    return method.published_statistics if method else ""


def relation_gain_rows(known: KnownScores) -> Iterator[Row]:
    """Yield what other relations bring over a dataset's default ones, and over none."""
    spreads: Spreads = best_spreads(known.values())
    for recipe, cells in known.items():
        for cell in (cell for cell in cells if cell.relations):
            default = replace(cell, relations=())
            references = {
                STUDY_DEFAULT[cell.dataset]: default,
                f"none ({WITHOUT_RELATIONS})": replace(default, variant=WITHOUT_RELATIONS),
            }
            for title, reference in references.items():
                for name in KEY_MEASURES:
                    if gain := cell_difference(cells, spreads, cell, reference, name):
                        columns = {**_cell_columns(cell), "recipe": recipe, "compared_with": title}
                        yield {**columns, "measure": PAPER_MEASURES[name], **_difference_columns(gain)}


def learned_rows(ledger: Mapping[Task, Entry]) -> Iterator[Row]:
    """Yield the temperatures and scales of the selected epoch of every run in which they are known."""
    for task, entry in sorted(ledger.items()):
        for name, value in entry.learned.items():
            yield {**_task_columns(task), "parameter": name, "value": f"{value:.4f}"}


def last_epoch_rows(ledger: Mapping[Task, Entry]) -> Iterator[Row]:
    """Yield the measures of the selected and of the last epoch of every run that was trained."""
    for task, entry in sorted(ledger.items()):
        if find_variant(task.cell.variant).objective != "none":
            for epoch, number, measures in (("selected", entry.epoch, entry.measures), ("last", entry.last_epoch, entry.last)):
                if not measures.keys() >= set(JUDGED):  # it classifies among novel classes alone
                    continue
                judged = {name: f"{measures[name].mean:.2f}" for name in JUDGED}
                intervals = {f"{name}_ci95": f"{measures[name].ci95:.2f}" for name in JUDGED}
                yield {**_task_columns(task), "kind": epoch, "epoch": number, **judged, **intervals}


def _task_columns(task: Task) -> Row:
    return {**_cell_columns(task.cell), "recipe": task.recipe, "seed": task.seed}


def _points(value: float) -> str:
    return f"{value:.2f}"
