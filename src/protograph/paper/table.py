"""RESULTS.md from the ledger: the paper's numbers and ours side by side, what falls short, what the conclusions come to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph.evaluation.metrics import MEASURES, Measure
from protograph.paper.conclusions import (
    BOTH,
    MISSING,
    READINGS,
    WITHOUT,
    Finding,
    Outcome,
    apart,
    best_spreads,
    conclusions,
    in_words,
)
from protograph.paper.grid import FIGURE, STUDY, STUDY_OWN, Task, stages, table_cells
from protograph.paper.ledger import Entry, Notes, Score, Scores, read_notes, scores, table_path
from protograph.paper.published import (
    MODEL_OF,
    PAPER_DATASETS,
    TITLES,
    VARIANT_OF,
    Cell,
    Row,
    few_shot_rows,
    gfsl_rows,
    published,
)
from protograph.paper.trials import Trials, changes
from protograph.report.document import MARKS, Block, Bullets, Details, Heading, Paragraph, Table, as_markdown, plain
from protograph.training.config import RECIPES
from protograph.training.loop import SCALE, weighs_operators
from protograph.variants import find_variant

COUNTED = ("h_mean", "joint_joint")  # what a cell is judged by
BOLD = ("joint_joint", "h_mean")  # what the paper prints in bold
ALLOWANCE = {"mini-imagenet": 1.5}  # for want of training images, see LESS
NARROW = 0.5  # points: about the standard deviation between seeds
LESS = {"mini-imagenet": "100 training images per class less than the paper had"}
# What the recipes are, to those who read their numbers beside the paper's.
TRAINED = {
    "paper": "the paper's training",
    "fast": "a tenth to a fifth of the paper's training, in larger steps",
    "strong": "`fast`, mostly for longer, yet not as long as the paper's, and with what the paper did not do: images also "
    "scaled, stretched, recoloured and partly erased, 128 channels in every block instead of 64 in two of them, when tested "
    "the mean of an image's and its mirror image's features, PN+ on episodes of 20 classes and, on miniImageNet, GcGPN from a "
    "trained cosine classifier",
}
HEAD = ("", "", *MEASURES.values())
STANDING = "Where we stand"
UNKNOWN = "not looked into yet"
MADE = "Made from the ledger in"
OPENING = f"# Results\n\n{MADE} "  # of a file that `write_table` wrote
BESIDE = (
    f"How much more that is than by the dataset's own side information, and than by none ({WITHOUT}), with half of the 95 % "
    "interval, which is that of test episodes and seeds or, marked *, of test episodes alone."
)

Known = Mapping[str, Mapping[Cell, Scores]]  # by recipe


def write_table(results: Path, ledger: Mapping[Task, Entry]) -> Path:
    """Write RESULTS.md; where it is. Only a file that was written like this before is replaced."""
    path = table_path(results)
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(OPENING):
        raise InputError(f"{path} is there, and not written by `reproduce`: move it, or choose another --results")
    write_atomically(path, as_markdown(document(ledger, read_notes(results), results.resolve().name)).encode())
    return path


def mark(ours: float, paper: Measure) -> str:
    """Where a number lies: 'above', 'within' or 'below' the paper's interval."""
    if abs(ours - paper.mean) <= paper.ci95:
        return "within"
    return "above" if ours > paper.mean else "below"


def shortfalls(known: Mapping[Cell, Scores], allowance: Mapping[str, float] = ALLOWANCE) -> dict[Cell, dict[str, float]]:
    """Of the cells that fall short, by how much each measure lies below what is allowed: the paper's minus its interval.

    allowance: points more that are allowed, by dataset
    """
    found: dict[Cell, dict[str, float]] = {}
    for cell, paper in published().items():
        for name in COUNTED if cell in known else ():
            least = paper[name].mean - paper[name].ci95 - allowance.get(cell.dataset, 0.0)
            if (missing := least - known[cell][name].mean) > 0:
                found.setdefault(cell, {})[name] = missing
    return found


