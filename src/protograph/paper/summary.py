"""RESULTS.md from the ledger: the paper's numbers and ours side by side, the cells that fall short, and the conclusions."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph.paper import texts
from protograph.paper.claims import READINGS, WITHOUT_RELATIONS
from protograph.paper.grid import FIGURE_CELLS, STUDY_RELATIONS, Task, grid_stages, table_cells
from protograph.paper.ledger import Entry, Notes, read_notes, scores, table_path
from protograph.paper.published import PAPER_DATASETS, TITLES, Cell, gfsl_rows, published
from protograph.paper.statistics import Scores, best_spreads
from protograph.paper.tables import (
    ALLOWANCE,
    KnownScores,
    comparison_table,
    few_shot_table,
    gap_table,
    last_epoch_table,
    learned_table,
    published_table,
    relation_gain_table,
    relation_table,
    shortfall_table,
    shortfalls,
    trial_table,
    unpublished_cells,
    unpublished_table,
    verdict_table,
)
from protograph.paper.trials import Trials, recipe_changes
from protograph.paper.verdicts import MISSING, Finding, check_conclusions
from protograph.report.document import MARKS, Block, Bullets, Details, Heading, Paragraph, as_markdown, plain
from protograph.training.recipes import RECIPES

STANDING = "Where we stand"
NARROW = 0.5  # points: about the standard deviation between seeds
OPENING = f"# Results\n\n{texts.MADE_FROM} "  # how every file begins that `write_summary` wrote


def write_summary(results: Path, ledger: Mapping[Task, Entry]) -> Path:
    """Write the tables of a ledger, such as RESULTS.md, and return their path.

    Args:
        results: The folder of the ledger.
        ledger: Its entries.

    Raises:
        InputError: If the file exists and was not written by this function.

    """
    path = table_path(results)
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(OPENING):
        raise InputError(f"{path} exists and was not written by `reproduce`: move it, or choose another --results")
    write_atomically(path, as_markdown(summary_blocks(ledger, read_notes(results), results.resolve().name)).encode())
    return path


def summary_blocks(ledger: Mapping[Task, Entry], notes: Notes | None = None, folder: str = "results") -> list[Block]:
    """Return the contents of RESULTS.md.

    If all cells are of other datasets than the paper's, the paper is not mentioned.

    Args:
        ledger: The entries.
        notes: The reasons why cells fall short, and the trials.
        folder: The name of the ledger's folder.

    """
    notes = notes or Notes()
    by_recipe = {name: scores(ledger, name) for name in RECIPES}
    known = {name: cells for name, cells in by_recipe.items() if cells}
    beyond_paper = bool(ledger) and not any(task.cell in published() or task.cell in FIGURE_CELLS for task in ledger)
    blocks = [Heading(1, "Results"), *_introduction(ledger, known, folder, beyond_paper), *_dataset_lines(ledger)]
    closing = _trials(notes.trials) + _learned(ledger) + _last_epochs(ledger)
    if beyond_paper:
        return blocks + _unpublished(known) + _relations(known) + closing
    blocks += [Heading(2, STANDING), *_standing(ledger, known), *_shortfalls(known, notes)]
    findings = check_conclusions(ledger)
    blocks += [Heading(2, "The paper's conclusions"), *_conclusions(findings)]
    for table, title in TITLES.items():
        for shots in sorted({row.cell.shots for row in gfsl_rows() if row.table == table}):
            blocks += [Heading(2, f"{title}, {shots}-shot"), published_table(table, shots, known)]
    blocks += [Heading(2, "Novel-Novel beside few-shot methods"), Paragraph(texts.FEW_SHOT), few_shot_table(known)]
    return blocks + _relations(known) + _unpublished(known) + _comparisons(findings) + closing


def _introduction(ledger: Mapping[Task, Entry], known: KnownScores, folder: str, beyond_paper: bool) -> list[Block]:
    """Explain the numbers, the marks and the size of the ledger."""
    size = f"holds {'1 run' if len(ledger) == 1 else f'{len(ledger)} runs'}."
    episodes, seeds = "the 95 % interval over episodes", "the standard deviation between seeds for cells with several seeds"
    if beyond_paper:
        size = f"The ledger {size}"
        signs = f"{episodes}, and {seeds}. Bold: the best of its block."
    else:
        everywhere = sum(any(cell in cells for cells in known.values()) for cell in published())
        by_recipe = (f"{sum(cell in published() for cell in cells)} by the `{name}` recipe" for name, cells in known.items())
        cells = "; ".join([f"{everywhere} of the paper's {len(published())} cells", *by_recipe])
        size = f"The ledger has {cells}. It {size}"
        signs = (
            f"{episodes} in the paper's rows and for cells with one seed, and {seeds}. "
            f"{MARKS['above']} above, {MARKS['within']} within, {MARKS['below']} below the paper's interval. "
            "Bold: the best of its block, among the paper's rows and among ours by a recipe that has the whole block."
        )
    return [
        Paragraph(
            f"{texts.MADE_FROM} `{folder}/`, which `protograph reproduce` fills. No measure of a cell is typed by hand. The "
            f"reasons why cells fall short are quoted from `{folder}/notes.json`."
        ),
        Paragraph(size),
        Paragraph(
            f"Accuracies are in per cent over 600 test episodes, the same for every model. The number behind ± is {signs}"
        ),
    ]


def _dataset_lines(ledger: Mapping[Task, Entry]) -> list[Block]:
    """Name the backbones, contents and versions behind each dataset's numbers, and everything that is not like for like."""
    blocks: list[Block] = []
    for dataset in sorted({task.cell.dataset for task in ledger}):
        entries = [entry for task, entry in ledger.items() if task.cell.dataset == dataset]
        contents = sorted({entry.config.fingerprint for entry in entries})
        versions = sorted({entry.versions for entry in entries})
        text = f"{dataset}: {_backbones(entries)}; fingerprint {', '.join(contents)}; {'; '.join(versions)}."
        if changed := sorted({recipe_changes(entry.config) for entry in entries} - {""}):
            text += f" **Some runs changed their recipe: {plain('; '.join(changed))}.**"
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


