"""The paper's conclusions as data: each lists the comparisons of cells that it stands for.

The comparisons follow the paper's wording, not its numbers: they cover all cells that the sentence is about, by the measure
it names or by the two that the paper argues with, Joint-Joint and H-Mean.
"""

from dataclasses import dataclass
from typing import Literal

from protograph.evaluation.metrics import PAPER_MEASURES
from protograph.paper.grid import FIGURE_SHOTS, FIGURE_VARIANTS, SHOTS
from protograph.paper.published import PAPER_DATASETS, VARIANT_OF, Cell, few_shot_rows
from protograph.paper.statistics import LEVEL, Difference, Score, Side
from protograph.variants import find_variant

KEY_MEASURES = ("joint_joint", "h_mean")
SIDE_INFORMATION = ("gcgpn", "gcgpn-aux", "gcgpn-split", "gcgpn-aux-split")
CUB_ABLATIONS = ("gcgpn-aux-fc", "gcgpn-aux-sn")  # they use side information too, and were published for CUB alone
COMPUTED = ("gcgpn-cos-aux", "gcgpn-l2-aux")
WITHOUT_RELATIONS = "gcgpn-cos-aux"  # the reference for what side information brings
MARGIN = 1.0  # points: a difference below counts as no gain, and as equally good

Claim = Literal["above", "not above", "not below", "alike"]
Reading = Literal["every", "most", "mean"]
READINGS: dict[Reading, str] = {
    "every": "in every comparison",
    "most": "in more than half of the comparisons",
    "mean": "in the mean over the comparisons",
}
SIGNS: dict[Claim, str] = {
    "above": ">",
    "not above": "less than a point above",
    "not below": "less than a point below",
    "alike": "within a point of",
}


@dataclass(frozen=True)
class Comparison:
    """A claim about the difference of two sides.

    Attributes:
        left: The side that the claim is about.
        right: The side it is compared with.
        claim: "above": left is above right. "not above" and "not below": it is not so by a point or more. "alike": neither.

    """

    left: Side
    right: Side
    claim: Claim = "above"

    def agrees(self, difference: Difference) -> bool:
        """Return whether a difference is as claimed, certain or not."""
        return self._gap(difference) > 0

    def sign(self, difference: Difference, level: float = LEVEL) -> bool | None:
        """Return whether a difference is certainly as claimed (True), certainly not (False), or uncertain (None)."""
        return self.agrees(difference) if abs(self._gap(difference)) > difference.half(level) else None

    def _gap(self, difference: Difference) -> float:
        mean = difference.mean
        gaps: dict[Claim, float] = {
            "above": mean, "not above": MARGIN - mean, "not below": MARGIN + mean, "alike": MARGIN - abs(mean),
        }  # fmt: skip
        return gaps[self.claim]

    @property
    def quantity(self) -> str:
        """The measure that is compared, or the difference of measures."""
        left, right = self.left, self.right
        if left.measure == right.measure:
            return PAPER_MEASURES[left.measure]
        return f"{left.factor:g} x {PAPER_MEASURES[left.measure]} minus {PAPER_MEASURES[right.measure]}"

    def __str__(self) -> str:
        left, right = self.left, self.right
        if left.measure != right.measure:
            return f"{left.cell}: {left.factor:g} x {PAPER_MEASURES[left.measure]} > {PAPER_MEASURES[right.measure]}"
        prefix = f"{left.cell.dataset} {left.cell.shots}-shot {PAPER_MEASURES[left.measure]}"
        return f"{prefix}: {left.cell.variant} {SIGNS[self.claim]} {right.name or right.cell.variant}"


@dataclass(frozen=True)
class Conclusion:
    """One of the paper's conclusions.

    Attributes:
        claim: The conclusion in short.
        wording: How the paper puts it.
        comparisons: The comparisons that it stands for.
        reading: How many of the comparisons have to be true.

    """

    claim: str
    wording: str
    comparisons: tuple[Comparison, ...]
    reading: Reading = "every"