def document(ledger: Mapping[Task, Entry], notes: Notes | None = None, folder: str = "results") -> list[Block]:
    """All that the ledger in `folder` says; `notes` are what is known about why cells fall short, and what was tried.

    Of the paper's tables nothing is said where all cells are of other datasets than its own.
    """
    notes = notes or Notes()
    by_recipe = {name: scores(ledger, name) for name in RECIPES}
    known = {name: cells for name, cells in by_recipe.items() if cells}
    ours = bool(ledger) and not any(task.cell in published() or task.cell in FIGURE for task in ledger)
    blocks = [Heading(1, "Results"), *_introduction(ledger, known, folder, ours)]
    if ours:
        return blocks + _others(known) + _study(known) + _tried(notes.trials) + _learned(ledger) + _last_epochs(ledger)
    blocks += [Heading(2, STANDING), *_standing(ledger, known), *_falling_short(known, notes)]
    found = conclusions(ledger)
    blocks += [Heading(2, "The paper's conclusions"), *_conclusions(found)]
    for table, title in TITLES.items():
        for shots in sorted({row.cell.shots for row in gfsl_rows() if row.table == table}):
            rows = [row for row in gfsl_rows() if row.table == table and row.cell.shots == shots]
            blocks += [Heading(2, f"{title}, {shots}-shot"), Table.of(HEAD, _block(rows, known), 2)]
    blocks += [Heading(2, "Novel-Novel beside few-shot methods"), Paragraph(FEW_SHOT), few_shot_table(known)]
    blocks += _study(known) + _others(known) + _findings(found)
    return blocks + _tried(notes.trials) + _learned(ledger) + _last_epochs(ledger)


def _introduction(ledger: Mapping[Task, Entry], known: Known, folder: str, ours: bool) -> list[Block]:
    """What the numbers are; of the paper's nothing is said where all are `ours`."""
    held = "1 run" if len(ledger) == 1 else f"{len(ledger)} runs"
    episodes, several = "the 95 % interval over episodes", "the standard deviation between seeds where we have several"
    if ours:
        holds = f"The ledger holds {held}."
        signs = f"{episodes}, and {several}. Bold: the best of its block."
    else:
        everywhere = sum(any(cell in cells for cells in known.values()) for cell in published())
        by_recipe = (f"{sum(cell in published() for cell in cells)} by the `{name}` recipe" for name, cells in known.items())
        cells = "; ".join([f"{everywhere} of the paper's {len(published())} cells", *by_recipe])
        holds = f"The ledger has {cells}. It holds {held}."
        signs = (
            f"{episodes} in the paper's rows and where we have one seed, and {several}. "
            f"{MARKS['above']} above, {MARKS['within']} within, {MARKS['below']} below the paper's interval. "
            "Bold: the best of its block, of the paper's rows and of ours by a recipe that has them all."
        )
    texts = [
        f"{MADE} `{folder}/`, which `protograph reproduce` fills. No measure of a cell is typed by hand; what "
        f"is known about why cells fall short is quoted from `{folder}/notes.json`.",
        holds,
        f"Accuracies in per cent over 600 test episodes, which are the same for every model. Behind ± stands {signs}",
    ]
    for dataset in sorted({task.cell.dataset for task in ledger}):
        entries = [entry for task, entry in ledger.items() if task.cell.dataset == dataset]
        networks = _networks(entries)
        contents = sorted({entry.config.fingerprint for entry in entries})
        versions = sorted({entry.versions for entry in entries})
        texts.append(f"{dataset}: {networks}; fingerprint {', '.join(contents)}; {'; '.join(versions)}.")
        if changed := sorted({changes(entry.config) for entry in entries} - {""}):
            texts[-1] += f" **Not by the recipes as they are: {plain('; '.join(changed))}.**"
        if len(contents) > 1:
            texts[-1] += " **These runs saw different images: their numbers cannot be compared.**"
        for which, starts in _starts(entries).items():
            texts[-1] += f" Second stages of {which} began from {starts} trainings of the first."
    return [Paragraph(text) for text in texts]