def _standing(ledger: Mapping[Task, Entry], known: KnownScores) -> list[Block]:
    """Show how many cells reach the paper, and how far every one is from it."""
    allowances = "".join(
        f" (on {dataset}, with {texts.FEWER_IMAGES[dataset]}: minus an allowance of {points:g} points)"
        for dataset, points in ALLOWANCE.items()
    )
    blocks: list[Block] = [Paragraph(texts.REACHES.format(allowances=allowances))]
    of_paper = {
        recipe: in_tables
        for recipe, cells in known.items()
        if (in_tables := {cell: cells[cell] for cell in published() if cell in cells})
    }
    if not of_paper:
        return [*blocks, Paragraph(texts.NO_CELLS)]
    stages = [f"{title}, {sum(task in ledger for task in tasks)} of {len(tasks)}" for title, tasks in grid_stages().items()]
    blocks += [
        Bullets(tuple(_reached(recipe, cells) for recipe, cells in of_paper.items())),
        Paragraph(f"Finished runs of the full plan of `protograph reproduce`: {'; '.join(stages)}."),
        Paragraph("Our mean over seeds minus the paper's value:"),
    ]
    fullest = sorted(of_paper.items(), key=lambda item: -len(item[1]))
    return blocks + [gap_table(recipe, cells) for recipe, cells in fullest]


def _reached(recipe: str, known: Mapping[Cell, Scores]) -> str:
    """Count the cells that reach the paper, those that do or do not by little, and those that do without allowance."""
    short, strictly = shortfalls(known), shortfalls(known, {})
    harder, easier = (
        shortfalls(known, {dataset: ALLOWANCE.get(dataset, 0.0) + points for dataset in PAPER_DATASETS})
        for points in (-NARROW, NARROW)
    )
    by_dataset = [
        f"{dataset} {sum(cell not in short for cell in cells)} of {len(cells)}"
        for dataset in PAPER_DATASETS
        if (cells := [cell for cell in known if cell.dataset == dataset])
    ]
    reached = len(known) - len(short)
    training = f" ({texts.RECIPE_TEXTS[recipe]})" if recipe in texts.RECIPE_TEXTS else ""
    return (
        f"`{recipe}`{training}: {reached} of {len(known)} cells reach the paper ({100 * reached / len(known):.0f} %); "
        f"{', '.join(by_dataset)}; {len(harder) - len(short)} of these by less than {NARROW:g} points, and "
        f"{len(short) - len(easier)} of the others miss it by less; {len(known) - len(strictly)} would reach it without the "
        "allowance"
    )


def _shortfalls(known: KnownScores, notes: Notes) -> list[Block]:
    """List the cells that fall short, with the known reasons."""
    short = {recipe: lacking for recipe, cells in known.items() if (lacking := shortfalls(cells))}
    if not short:
        return []
    blocks: list[Block] = [Heading(2, "Cells that fall short")]
    for dataset, points in notes.datasets.items():
        blocks += [Paragraph(f"What is known about {dataset}:"), Bullets(tuple(map(plain, points)))]
    # A note is quoted once, however many recipes its cell falls short by.
    cells = [cell for cell in published() if cell in notes.cells and any(cell in lacking for lacking in short.values())]
    if cells:
        items = tuple(f"**{cell}**: {plain(notes.cells[cell])}" for cell in cells)
        blocks += [Paragraph("What is known about single cells:"), Bullets(items)]
    return blocks + [shortfall_table(recipe, known[recipe], notes) for recipe in short]