def _pairs(
    pairs: list[tuple[str, str]],
    datasets: tuple[str, ...] = PAPER_DATASETS,
    shots: tuple[int, ...] = SHOTS,
    measures: tuple[str, ...] = KEY_MEASURES,
    claim: Claim = "above",
) -> tuple[Comparison, ...]:
    """Compare the first variant of each pair with the second on every dataset, K and measure."""
    return tuple(
        Comparison(Side(Cell(dataset, k, left), measure), Side(Cell(dataset, k, right), measure), claim)
        for dataset in datasets
        for k in shots
        for left, right in pairs
        for measure in measures
    )


def _collapse() -> tuple[Comparison, ...]:
    """Compare half of PN+'s Novel-Novel with its Novel-Joint."""
    cells = [Cell(dataset, k, "pn+") for dataset in PAPER_DATASETS for k in SHOTS]
    return tuple(Comparison(Side(cell, "novel_novel", 0.5), Side(cell, "novel_joint")) for cell in cells)


def _few_shot() -> tuple[Comparison, ...]:
    """Compare every model of the joint label space in the paper's table with the best few-shot method quoted for that K."""
    comparisons = []
    for k in SHOTS:
        best = max((row for row in few_shot_rows() if row.kind == "FSL"), key=lambda row: row.novel_novel[k].mean)
        quoted = best.novel_novel[k]
        for row in few_shot_rows():
            if row.kind == "GFSL" and find_variant(VARIANT_OF[row.model]).objective != "few-shot":
                cell = Cell("mini-imagenet", k, VARIANT_OF[row.model])
                right = Side(cell, "novel_novel", quoted=Score((quoted.mean,), quoted.ci95), name=f"{best.model}, as published")
                comparisons.append(Comparison(Side(cell, "novel_novel"), right))
    return tuple(comparisons)


def _against(variants: tuple[str, ...], reference: str) -> list[tuple[str, str]]:
    return [(variant, reference) for variant in variants]


