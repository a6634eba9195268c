"""RESULTS.md from the ledger: the paper's numbers and ours side by side, what falls short, what the conclusions come to."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from protograph.config import RECIPES
from protograph.evaluation import MEASURES, Measure
from protograph.files import write_atomically
from protograph.paper.conclusions import Finding, agrees, conclusions, summary
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, Scores, scores
from protograph.paper.published import MODEL_OF, TITLES, Cell, Row, gfsl_rows, published

COUNTED = ("h_mean", "joint_joint")  # what a cell is judged by
BOLD = ("joint_joint", "h_mean")  # what the paper prints in bold
ALLOWANCE = {"mini-imagenet": 1.5}  # it has 100 training pictures per class less than the paper had
MARKS = {"above": "▲", "within": "●", "below": "▼"}
HEAD = ("| | | " + " | ".join(MEASURES.values()) + " |", "|---|---|" + "---:|" * len(MEASURES))


def table_path(results: Path) -> Path:
    """Beside the ledger."""
    return results.resolve().parent / "RESULTS.md"


def write_table(results: Path, ledger: Mapping[Task, Entry]) -> Path:
    """Write RESULTS.md; where it is."""
    path = table_path(results)
    write_atomically(path, "\n".join([*render(ledger), ""]).encode())
    return path


def mark(ours: float, paper: Measure) -> str:
    """Where a number lies: 'above', 'within' or 'below' the paper's interval."""
    if abs(ours - paper.mean) <= paper.ci95:
        return "within"
    return "above" if ours > paper.mean else "below"


def shortfalls(known: Mapping[Cell, Scores]) -> dict[Cell, dict[str, float]]:
    """Of the cells that fall short, by how much each measure lies below what is allowed: the paper's minus its interval."""
    found: dict[Cell, dict[str, float]] = {}
    for cell, paper in published().items():
        for name in COUNTED if cell in known else ():
            least = paper[name].mean - paper[name].ci95 - ALLOWANCE.get(cell.dataset, 0.0)
            if (missing := least - known[cell][name].mean) > 0:
                found.setdefault(cell, {})[name] = missing
    return found


def render(ledger: Mapping[Task, Entry]) -> list[str]:
    """The lines of RESULTS.md."""
    by_recipe = {name: scores(ledger, name) for name in RECIPES}
    known = {name: cells for name, cells in by_recipe.items() if cells}
    lines = ["# Results", "", *_introduction(ledger, known)]
    lines += ["", "## Where we stand", "", *_standing(known)]
    lines += ["", "## The paper's conclusions", "", *_conclusions(conclusions(ledger))]
    for table, title in TITLES.items():
        for shots in sorted({row.cell.shots for row in gfsl_rows() if row.table == table}):
            rows = [row for row in gfsl_rows() if row.table == table and row.cell.shots == shots]
            lines += ["", f"## {title}, {shots}-shot", "", *HEAD, *_block(rows, known)]
    return lines + _others(known)


def _introduction(ledger: Mapping[Task, Entry], known: Mapping[str, Mapping[Cell, Scores]]) -> list[str]:
    everywhere = sum(any(cell in cells for cells in known.values()) for cell in published())
    lines = [
        "Written by `protograph reproduce` from the ledger in `results/`; `protograph reproduce --table-only` writes it again. "
        "No number in it is typed by hand.",
        "",
        f"The ledger has {everywhere} of the paper's {len(published())} cells"
        + "".join(f"; {sum(cell in published() for cell in cells)} by the `{name}` recipe" for name, cells in known.items())
        + f". It holds {len(ledger)} runs.",
        "",
        "Accuracies in per cent over 600 test episodes, which are the same for every model. Behind ± stands the 95 % interval "
        "over episodes in the paper's rows and where we have one seed, and the standard deviation between seeds where we have "
        f"several. {MARKS['above']} above, {MARKS['within']} within, {MARKS['below']} below the paper's interval. "
        "Bold: the best of its block, of the paper's rows and of ours by each recipe.",
    ]
    for dataset in sorted({task.cell.dataset for task in ledger}):
        entries = [entry for task, entry in ledger.items() if task.cell.dataset == dataset]
        contents, versions = (sorted({getattr(entry, name) for entry in entries}) for name in ("fingerprint", "versions"))
        lines += ["", f"{dataset}: fingerprint {', '.join(contents)}; {'; '.join(versions)}."]
        if len(contents) > 1:
            lines[-1] += " **These runs saw different pictures: their numbers cannot be compared.**"
    return lines