def _networks(entries: Iterable[Entry]) -> str:
    """The networks that were trained and, where recipes have different ones, by which."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        found.setdefault(entry.config.backbone, set()).add(entry.task.recipe)
    if len({frozenset(recipes) for recipes in found.values()}) == 1:
        return ", ".join(sorted(found))
    return ", ".join(
        f"{name} by {' and '.join(f'`{one}`' for one in sorted(recipes))}" for name, recipes in sorted(found.items())
    )


def _starts(entries: Iterable[Entry]) -> dict[str, int]:
    """Of a recipe and seed, how many first stages its second ones began from, where that is more than one."""
    found: dict[str, set[str]] = {}
    for entry in entries:
        if entry.config.start:
            found.setdefault(f"`{entry.task.recipe}-{entry.task.seed}`", set()).add(entry.config.start)
    return {which: len(starts) for which, starts in found.items() if len(starts) > 1}


def _standing(ledger: Mapping[Task, Entry], known: Known) -> list[Block]:
    """How many cells reach the paper, and how far every one of them is from it."""
    more = "".join(f" ({dataset}, with {LESS[dataset]}: minus {points:g} points more)" for dataset, points in ALLOWANCE.items())
    blocks: list[Block] = [
        Paragraph(
            "A cell reaches the paper where the means over seeds of H-Mean and Joint-Joint are both at least the paper's minus "
            f"its interval{more}."
        )
    ]
    of_paper = {recipe: own for recipe, cells in known.items() if (own := {c: cells[c] for c in published() if c in cells})}
    if not of_paper:
        return [*blocks, Paragraph("No cell of the paper's is in the ledger yet.")]
    there = [f"{what}, {sum(task in ledger for task in tasks)} of {len(tasks)}" for what, tasks in stages().items()]
    blocks += [
        Bullets(tuple(_reached(recipe, own) for recipe, own in of_paper.items())),
        Paragraph(f"Runs that `protograph reproduce` plans in all: {'; '.join(there)}."),
        Paragraph("Ours, the mean over seeds, less the paper's:"),
    ]
    fullest = sorted(of_paper.items(), key=lambda item: -len(item[1]))
    return blocks + [_beside_the_paper(recipe, own) for recipe, own in fullest]


def _reached(recipe: str, own: Mapping[Cell, Scores]) -> str:
    """How many of these cells reach the paper, how many narrowly, and how many would if no dataset were allowed more."""
    short, strictly = shortfalls(own), shortfalls(own, {})
    harder, easier = (
        shortfalls(own, {dataset: ALLOWANCE.get(dataset, 0.0) + points for dataset in PAPER_DATASETS})
        for points in (-NARROW, NARROW)
    )
    parts = [
        f"{dataset} {sum(cell not in short for cell in cells)} of {len(cells)}"
        for dataset in PAPER_DATASETS
        if (cells := [cell for cell in own if cell.dataset == dataset])
    ]
    reached = len(own) - len(short)
    said = f"{reached} of {len(own)} cells reach the paper ({100 * reached / len(own):.0f} %); {', '.join(parts)}"
    close = f"{len(harder) - len(short)} of these by less than {NARROW:g} points"
    said += f"; {close}, and {len(short) - len(easier)} of the others miss it by less"
    what = f" ({TRAINED[recipe]})" if recipe in TRAINED else ""
    return f"`{recipe}`{what}: {said}; {len(own) - len(strictly)} if none were allowed more"


def _beside_the_paper(recipe: str, own: Mapping[Cell, Scores]) -> Table:
    """A row for every cell: what each measure differs by, and whether that reaches the paper."""
    short = shortfalls(own)
    apart = {cell: {name: score.mean - published()[cell][name].mean for name, score in own[cell].items()} for cell in own}

    def shown(found: Mapping[str, float]) -> list[str]:
        return [f"{found[name]:+.2f}" for name in MEASURES]

    rows = [
        (str(cell), str(_count(own[cell])), *shown(apart[cell]), "no" if cell in short else "yes")
        for cell in sorted(own, key=_in_order)
    ]
    for dataset in PAPER_DATASETS:
        if of_dataset := [found for cell, found in apart.items() if cell.dataset == dataset]:
            for what, middle in (("mean", fmean), ("median", median)):
                middles = {name: middle([found[name] for found in of_dataset]) for name in MEASURES}
                rows.append((f"**{what} of {dataset}**", "", *(f"**{text}**" for text in shown(middles)), ""))
    aligned = False, True, *(True for _ in MEASURES), False
    return Table((f"by `{recipe}`", "seeds", *MEASURES.values(), "reaches"), tuple(rows), aligned)


def _falling_short(known: Known, notes: Notes) -> list[Block]:
    """The cells below what is allowed, with what is known about why."""
    short = {recipe: found for recipe, cells in known.items() if (found := shortfalls(cells))}
    if not short:
        return []
    blocks: list[Block] = [Heading(2, "Cells that fall short")]
    for dataset, points in notes.datasets.items():
        blocks += [Paragraph(f"What is known of {dataset}:"), Bullets(tuple(map(plain, points)))]
    cells = [cell for cell in published() if cell in notes.cells and any(cell in found for found in short.values())]
    if cells:  # said once, however many recipes leave them short
        said = tuple(f"**{cell}**: {plain(notes.cells[cell])}" for cell in cells)
        blocks += [Paragraph("What is known of single cells:"), Bullets(said)]
    for recipe, found in short.items():
        rows = [_short(cell, known[recipe][cell], found[cell], notes) for cell in sorted(found, key=_in_order)]
        lower = [f"{MEASURES[name]} below what is allowed by" for name in COUNTED]
        head = (f"by `{recipe}`", *(text for name in COUNTED for text in (MEASURES[name], "paper")), *lower, "why")
        blocks.append(Table(head, tuple(rows), (False, *(True for _ in COUNTED for _ in range(3)), False)))
    return blocks


def _short(cell: Cell, own: Scores, below: Mapping[str, float], notes: Notes) -> tuple[str, ...]:
    said = [text for name in COUNTED for text in (str(own[name]), str(published()[cell][name]))]
    lower = [f"{below[name]:.2f}" if name in below else "" for name in COUNTED]
    otherwise = f"as all of {cell.dataset}" if cell.dataset in notes.datasets else UNKNOWN
    why = "as said of it above" if cell in notes.cells else otherwise
    return (f"{cell}, {_seeds(own)}", *said, *lower, why)


def _in_order(cell: Cell) -> tuple[int, int]:
    return PAPER_DATASETS.index(cell.dataset), cell.shots


def _tried(trials: Trials) -> list[Block]:
    """What other settings brought on the validation classes, the best first."""
    if not trials:
        return []
    blocks: list[Block] = [Heading(2, "What was tried on the validation classes"), Paragraph(TRIED)]
    for title in dict.fromkeys(str(tried) for tried in trials):
        own = {tried: measures for tried, measures in trials.items() if str(tried) == title}
        there = [name for name in MEASURES if any(name in measures for measures in own.values())]
        rows = []
        for tried, measures in sorted(own.items(), key=lambda item: -item[1].get("h_mean", 0.0)):
            shown = [f"{measures[name]:.1f}" if name in measures else "" for name in there]
            what = plain(tried.changes or "as it is")
            rows.append((what, tried.recipe, tried.relations, str(tried.seed), str(tried.epoch), *shown))
        head = (title, "recipe", "relations", "seed", "epoch", *(MEASURES[name] for name in there))
        blocks.append(Table.of(head, rows, 3))
    return blocks


def _block(rows: Sequence[Row], known: Known) -> list[tuple[str, ...]]:
    """Each row of the paper's with ours, by every recipe, below it."""
    paper = {row.cell: row.measures for row in rows}
    best = {name: max(row.measures[name].mean for row in rows) for name in BOLD}
    ours = {recipe: {cell: cells[cell] for cell in paper if cell in cells} for recipe, cells in known.items()}
    bests = {recipe: _best(cells.values()) if len(cells) == len(paper) else {} for recipe, cells in ours.items()}
    lines = []
    for row in rows:
        texts = [_bold(str(measure), measure.mean == best.get(name)) for name, measure in row.measures.items()]
        lines.append((row.model, "published", *texts))
        for recipe, cells in ours.items():
            if row.cell in cells:
                lines.append(_own_row("", recipe, cells[row.cell], bests[recipe], row.measures))
    return lines


