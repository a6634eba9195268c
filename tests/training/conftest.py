import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from protograph.data import Dataset
from protograph.training import loop as training
from protograph.training.run_config import RunConfig
from protograph.training.stages import train

Make = Callable[..., RunConfig]


@pytest.fixture
def short_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hundred test episodes after every training would be most of the time of these tests."""
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))


@pytest.fixture(scope="module")
def start(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished first stage, to be read and not changed."""
    folder = tmp_path_factory.mktemp("start") / "cosine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
        train(toy_config("cosine"), toy, folder)
    return folder
