"""The conclusions cover the cells they are about."""

from paper.made_up import named_conclusion
from protograph.paper.claims import CONCLUSIONS
from protograph.paper.grid import FIGURE_CELLS
from protograph.paper.published import VARIANT_OF, few_shot_rows, published


def test_every_comparison_is_of_cells_that_the_tables_or_the_figure_have() -> None:
    for conclusion in CONCLUSIONS:
        assert conclusion.comparisons
        assert len(set(conclusion.comparisons)) == len(conclusion.comparisons)
        for comparison in conclusion.comparisons:
            assert {comparison.left.cell, comparison.right.cell} <= {*published(), *FIGURE_CELLS}


def test_no_cell_is_left_out_of_what_a_conclusion_is_about() -> None:
    def compared(part: str, dataset: str) -> set[str]:
        return {c.left.cell.variant for c in named_conclusion(part).comparisons if c.left.cell.dataset == dataset}

    side = {"gcgpn", "gcgpn-aux", "gcgpn-split", "gcgpn-aux-split"}
    assert compared("cosine of prototypes on miniImageNet", "mini-imagenet") == side
    assert compared("cosine of prototypes on CUB", "cub") == side | {"gcgpn-aux-fc", "gcgpn-aux-sn"}
    assert compared("every GcGPN with side information", "cub") == side | {"gcgpn-aux-fc", "gcgpn-aux-sn"}
    lower = {VARIANT_OF[row.model] for row in few_shot_rows() if row.kind == "GFSL"}
    assert compared("GFSL models", "mini-imagenet") == lower - {"pn+"}  # the paper speaks of DFSLwoF and GcGPN
    for conclusion in CONCLUSIONS:
        measures = {comparison.right.measure for comparison in conclusion.comparisons}
        assert measures in ({"joint_joint", "h_mean"}, {"joint_joint"}, {"novel_joint"}, {"seen_joint"}, {"novel_novel"})