def _own_row(
    name: str, recipe: str, own: Scores, best: Mapping[str, float], paper: Mapping[str, Measure] | None = None
) -> tuple[str, ...]:
    texts = []
    for measure, score in own.items():
        text = _bold(str(score), score.mean == best.get(measure))
        texts.append(_marked(text, score, paper[measure]) if paper else text)
    return (name, f"here by `{recipe}`, {_seeds(own)}", *texts)


TRIED = (
    "Changes to a recipe and what they brought after the last epoch, on validation classes and images alone; the cells above "
    "are trained by the recipes as they are. `protograph compare RUN --out results/trials.csv` adds a run; of "
    "those without all six measures only these are known."
)
CONCLUDED = (
    "Each is checked on all cells that the paper's sentence is about, by Joint-Joint and H-Mean unless it names another "
    "measure; here, and in the same way on the paper's own numbers. It holds where it certainly does, holds not where it "
    "certainly does not, and is undecided in between."
)
HOW_CERTAIN = (
    "Behind a difference stands half of its 95 % interval. It comes from the test episodes, which are the same for all "
    "models but count as if each had its own, which is rather too wide; and from the spread between seeds.",
    "That spread is pooled over the cells of a dataset that are trained alike, though some of them may differ more than "
    "others; second stages that began from the same first one differ together. It is taken from the recipe that tells "
    "most of it, for the others and for the paper's numbers, which are of single runs, too. Marked *, none is known, and "
    "the interval is of the episodes alone.",
    "A comparison is certain where the interval leaves out 0 or, of what is said not to help or to be as good, a point.",
    "What is said of every comparison, or of the mean by each measure, is refuted by one, which has to be the more "
    "certain the more there are: it is certainly not so where the interval of a level divided by their number leaves it "
    "out.",
    "The last column says by how much the mean differences here exceed the paper's. Where its interval leaves out 0, the "
    "two disagree on how large the effect is, whatever the verdicts.",
    "Where our models stand beside published numbers, as GFSL models do beside few-shot ones, `strong` has the advantage of "
    "all that the others did not do.",
)
LAST = (
    "All numbers above are of the epoch that was best on the validation classes. These are few, so what each run has after "
    "its last epoch stands here."
)
LEARNED = (
    "The temperature of the relation's softmax and the scales of operators in the chosen epoch, all from 1. Of scales on the "
    "same rows only proportions count: what a novel class takes from relations beside its own examples is the scale of the "
    "relation (of its blocks sn and nn) beside that of identity-nn."
)
FEW_SHOT = (
    "5-way Novel-Novel on miniImageNet. Few-shot methods as the paper quotes them; below, models for the joint label space as "
    "it published them and as measured here. Theirs had 600 training images per class, ours 500; by `strong` ours were "
    "changed in more ways, and were looked at from both sides when tested."
)


