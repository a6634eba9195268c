"""The numbers the paper published, and which variant each of its models is."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from protograph.evaluation.metrics import PAPER_MEASURES, Measure, Measures

PAPER_DATASETS = ("mini-imagenet", "cub")
VARIANT_OF = {
    "PN+": "pn+",
    "DFSLwoF": "dfslwof-att",  # the paper's is the attention generator
    "GcGPN": "gcgpn",
    "GcGPN-aux": "gcgpn-aux",
    "GcGPN-split": "gcgpn-split",
    "GcGPN-aux-split": "gcgpn-aux-split",
    "GcGPN-cos-aux": "gcgpn-cos-aux",
    "GcGPN-aux-fc": "gcgpn-aux-fc",
    "GcGPN-aux-sn": "gcgpn-aux-sn",
    "GcGPN-cos": "gcgpn-cos",
    "GcGPN-l2": "gcgpn-l2",
    "GcGPN-l2-aux": "gcgpn-l2-aux",
}
# The few-shot methods of the paper's comparison. The numbers that it quotes for MAML are those of its first-order form.
FEW_SHOT_VARIANT_OF = {
    "Matching Network": "matching-networks",
    "PN": "prototypical-networks",
    "MAML": "maml-first-order",
    "Meta-LSTM": "meta-lstm",
    "Meta-SGD": "meta-sgd",
    "REPTILE": "reptile",
    "VERSA": "versa",
    "CAVIA": "cavia",
    "Relation Net": "relation-network",
    "Parameter prediction": "parameter-prediction",
}
UNPUBLISHED = {"MAML, second order": "maml"}  # beside them, measured here alone
MODEL_OF = {variant: model for model, variant in VARIANT_OF.items()}
TITLES = {
    "mIN": "miniImageNet",
    "CUB": "CUB",
    "opdist_mIN": "miniImageNet, relations computed from prototypes",
    "opdist_CUB": "CUB, relations computed from prototypes",
}


@dataclass(frozen=True, order=True)
class Cell:
    """One row of a table: a dataset, K and a variant.

    Attributes:
        dataset: The dataset's name.
        shots: K, the number of support images per novel class.
        variant: The variant's name.
        relations: The relations, where they are not the dataset's default ones.

    """

    dataset: str
    shots: int
    variant: str
    relations: tuple[str, ...] = ()

    def __str__(self) -> str:
        suffix = f" with {' and '.join(self.relations)}" if self.relations else ""
        return f"{self.dataset} {self.shots}-shot {self.variant}{suffix}"


@dataclass(frozen=True)
class PublishedRow:
    """A row of the paper's GFSL tables, with its measures in per cent."""

    table: str
    model: str
    cell: Cell
    measures: Measures


@dataclass(frozen=True)
class FewShotRow:
    """A row of the paper's few-shot comparison on miniImageNet.

    Attributes:
        model: The method's name in the paper.
        kind: "FSL", or "GFSL" for a model of the joint label space.
        novel_novel: Novel-Novel by K. An interval of 0 was not published.
        source: Where the paper has the number from.

    """

    model: str
    kind: str
    novel_novel: dict[int, Measure]
    source: str


@cache
def gfsl_rows() -> tuple[PublishedRow, ...]:
    """Return the rows of the GFSL tables in the paper's order; the supplement repeats four cells in tables of its own."""
    return tuple(
        PublishedRow(
            line["table"],
            line["model"],
            Cell(line["dataset"], int(line["shots"]), VARIANT_OF[line["model"]]),
            {name: Measure(float(line[name]), float(line[f"{name}_ci95"])) for name in PAPER_MEASURES},
        )
        for line in _lines("gfsl.csv")
    )


@cache
def published() -> dict[Cell, Measures]:
    """Return the measures of the 44 cells, in the order of the tables."""
    return {row.cell: row.measures for row in gfsl_rows()}


@cache
def few_shot_rows() -> tuple[FewShotRow, ...]:
    """Return the rows of the few-shot comparison."""
    return tuple(
        FewShotRow(
            line["model"],
            line["kind"],
            {k: Measure(float(line[f"novel_novel_{k}shot"]), float(line[f"ci95_{k}shot"] or 0)) for k in (1, 5)},
            line["source"],
        )
        for line in _lines("fsl.csv")
    )


def _lines(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
