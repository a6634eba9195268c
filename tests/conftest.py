import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from data import layouts
from protograph.data import Dataset
from protograph.data.datasets.letters import open_letters
from protograph.device import TRITON
from protograph.training.recipes import Recipe
from protograph.training.run_config import RunConfig
from protograph.variants import find_variant
from toy import make_toy

# On tensors as small as these, threads only wait for one another, and for long on a busy machine. Subprocesses inherit it.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, from subprocesses too, unless their own tests are asked for: the others compare to the last bit.

    Triton then interprets its kernels.
    """
    if config.option.markexpr != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu = torch.cuda.is_available()
    for item in items:
        kernel = item.get_closest_marker("kernel")
        interpreted = kernel and os.environ.get("TRITON_INTERPRET") == "1"
        if item.get_closest_marker("gpu") and not gpu and not interpreted:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, and `make test-gpu`"))
        if kernel and not (TRITON if gpu else find_spec("triton")):
            item.add_marker(pytest.mark.skip(reason="needs triton"))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where kernels run: on the GPU, or interpreted on the CPU, by few programs and, as NumPy has no bfloat16, in float32."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    from protograph.kernels import first_block, norm_pool

    monkeypatch.setattr(norm_pool, "POOL_PROGRAMS", 4)
    monkeypatch.setattr(first_block, "BLOCK_PROGRAMS", 3)
    monkeypatch.setattr(first_block, "BLOCK_ROWS", 16)
    monkeypatch.setattr(first_block, "BLOCK_DTYPE", torch.float32)
    return torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own: no test depends on, or leaves something in, the user's. Subprocesses inherit it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROTOGRAPH_CACHE", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same random numbers, whichever ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def letters(own_cache: Path) -> Dataset:
    return open_letters()


@pytest.fixture(scope="session")
def mini_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small miniImageNet, images and CSVs, to be read and not changed."""
    return layouts.write_csvs(tmp_path_factory.mktemp("mini") / "mini-imagenet").parent


@pytest.fixture(scope="session")
def cub_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CUB, to be read and not changed."""
    return layouts.write_cub(tmp_path_factory.mktemp("cub"))


@pytest.fixture(scope="session")
def real_root() -> Path:
    """Where the real datasets are, if they are."""
    if not os.environ.get("PROTOGRAPH_DATA"):
        pytest.skip("the real images are tested where PROTOGRAPH_DATA says where they are")
    return Path(os.environ["PROTOGRAPH_DATA"])


@pytest.fixture(scope="session")
def toy() -> Dataset:
    return make_toy()


@pytest.fixture(scope="session")
def toy_config() -> Callable[..., RunConfig]:
    """Makes a configuration for `toy`; `changes` are made to its short recipe."""

    def make(variant: str = "gcgpn-aux", seed: int = 0, **changes: Any) -> RunConfig:
        short = {
            "epochs": 3, "steps": 4, "episodes": 2, "ways": 3, "novel_queries": 2, "seen_queries": 6, "learning_rate": 0.2,
            "validation_episodes": 5, "test_queries": 6, "batch_size": 8,
        }  # fmt: skip
        if candidates := find_variant(variant).candidates:
            short |= {"epochs": len(candidates), "steps": 1}
        recipe = Recipe("short", **{**short, **changes})
        return RunConfig("toy", variant, 1, seed, "conv4-32", ("kinship",), recipe, "toy-1")

    return make