def few_shot_table(known: Known) -> Table:
    """Novel-Novel on miniImageNet beside the few-shot methods that the paper quotes, and ours by every recipe."""
    by_recipe = {recipe: cells for recipe, cells in known.items() if any(_of_few_shot(cell) for cell in cells)}
    head = ["method", "kind", *(f"published, {k}-shot" for k in (1, 5))]
    head += [f"here by `{recipe}`, {k}-shot" for recipe in by_recipe for k in (1, 5)]
    best = {k: max(row.novel_novel[k].mean for row in few_shot_rows()) for k in (1, 5)}
    lines = []
    for row in few_shot_rows():
        shown = {k: str(paper) if paper.ci95 else f"{paper.mean:.2f}" for k, paper in row.novel_novel.items()}
        texts = [_bold(shown[k], paper.mean == best[k]) for k, paper in row.novel_novel.items()]
        for cells in by_recipe.values():
            for k, paper in row.novel_novel.items():
                own = cells.get(Cell("mini-imagenet", k, VARIANT_OF.get(row.model, "")))
                texts.append("" if own is None else _marked(str(own["novel_novel"]), own["novel_novel"], paper))
        lines.append((row.model, row.kind, *texts))
    return Table.of(head, lines, 2)


def _of_few_shot(cell: Cell) -> bool:
    return cell.dataset == "mini-imagenet" and any(VARIANT_OF.get(row.model) == cell.variant for row in few_shot_rows())


