"""The page on a run: its measures, learning curves, confused classes, relations behind answers, and configuration."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from protograph.data import Dataset
from protograph.evaluation.confusions import Answers, strongest
from protograph.evaluation.metrics import measure_titles
from protograph.report.document import Block, Figure, Heading, Paragraph, Table, plain_text
from protograph.report.figures import curves, drawn
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run

CONFUSED, RELATED, NEIGHBOURS = 15, 12, 4  # rows of the tables, and related classes in a row


def run_document(
    run: Run, measured: Mapping[str, Any], dataset: Dataset, answers: Answers | None, related: list[str]
) -> list[Block]:
    """Return the blocks of the page on a run.

    Args:
        run: The run.
        measured: The contents of its measures.json.
        dataset: The dataset it was trained on.
        answers: The answers of its model in test episodes; None of a few-shot method.
        related: The labels of the operators that relate a class to others; empty if the variant has none.
    """
    config = run.config
    blocks: list[Block] = [
        Heading(1, f"{config.variant} on {plain_text(config.dataset)}, {config.shots}-shot"),
        Paragraph(
            f"Trained by the `{plain_text(config.recipe.name)}` recipe from seed {config.seed}; the weights are those of epoch "
            f"{measured['epoch']}, the best on validation classes. Accuracies in per cent with their 95 % intervals over 600 "
            f"test episodes of {dataset.seen} seen and {config.recipe.ways} novel classes."
        ),
        Heading(2, "Measures"),
        measures_block(measured),
        Heading(2, "Learning"),
        *_curves(run),
        *([] if answers is None else _answers(answers, dataset, related)),
        Heading(2, "Configuration"),
        _configuration(config, measured),
    ]
    return blocks


def _answers(answers: Answers, dataset: Dataset, related: list[str]) -> list[Block]:
    return [
        Heading(2, "Seen and novel"),
        *_sides(answers),
        Heading(2, "Most confused"),
        _confused(answers, dataset),
        Heading(2, "Relations behind the answers"),
        *(_relations(answers, dataset, related) if related else [Paragraph("This variant relates no class to another.")]),
    ]


def measures_block(measured: Mapping[str, Any]) -> Table:
    """Return the table of the measures of a run, from the contents of its measures.json."""
    rows = {f"best epoch ({measured['epoch']})": measured["measures"]}
    if balanced := measured.get("balanced"):
        rows[f"the same with bias {balanced['bias']:+.2f} on novel classes"] = balanced["measures"]
    if last := measured.get("last_epoch"):
        rows[f"last epoch ({last['epoch']})"] = last["measures"]
    for statistics, other in measured.get("other_statistics", {}).items():
        rows[f"best epoch, batch norm by {statistics}"] = other["measures"]
    titles = measure_titles([measured["measures"]])
    texts = [
        (name, *(f"{of['mean']:.2f} ± {of['ci95']:.2f}" if (of := measures.get(key)) else "" for key in titles))
        for name, measures in rows.items()
    ]
    return Table.of(("", *titles.values()), texts)


def _curves(run: Run) -> list[Block]:
    history = run.history
    if not history:
        return [Paragraph("Nothing was trained.")]
    measure = "H-Mean" if "h_mean" in history[-1]["validation"] else "Novel-Novel"
    captions = "Training loss by epoch.", f"{measure} in validation episodes by epoch, with its 95 % interval."
    figures = curves({run.config.variant: history})
    return [Figure(drawn(figure, "svg"), "svg+xml", text) for figure, text in zip(figures, captions, strict=True)]


def _sides(answers: Answers) -> list[Block]:
    rows = []
    for label, seen in (("seen", True), ("novel", False)):
        total = sum(answers.sides[seen, answer] for answer in (True, False))
        parts = [answers.sides[seen, True], answers.sides[seen, False], answers.right[seen]]
        rows.append((f"{label} ({total:,})", *(_percent(part, total) for part in parts)))
    text = f"How queries of seen and of novel classes were answered in {answers.episodes} test episodes."
    return [Paragraph(text), Table.of(("queries", "as seen", "as novel", "right"), rows)]


def _confused(answers: Answers, dataset: Dataset) -> Table:
    of_class = {true: sum(n for (first, _), n in answers.pairs.items() if first == true) for true, _ in answers.pairs}
    rows = [
        (_named(dataset, true), _named(dataset, answer), f"{times:,}", _percent(times, of_class[true]))
        for (true, answer), times in answers.confused(CONFUSED)
    ]
    return Table.of(("queries of", "answered as", "times", "of its queries"), rows, 2)


def _relations(answers: Answers, dataset: Dataset, related: list[str]) -> list[Block]:
    blocks: list[Block] = [
        Paragraph(
            "The most frequent answers to queries of novel classes, with the classes that contributed most to the prototype "
            "that won and, for wrong answers, to the prototype of the true class. A share is the length of the contribution of "
            f"a class through {', '.join(map(plain_text, related))} and the auxiliary operators, if the variant has any, "
            "divided by the lengths of all contributions. Shares are means over these queries."
        )
    ]

    def contributions(shares: Tensor, class_id: int) -> str:
        neighbours = strongest(shares, class_id, NEIGHBOURS)
        named = [
            ("itself", float(shares[class_id])),
            *((plain_text(dataset.title(index)), share) for index, share in neighbours),
        ]
        return ", ".join(f"{name} {100 * share:.1f}\u00a0%" for name, share in named)

    right = [
        (_named(dataset, pair[0]), f"{answers.pairs[pair]:,}", contributions(answers.winner(pair), pair[1]))
        for pair in answers.commonest(True, RELATED)
    ]
    wrong = [
        (
            *(_named(dataset, class_id) for class_id in pair),
            f"{answers.pairs[pair]:,}",
            contributions(answers.winner(pair), pair[1]),
            contributions(answers.loser(pair), pair[0]),
        )
        for pair in answers.commonest(False, RELATED)
    ]
    for title, head, rows in (
        ("Right answers", ("novel class", "times", "contributions"), right),
        (
            "Wrong answers",
            ("novel class", "answered as", "times", "contributions to the answer", "contributions to the true class"),
            wrong,
        ),
    ):
        right_columns = tuple(text == "times" for text in head)
        blocks += [Heading(3, title), Table(head, tuple(rows), right_columns) if rows else Paragraph("None.")]
    return blocks


def _configuration(config: RunConfig, measured: Mapping[str, Any]) -> Table:
    values = {name: value for name, value in config.to_dict().items() if name not in ("recipe", "plugins")}
    recipe = {f"recipe: {name}": value for name, value in config.to_dict()["recipe"].items()}
    times = {name.replace("_", " "): f"{measured[name]:g}" for name in ("training_seconds",) if name in measured}
    rows = [(name.replace("_", " "), _value(value)) for name, value in {**values, **recipe, **times}.items()]
    return Table.of(("setting", "value"), rows, 2)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) if any(map(str, value)) else "none"
    return plain_text(str(value)) or "none"


def _named(dataset: Dataset, class_id: int) -> str:
    novel = "" if class_id < dataset.seen else " (novel)"
    return f"{plain_text(dataset.title(class_id))}{novel}"


def _percent(part: int, total: int) -> str:
    return f"{100 * part / max(total, 1):.1f} %"