def _standing(known: Mapping[str, Mapping[Cell, Scores]]) -> list[str]:
    lines = [
        "A cell falls short where the mean over seeds of H-Mean or Joint-Joint lies below the paper's minus its interval"
        + "".join(f" ({dataset}: {points:g} points more are allowed)" for dataset, points in ALLOWANCE.items())
        + ".",
    ]
    if not any(cell in published() for cells in known.values() for cell in cells):
        return [*lines, "", "No cell of the paper's is in the ledger yet."]
    for recipe, cells in known.items():
        count, short = sum(cell in published() for cell in cells), shortfalls(cells)
        if not count:
            continue
        share = 100 * (count - len(short)) / count
        lines += ["", f"`{recipe}`: {count - len(short)} of {count} cells reach the paper ({share:.0f} %)."]
        lines += ["", "These fall short:", ""] if short else []
        for cell, measures in short.items():
            said = [
                f"{MEASURES[name]} {cells[cell][name]}, paper {published()[cell][name]}, {missing:.2f} below what is allowed"
                for name, missing in measures.items()
            ]
            lines.append(f"- {cell} ({_seeds(cells[cell])}): {'; '.join(said)}")
    return lines


def _block(rows: Sequence[Row], known: Mapping[str, Mapping[Cell, Scores]]) -> list[str]:
    """Each row of the paper's with ours, by every recipe, below it."""
    paper = {row.cell: row.measures for row in rows}
    best = {name: max(row.measures[name].mean for row in rows) for name in BOLD}
    ours = {recipe: {cell: cells[cell] for cell in paper if cell in cells} for recipe, cells in known.items()}
    bests = {recipe: _best(cells.values()) for recipe, cells in ours.items() if cells}
    lines = []
    for row in rows:
        texts = [_bold(str(measure), measure.mean == best.get(name)) for name, measure in row.measures.items()]
        lines.append(f"| {row.model} | paper | {' | '.join(texts)} |")
        for recipe, cells in ours.items():
            if row.cell in cells:
                lines.append(_own_row("", recipe, cells[row.cell], bests[recipe], row.measures))
    return lines


def _own_row(name: str, recipe: str, own: Scores, best: Mapping[str, float], paper: Mapping[str, Measure] | None = None) -> str:
    texts = []
    for measure, score in own.items():
        text = _bold(str(score), score.mean == best.get(measure))
        texts.append(f"{text} {MARKS[mark(score.mean, paper[measure])]}" if paper else text)
    return f"| {name} | `{recipe}`, {_seeds(own)} | {' | '.join(texts)} |"


def _others(known: Mapping[str, Mapping[Cell, Scores]]) -> list[str]:
    """Cells that the paper has no numbers for, such as the letters."""
    lines: list[str] = []
    beyond = {cell for cells in known.values() for cell in cells if cell not in published()}
    for dataset, shots in sorted({(cell.dataset, cell.shots) for cell in beyond}):
        lines += ["", f"## {dataset}, {shots}-shot: not in the paper's tables", "", *HEAD]
        for recipe, cells in known.items():
            block = {
                cell: own for cell, own in cells.items() if cell in beyond and (cell.dataset, cell.shots) == (dataset, shots)
            }
            order = {variant: place for place, variant in enumerate(MODEL_OF)}
            for cell in sorted(block, key=lambda cell: (order.get(cell.variant, len(order)), cell.variant)):
                lines.append(_own_row(cell.variant, recipe, block[cell], _best(block.values())))
    return lines


def _conclusions(findings: list[Finding]) -> list[str]:
    if not findings:
        return ["No cell of the paper's is in the ledger yet."]
    lines = [
        "A conclusion holds where every comparison comes out as claimed; where the paper says 'generally', most of them. "
        "Behind a difference stands half of its 95 % interval: from the seeds where both sides have several, otherwise "
        "(marked *) from the intervals over test episodes alone, which know nothing of how seeds differ. It is certain where "
        "the interval leaves out 0.",
        "",
        *(f"- {line}" for line in summary(findings)),
    ]
    for finding in findings:
        lines += ["", f"### {finding.verdict.capitalize()}: {finding.conclusion.claim} (`{finding.recipe}`)", ""]
        lines += ["| comparison | here | | the paper's numbers |", "|---|---:|---|---:|"]
        rows = zip(finding.conclusion.comparisons, finding.differences, finding.paper, strict=True)
        for comparison, found, theirs in rows:
            if found is None:
                here, said = "", "not enough cells yet"
            else:
                here = f"{found}{'' if found.by_seeds else ' *'}"
                said = ("as claimed" if agrees(comparison, found) else "not as claimed") + (
                    ", certain" if found.certain else ""
                )
            lines.append(f"| {comparison} | {here} | {said} | {'' if theirs is None else theirs} |")
    return lines


def _best(rows: Iterable[Scores]) -> dict[str, float]:
    rows = list(rows)
    return {name: max(own[name].mean for own in rows) for name in BOLD}


def _seeds(own: Scores) -> str:
    count = len(next(iter(own.values())).values)
    return "1 seed" if count == 1 else f"{count} seeds"


def _bold(text: str, bold: bool) -> str:
    return f"**{text}**" if bold else text