def _last_epochs(ledger: Mapping[Task, Entry]) -> list[Block]:
    """What the last epoch would have had instead of the one that validation chose."""
    trained = {task: own for task, own in ledger.items() if find_variant(task.cell.variant).objective != "none"}
    if not trained:
        return []
    rows = []
    for task, entry in sorted(trained.items()):
        texts = [str(each[name]) for name in COUNTED for each in (entry.measures, entry.last)]
        rows.append((str(task), str(entry.epoch), str(entry.last_epoch), *texts))
    head = ("run", "chosen", "last", *(f"{MEASURES[name]} of {which}" for name in COUNTED for which in ("chosen", "last")))
    table = Table.of(head, rows, 1)
    return [Heading(2, "The last epoch instead of the chosen one"), Paragraph(LAST), Details("Every run", (table,))]


def _learned(ledger: Mapping[Task, Entry]) -> list[Block]:
    """What training made of the temperatures and scales of operators, which tell whether relations are used."""
    rows = []
    for task, entry in sorted(ledger.items()):
        scales = {name.removeprefix(SCALE): value for name, value in entry.learned.items() if name.startswith(SCALE)}
        sharp = [value for name, value in entry.learned.items() if weighs_operators(name)]
        if sharp and find_variant(task.cell.variant).scales:
            weighed = ", ".join(f"{label} {value:.2f}" for label, value in scales.items())
            counted = (f"{entry.measures[name].mean:.2f}" for name in COUNTED)
            rows.append((str(task), ", ".join(f"{value:.2f}" for value in sharp), weighed, *counted))
    if not rows:
        return []
    head = ("run", "temperature", "scales", *(MEASURES[name] for name in COUNTED))
    table = Table(head, tuple(rows), (False, True, False, *(True for _ in COUNTED)))
    return [Heading(2, "What operators came to weigh"), Paragraph(LEARNED), Details("Every run of which it is known", (table,))]


def _study(known: Known) -> list[Block]:
    """What other side information is worth."""
    blocks: list[Block] = []
    between = best_spreads(known.values())
    for dataset in STUDY:
        cells = [cell for cell in table_cells("relations", (dataset,)) if any(cell in own for own in known.values())]
        if not any(cell.relations for cell in cells):
            continue
        rows, beside = [], []
        usual = replace(cells[0], relations=())
        pairs = [(other, name) for other in (usual, replace(usual, variant=WITHOUT)) for name in BOTH]
        for recipe, own in known.items():
            there = {cell: own[cell] for cell in cells if cell in own}
            best = _best(there.values()) if len(there) > 1 else {}
            for cell, measured in there.items():
                label = " and ".join(cell.relations) or STUDY_OWN[dataset]
                rows.append(_own_row(label, recipe, measured, best))
                found = [apart(own, between, cell, other, name) for other, name in pairs if cell != usual]
                if any(found):
                    beside.append((label, f"here by `{recipe}`", *("" if each is None else str(each) for each in found)))
        blocks.append(Heading(2, f"Other side information: {usual.dataset}, {usual.shots}-shot, {usual.variant}"))
        blocks.append(Table.of(HEAD, rows, 2))
        if beside:
            heads = [f"{MEASURES[name]} beside {STUDY_OWN[dataset] if other == usual else 'none'}" for other, name in pairs]
            blocks += [Paragraph(BESIDE), Table.of(("", "", *heads), beside, 2)]
    return blocks


def _others(known: Known) -> list[Block]:
    """Cells that the paper has no numbers for, such as the letters."""
    blocks: list[Block] = []
    beyond = {cell for cells in known.values() for cell in cells if cell not in published() and not cell.relations}
    order = {variant: place for place, variant in enumerate(MODEL_OF)}
    for dataset, shots in sorted({(cell.dataset, cell.shots) for cell in beyond}):
        rows = []
        for recipe, cells in known.items():
            block = {
                cell: own for cell, own in cells.items() if cell in beyond and (cell.dataset, cell.shots) == (dataset, shots)
            }
            for cell in sorted(block, key=lambda cell: (order.get(cell.variant, len(order)), cell.variant)):
                rows.append(_own_row(cell.variant, recipe, block[cell], _best(block.values())))
        blocks += [Heading(2, f"{dataset}, {shots}-shot: not in the paper's tables"), Table.of(HEAD, rows, 2)]
    return blocks


