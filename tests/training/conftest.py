import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from protograph.data import Dataset
from protograph.nn.backbones import BACKBONES, ResNet12, register_backbone
from protograph.training import loop as training
from protograph.training.run_config import RunConfig
from protograph.training.stages import train

Make = Callable[..., RunConfig]


@pytest.fixture
def short_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hundred test episodes after every training would be most of the time of these tests."""
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))


@pytest.fixture
def small_resnet() -> Iterator[str]:
    """The name of a small residual net, which is registered for one test."""
    with patch.dict(BACKBONES):
        register_backbone("resnet-small", lambda channels, last_relu: ResNet12(channels, mirror=True, widths=(4, 4, 6, 8)))
        yield "resnet-small"


@pytest.fixture(scope="module")
def start(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished first stage, to be read and not changed."""
    folder = tmp_path_factory.mktemp("start") / "cosine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
        train(toy_config("cosine"), toy, folder)
    return folder