CONCLUSIONS = (
    Conclusion(
        "side information is better than the cosine of prototypes on CUB",
        "side information has a clear effect against GcGPN-cos-aux, of around 3 %",
        _pairs(_against((*SIDE_INFORMATION, *CUB_ABLATIONS), WITHOUT_RELATIONS), ("cub",)),
        "mean",
    ),
    Conclusion(
        "side information is better than the cosine of prototypes on miniImageNet",
        "it does not say so explicitly of this dataset; checked in the same way as on CUB",
        _pairs(_against(SIDE_INFORMATION, WITHOUT_RELATIONS), ("mini-imagenet",)),
        "mean",
    ),
    Conclusion(
        "the auxiliary operators help in addition to side information",
        "GcGPN gains by them on miniImageNet at both K, and improvements are observed on CUB",
        _pairs([("gcgpn-aux", "gcgpn"), ("gcgpn-aux-split", "gcgpn-split")]),
    ),
    Conclusion(
        "the auxiliary operators help in addition to relations computed from prototypes",
        "they increase performance overall",
        _pairs([("gcgpn-cos-aux", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-l2")]),
        "mean",
    ),
    Conclusion(
        "splitting the operator helps on miniImageNet",
        "GcGPN gains by it at both K",
        _pairs([("gcgpn-split", "gcgpn"), ("gcgpn-aux-split", "gcgpn-aux")], ("mini-imagenet",)),
    ),
    Conclusion(
        "splitting the operator does not help on CUB",
        "unlike on miniImageNet it brings no benefit (taken as: less than a point)",
        _pairs([("gcgpn-split", "gcgpn"), ("gcgpn-aux-split", "gcgpn-aux")], ("cub",), claim="not above"),
    ),
    Conclusion(
        "full transforms discriminate better on CUB at one shot",
        "more capacity behind the convolution improves the discriminative power in the 1-shot task",
        _pairs([("gcgpn-aux-fc", "gcgpn-aux")], ("cub",), (1,)),
    ),
    Conclusion(
        "l2 distance is slightly better than cosine",
        "generally, L2 seems to have a slight advantage",
        _pairs([("gcgpn-l2", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-cos-aux")]),
        "most",
    ),
    Conclusion(
        "PN+ collapses: Novel-Joint is below half of Novel-Novel",
        "its accuracy on novel queries drops drastically from the novel to the joint label space (taken as: to less than half)",
        _collapse(),
    ),
    Conclusion(
        "DFSLwoF keeps an edge over relations computed from prototypes on miniImageNet",
        "it keeps an edge over GcGPN-cos-aux and GcGPN-l2-aux",
        _pairs([("dfslwof-att", variant) for variant in COMPUTED], ("mini-imagenet",)),
    ),
    Conclusion(
        "relations computed from prototypes are better than DFSLwoF on CUB",
        "GcGPN-cos-aux and GcGPN-l2-aux outperform DFSLwoF by Joint-Joint and H-Mean",
        _pairs(_against(COMPUTED, "dfslwof-att"), ("cub",)),
    ),
    Conclusion(
        "every GcGPN with side information is better than DFSLwoF on CUB",
        "already the simplest one outperforms the baselines, at both K and by both measures",
        _pairs(_against((*SIDE_INFORMATION, *CUB_ABLATIONS), "dfslwof-att"), ("cub",)),
    ),
    Conclusion(
        "the gain over DFSLwoF on CUB comes from Novel-Joint",
        "the improvements stem from a significant increase of Novel-Joint",
        _pairs(_against((*SIDE_INFORMATION, *CUB_ABLATIONS), "dfslwof-att"), ("cub",), measures=("novel_joint",)),
    ),
    Conclusion(
        "the gain over DFSLwoF on CUB leaves Seen-Joint unchanged",
        "Seen-Joint remains comparable with DFSLwoF's (taken as: within a point)",
        _pairs(_against((*SIDE_INFORMATION, *CUB_ABLATIONS), "dfslwof-att"), ("cub",), measures=("seen_joint",), claim="alike"),
    ),
    Conclusion(
        "GcGPN is better than DFSLwoF on CUB at every K",
        "its variants are consistently above it in the figure of Joint-Joint against K",
        _pairs(
            [(variant, "dfslwof-att") for variant in FIGURE_VARIANTS if variant != "dfslwof-att"],
            ("cub",),
            FIGURE_SHOTS,
            ("joint_joint",),
        ),
    ),
    Conclusion(
        "GcGPN-aux-split is better than DFSLwoF on miniImageNet at one shot",
        "the best variant achieves state-of-the-art Joint-Joint and H-Mean in this task",
        _pairs([("gcgpn-aux-split", "dfslwof-att")], ("mini-imagenet",), (1,)),
    ),
    Conclusion(
        "GcGPN-aux-split is as good as DFSLwoF on miniImageNet at five shots",
        "it is competitive with DFSLwoF on the 5-shot task (taken as: less than a point below)",
        _pairs([("gcgpn-aux-split", "dfslwof-att")], ("mini-imagenet",), (5,), claim="not below"),
    ),
    Conclusion(
        "relations among all classes are better than relations from seen to novel classes alone",
        "restricting the graph to relations from seen to novel classes harms the performance on CUB",
        _pairs([("gcgpn-aux", "gcgpn-aux-sn")], ("cub",)),
    ),
    Conclusion(
        "GFSL models are better than few-shot ones on Novel-Novel",
        "the GFSL methods DFSLwoF and GcGPN outperform few-shot methods even on few-shot tasks (compared with the best one "
        "that the paper quotes)",
        _few_shot(),
    ),
    Conclusion(
        "side information improves Novel-Novel further",
        "exploiting relations between classes improves Novel-Novel beyond DFSLwoF's on miniImageNet",
        _pairs(_against(SIDE_INFORMATION, "dfslwof-att"), ("mini-imagenet",), measures=("novel_novel",)),
    ),
)