def _conclusions(findings: list[Finding]) -> list[Block]:
    """What the conclusions come to, by every recipe."""
    if not findings:
        return [Paragraph("No cell of the paper's is in the ledger yet.")]
    blocks: list[Block] = [Paragraph(CONCLUDED), Bullets(HOW_CERTAIN)]
    for recipe in dict.fromkeys(finding.recipe for finding in findings):
        own = [finding for finding in findings if finding.recipe == recipe]
        judged = [finding for finding in own if finding.here.verdict != MISSING]
        if judged:
            blocks.append(_verdicts(recipe, judged))
        if lacking := len(own) - len(judged):
            blocks.append(Paragraph(f"By `{recipe}`, cells are missing for {lacking} of {len(own)} conclusions."))
    return blocks


def _verdicts(recipe: str, findings: list[Finding]) -> Table:
    """One row per conclusion: the verdict by a recipe's cells and by the paper's own numbers, and what each rests on."""
    rows = []
    for finding in findings:
        here, paper = finding.here, finding.paper
        sure, against = here.signs.count(True), here.signs.count(False)
        counts = f"{here.as_claimed} of {len(here.made)}", str(sure), str(against)
        means = here.mean, paper.verdict, paper.mean, in_words(finding.gaps)
        rows.append((finding.conclusion.claim, f"**{here.verdict}**", *counts, *means))
    counted = "as claimed", "certainly", "certainly not"
    head = (f"here by `{recipe}`", "verdict", *counted, "mean", "the paper's numbers", "mean", "here less the paper's")
    return Table(head, tuple(rows), (False, False, True, True, True, False, False, False, False))


def _findings(findings: list[Finding]) -> list[Block]:
    """Every comparison behind the conclusions."""
    shown = [finding for finding in findings if len(finding.here.made) > finding.here.missing]
    if not shown:
        return []
    blocks: list[Block] = [Heading(2, "The paper's conclusions, comparison by comparison")]
    for finding in sorted(shown, key=lambda finding: finding.here.verdict == MISSING):  # those without a verdict last
        title = f"{finding.here.verdict.capitalize()}: {finding.conclusion.claim} (`{finding.recipe}`)"
        blocks.append(Details(title, _finding(finding)))
    return blocks


def _finding(finding: Finding) -> tuple[Block, ...]:
    conclusion = finding.conclusion
    rows = zip(conclusion.comparisons, _said(finding.here), _said(finding.paper), strict=True)
    return (
        Paragraph(f"The paper: {conclusion.wording}. Read as: {READINGS[conclusion.reading]}."),
        Bullets((f"here: {finding.here}", f"the paper's numbers: {finding.paper}")),
        Table(
            ("comparison", "here", "", "the paper's numbers", ""),
            tuple((str(comparison), *ours, *theirs) for comparison, ours, theirs in rows),
            (False, True, False, True, False),
        ),
    )


def _said(outcome: Outcome) -> list[tuple[str, str]]:
    """Of every comparison, the difference and whether it is as claimed, and certainly so."""
    signs = iter(outcome.signs)
    said = []
    for comparison, found in zip(outcome.conclusion.comparisons, outcome.differences, strict=True):
        if found is None:
            said.append(("", "cells missing"))
        else:
            agrees = "as claimed" if comparison.agrees(found) else "not as claimed"
            said.append((str(found), agrees if next(signs) is None else f"{agrees}, certain"))
    return said


def _best(rows: Iterable[Scores]) -> dict[str, float]:
    rows = list(rows)
    return {name: max(own[name].mean for own in rows) for name in BOLD}


def _count(own: Scores) -> int:
    return len(next(iter(own.values())).values)


def _seeds(own: Scores) -> str:
    return "1 seed" if _count(own) == 1 else f"{_count(own)} seeds"


def _marked(text: str, own: Score, paper: Measure) -> str:
    return f"{text} {MARKS[mark(own.mean, paper)]}"


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text