def _conclusions(findings: list[Finding]) -> list[Block]:
    """Show the verdict on every conclusion, by every recipe."""
    if not findings:
        return [Paragraph(texts.NO_CELLS)]
    blocks: list[Block] = [Paragraph(texts.CONCLUSIONS_CHECKED), Bullets(texts.CERTAINTY)]
    for recipe in dict.fromkeys(finding.recipe for finding in findings):
        by_recipe = [finding for finding in findings if finding.recipe == recipe]
        judged = [finding for finding in by_recipe if finding.ours.verdict != MISSING]
        if judged:
            blocks.append(verdict_table(recipe, judged))
        if lacking := len(by_recipe) - len(judged):
            blocks.append(Paragraph(f"By `{recipe}`, cells are missing for {lacking} of {len(by_recipe)} conclusions."))
    return blocks


def _comparisons(findings: list[Finding]) -> list[Block]:
    """Show every comparison behind the conclusions, those without a verdict last."""
    shown = [finding for finding in findings if len(finding.ours.compared) > finding.ours.missing]
    if not shown:
        return []
    blocks: list[Block] = [Heading(2, "The paper's conclusions, comparison by comparison")]
    for finding in sorted(shown, key=lambda finding: finding.ours.verdict == MISSING):
        conclusion = finding.conclusion
        contents = (
            Paragraph(f"The paper: {conclusion.wording}. It has to be true {READINGS[conclusion.reading]}."),
            Bullets((f"ours: {finding.ours}", f"the paper's numbers: {finding.paper}")),
            comparison_table(finding),
        )
        title = f"{finding.ours.verdict.capitalize()}: {conclusion.claim} (`{finding.recipe}`)"
        blocks.append(Details(title, contents))
    return blocks


def _relations(known: KnownScores) -> list[Block]:
    """Show what other side information brings."""
    blocks: list[Block] = []
    spreads = best_spreads(known.values())
    for dataset in STUDY_RELATIONS:
        cells = [cell for cell in table_cells("relations", (dataset,)) if any(cell in scores for scores in known.values())]
        if not any(cell.relations for cell in cells):
            continue
        first = replace(cells[0], relations=())
        blocks.append(Heading(2, f"Other side information: {dataset}, {first.shots}-shot, {first.variant}"))
        blocks.append(relation_table(cells, known))
        gains = relation_gain_table(cells, known, spreads)
        if gains.rows:
            blocks += [Paragraph(texts.RELATION_GAINS.format(without=WITHOUT_RELATIONS)), gains]
    return blocks


def _unpublished(known: KnownScores) -> list[Block]:
    """Show the cells that the paper has no numbers for, such as those of the letters."""
    blocks: list[Block] = []
    for dataset, shots in sorted({(cell.dataset, cell.shots) for cell in unpublished_cells(known)}):
        title = f"{dataset}, {shots}-shot: not in the paper's tables"
        blocks += [Heading(2, title), unpublished_table(dataset, shots, known)]
    return blocks


def _trials(trials: Trials) -> list[Block]:
    """Show what other settings brought on the validation classes."""
    if not trials:
        return []
    blocks: list[Block] = [Heading(2, "Trials on the validation classes"), Paragraph(texts.TRIALS)]
    for title in dict.fromkeys(str(trial) for trial in trials):
        blocks.append(trial_table(title, {trial: measures for trial, measures in trials.items() if str(trial) == title}))
    return blocks


def _learned(ledger: Mapping[Task, Entry]) -> list[Block]:
    """Show the temperatures and scales that operators learned, which tell whether relations are used."""
    table = learned_table(ledger)
    if not table.rows:
        return []
    details = Details("Every run of which they are known", (table,))
    return [Heading(2, "Learned weights of the operators"), Paragraph(texts.LEARNED), details]


def _last_epochs(ledger: Mapping[Task, Entry]) -> list[Block]:
    """Show what the last epoch would have had instead of the one that validation selected."""
    table = last_epoch_table(ledger)
    if not table.rows:
        return []
    details = Details("Every run", (table,))
    return [Heading(2, "The last epoch instead of the selected one"), Paragraph(texts.LAST_EPOCH), details]
