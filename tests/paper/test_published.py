from protograph.evaluation.metrics import MEASURES
from protograph.paper.published import TITLES, VARIANT_OF, Cell, few_shot_rows, gfsl_rows, published
from protograph.variants import VARIANTS


def test_the_tables_have_forty_four_cells_of_six_measures() -> None:
    assert len(published()) == 44
    assert all(list(measures) == list(MEASURES) for measures in published().values())
    assert sum(len(measures) for measures in published().values()) == 264
    assert {cell.shots for cell in published()} == {1, 5}


def test_cells_that_stand_in_two_tables_have_the_same_numbers_in_both() -> None:
    rows = gfsl_rows()
    assert len(rows) == 48
    assert all(row.measures == published()[row.cell] for row in rows)
    assert {row.table for row in rows} == set(TITLES)


def test_joint_joint_is_the_mean_of_seen_and_novel_on_every_row() -> None:
    """So no digit was lost on the way."""
    for measures in published().values():
        mean = (measures["seen_joint"].mean + measures["novel_joint"].mean) / 2
        assert abs(mean - measures["joint_joint"].mean) < 0.011
        assert all(0 < measure.ci95 < 1 for measure in measures.values())


def test_some_numbers_are_those_of_the_paper() -> None:
    assert str(published()[Cell("cub", 1, "gcgpn-aux-fc")]["h_mean"]) == "46.77 ± 0.48"
    assert str(published()[Cell("mini-imagenet", 5, "dfslwof-att")]["novel_novel"]) == "72.59 ± 0.62"


def test_every_model_is_a_variant_of_ours() -> None:
    assert set(VARIANT_OF.values()) <= set(VARIANTS)
    assert len(set(VARIANT_OF.values())) == len(VARIANT_OF)


def test_the_few_shot_table_repeats_novel_novel_of_the_others() -> None:
    rows = few_shot_rows()
    assert [row.kind for row in rows].count("FSL") == 10
    for row in rows:
        if row.kind == "GFSL":
            for shots, measure in row.novel_novel.items():
                assert published()[Cell("mini-imagenet", shots, VARIANT_OF[row.model])]["novel_novel"] == measure
