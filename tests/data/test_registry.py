from pathlib import Path

import pytest

import protograph as pg
from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data import DATASETS, Dataset, DatasetSource, find_source, open_dataset, register_dataset


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test registers."""
    monkeypatch.setattr("protograph.data.registry.DATASETS", dict(DATASETS))


@pytest.mark.usefixtures("registered")
def test_a_registered_dataset_is_opened_by_its_name(toy: Dataset, tmp_path: Path) -> None:
    calls = []

    def open_own(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
        calls.append((root, skip_bad))
        return toy

    source = DatasetSource(open_own, backbone="conv4-32", summary="noisy patterns")
    register_dataset("patterns", source)
    assert find_source("patterns") is source
    dataset = open_dataset("patterns", tmp_path, skip_bad=True)
    assert calls == [(tmp_path, True)]
    assert (dataset.name, dataset.fingerprint, dataset.classes) == ("patterns", toy.fingerprint, toy.classes)
    assert toy.name == "toy"


@pytest.mark.usefixtures("registered")
def test_a_built_in_dataset_takes_no_root(toy: Dataset, tmp_path: Path) -> None:
    register_dataset("patterns", DatasetSource(lambda *_: toy, built_in=True))
    assert open_dataset("patterns").name == "patterns"
    with pytest.raises(InputError, match="dataset 'patterns' is built in and reads no files: leave out --root"):
        open_dataset("patterns", tmp_path)


def test_an_unknown_dataset_is_named_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown dataset 'lettres': did you mean letters"):
        find_source("lettres")


def test_registration_is_public() -> None:
    assert pg.register_dataset is register_dataset
    assert pg.DatasetSource is DatasetSource
