import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from protograph.cli.display import measures_table
from protograph.data import Dataset
from protograph.evaluation import metrics
from protograph.evaluation.metrics import MEASURES, PAPER_MEASURES, episode_measures, measure_titles, register_measure
from protograph.paper.ledger import read_ledger
from protograph.paper.published import published
from protograph.report.document import Table
from protograph.report.run_page import measures_block
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.stages import train

ROOT = Path(__file__).parents[2]


@pytest.fixture
def top_3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The measure of the example, registered for one test."""
    monkeypatch.setattr(metrics, "_REGISTERED", {})
    before = dict(MEASURES)
    runpy.run_path(str(ROOT / "examples" / "custom_measure.py"))
    yield "joint_top_3"
    MEASURES.clear()
    MEASURES.update(before)


def test_a_registered_measure_is_computed_for_every_episode(top_3: str) -> None:
    logits, targets = torch.randn(4, 6, 8), torch.randint(0, 8, (4, 6))
    targets[:, 0], targets[:, 1] = 0, 7
    measures = episode_measures(logits, targets, 5)
    assert list(measures) == [*PAPER_MEASURES, top_3]
    for episode in range(4):
        hits = [
            target in sorted(range(8), key=row.__getitem__)[-3:]
            for row, target in zip(logits[episode].tolist(), targets[episode].tolist(), strict=True)
        ]
        assert measures[top_3][episode].item() == pytest.approx(sum(hits) / 6)


def test_it_is_in_the_results_of_training_and_in_tables(
    top_3: str, toy: Dataset, toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    result = train(toy_config("aux-only"), toy, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    assert run.measures == result
    for measures in (result["measures"], result["last_epoch"]["measures"], run.history[0]["validation"]):
        assert 0 < measures[top_3]["mean"] <= 100
        assert measures[top_3]["mean"] >= measures["joint_joint"]["mean"]
    page = measures_block(result)
    assert isinstance(page, Table)
    assert "Joint top 3" in str(page)
    assert "Joint top 3" in [column.header for column in measures_table({"aux-only": result["measures"]}, "toy").columns]


def test_results_stored_before_it_was_registered_are_still_read(top_3: str) -> None:
    path = next(path for path in sorted((ROOT / "results").rglob("*.json")))
    stored = json.loads(path.read_text(encoding="utf-8"))["measures"]
    assert measure_titles([stored]) == PAPER_MEASURES
    assert measure_titles([stored, {**stored, top_3: {"mean": 1.0, "ci95": 0.1}}]) == PAPER_MEASURES
    assert all(list(entry.measures) == list(PAPER_MEASURES) for entry in read_ledger(ROOT / "results").values())
    assert all(list(measures) == list(PAPER_MEASURES) for measures in published().values())


def test_results_with_a_measure_that_is_no_longer_registered_show_its_name() -> None:
    stored = {name: {"mean": 1.0, "ci95": 0.1} for name in (*PAPER_MEASURES, "forgotten")}
    assert measure_titles([stored]) == {**PAPER_MEASURES, "forgotten": "forgotten"}


def test_a_measure_of_the_paper_cannot_be_replaced_and_shapes_are_checked(top_3: str) -> None:
    with pytest.raises(ValueError, match="'h_mean' is one of the paper's"):
        register_measure("h_mean", "H-Mean", lambda logits, targets, seen: logits)
    register_measure("flat", "Flat", lambda logits, targets, seen: logits.mean())
    with pytest.raises(ValueError, match=r"'flat' must return one number per episode \[2\], not \[\]"):
        episode_measures(torch.randn(2, 3, 4), torch.tensor([[0, 2, 3]] * 2), 2)
