"""The page on all results."""

from pathlib import Path

import pytest

from paper.made_up import make_ledger
from protograph._internal.progress import Silent
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.paper.page import results_document
from protograph.paper.published import Cell
from protograph.report.document import Figure, Heading, as_html

VALUES = {
    (Cell("cub", 1, "gcgpn-aux"), "fast"): {"h_mean": [30.0], "joint_joint": [60.0]},
    (Cell("cub", 2, "gcgpn-aux"), "fast"): {"joint_joint": [50.0]},
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PROTOGRAPH_DATA", raising=False)
    made = make_ledger(tmp_path / "results", VALUES)
    (made / "notes").mkdir()
    (made / "notes" / "gaps.md").write_text("# Gaps\n\n## Why?\n\n<b>bold</b> guess\n\nmore of it\n")
    return made


def test_the_page_has_cells_claims_gaps_and_what_the_figure_lacks(results: Path) -> None:
    blocks = results_document(results, None, Silent())
    page = as_html("Results", blocks)
    assert "&lt;b&gt;bold&lt;/b&gt; guess" in page
    assert "30.00\u00a0/\u00a060.00" in page
    assert "The paper's claims" in page
    (figure,) = [block for block in blocks if isinstance(block, Figure)]
    assert "Missing: 1-shot gcgpn-aux-split, gcgpn, " in figure.caption
    assert "; 2-shot gcgpn-aux-split" in figure.caption
    assert "`fast`" in figure.caption
    assert "95 % intervals over test episodes" in figure.caption
    assert "The operator of cub is not drawn, since its files are missing" in page


def test_the_page_has_the_order_of_the_file_and_ends_with_figures(results: Path) -> None:
    titles = [block.text for block in results_document(results, None, Silent()) if isinstance(block, Heading)]
    assert titles == ["Results", "The cells", "The paper's claims", "Known gaps", "How to reproduce it", "Figures"]


@pytest.mark.slow
def test_without_cells_of_the_papers_datasets_these_are_left_out(tmp_path: Path) -> None:
    values = {(Cell("letters", k, "gcgpn-aux"), "demo"): {"joint_joint": [40.0]} for k in (1, 2)}
    blocks = results_document(make_ledger(tmp_path / "results", values), None, Silent())
    captions = [block.caption for block in blocks if isinstance(block, Figure)]
    assert [caption.partition(",")[0] for caption in captions] == [
        f"The operator of {relation} in a test episode of letters" for relation in ("base", "accent")
    ]
    assert [block.text for block in blocks if isinstance(block, Heading)][-1] == "Figures"


def test_a_dataset_that_is_not_there_is_named_and_the_rest_is_shown(results: Path, tmp_path: Path) -> None:
    page = as_html("Results", results_document(results, tmp_path, Silent()))
    assert "The operator of mini-imagenet is not drawn, since its files are missing: no miniImageNet at" in page
    assert "The operator of cub is not drawn, since its files are missing: no CUB" in page
    assert "30.00\u00a0/\u00a060.00" in page


@pytest.mark.slow
def test_operators_are_drawn_where_the_files_are(
    results: Path, toy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_toy(root: Path, *_: object) -> Dataset:
        opened.append(root)
        return toy

    for name in ("cub", "mini-imagenet"):
        monkeypatch.setitem(DATASETS, name, DatasetSource(open_toy, "conv4-32", "a toy"))
    blocks = results_document(results, tmp_path, Silent())
    captions = [block.caption for block in blocks if isinstance(block, Figure)]
    assert opened == [tmp_path, tmp_path]
    assert sum("kinship" in caption for caption in captions) == 2
