from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Dataset
from protograph.training import loop as training
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.stages import train
from training.interrupted import Killed, Stopping, outcome, parts

Make = Callable[..., RunConfig]
pytestmark = pytest.mark.usefixtures("short_tests")


def test_a_second_stage_starts_with_the_best_weights_of_the_first(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    train(toy_config("dfslwof-att", epochs=1, steps=1, learning_rate=1e-30), toy, tmp_path / "run", start=start)
    second = Run.open(tmp_path / "run").weights("last")
    for name, value in parts(Run.open(start).weights("best"), "backbone", "prototypes", "classifier").items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)


def test_a_pretrained_model_starts_with_the_weights_of_the_first_stage_and_trains_all_of_them(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    first = parts(Run.open(start).weights("best"), "backbone", "prototypes", "classifier")
    train(toy_config(pretrain="cosine", epochs=1, steps=1, learning_rate=1e-30), toy, tmp_path / "begun", start=start)
    begun = Run.open(tmp_path / "begun")
    assert begun.config.start == Run.open(start).fingerprint
    for name, value in first.items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(begun.weights("last")[name], value)
    train(toy_config(pretrain="cosine"), toy, tmp_path / "run", start=start)
    learned = Run.open(tmp_path / "run").weights("last")
    assert not any(torch.equal(learned[name], value) for name, value in first.items())


def test_one_first_stage_serves_every_number_of_shots(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    starts = set()
    for shots in (1, 3):
        config = replace(toy_config("dfslwof-att", epochs=1), shots=shots)
        assert train(config, toy, tmp_path / str(shots), start=start)["shots"] == shots
        starts.add(Run.open(tmp_path / str(shots)).config.start)
    assert starts == {Run.open(start).fingerprint}
    assert {file.name: file.read_bytes() for file in start.iterdir()} == before


def test_a_run_begun_from_another_start_is_refused(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    config = toy_config("dfslwof-att", epochs=1)
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "run", progress=Stopping((2,)), start=start)
    train(toy_config("cosine", seed=1, epochs=1), toy, tmp_path / "other")
    with pytest.raises(InputError, match=r"another configuration \(start is '\w+' there, not '\w+'\)"):
        train(config, toy, tmp_path / "run", start=tmp_path / "other")
    train(config, toy, tmp_path / "run", start=start)


@pytest.mark.slow
def test_a_missing_first_stage_is_trained_into_a_folder_beside_the_run(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    train(toy_config("dfslwof-att", epochs=2), toy, tmp_path / "run")
    first = Run.open(tmp_path / "run-cosine")
    assert (first.config.variant, first.config.recipe.epochs, first.measures is not None) == ("cosine", 2, True)
    assert Run.open(tmp_path / "run").config.start == first.fingerprint
    train(toy_config("dfslwof-avg"), toy, tmp_path / "other", start=tmp_path / "named")
    assert outcome(tmp_path / "named") == outcome(start)


def test_a_finished_first_stage_is_used_as_it_is(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    train(toy_config("dfslwof-att", epochs=1), toy, tmp_path / "run", start=start)
    assert Run.open(tmp_path / "run").config.start == Run.open(start).fingerprint
    assert {file.name: file.read_bytes() for file in start.iterdir()} == before
    assert not (tmp_path / "run-cosine").exists()


def test_an_unfinished_first_stage_is_finished_first(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(replace(toy_config("cosine"), relations=()), toy, tmp_path / "half", progress=Stopping((9,)))
    train(toy_config("dfslwof-att"), toy, tmp_path / "run", start=tmp_path / "half")
    assert outcome(tmp_path / "half") == outcome(start)


def test_what_cannot_be_started_from_is_refused_before_the_folder_is_touched(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    config, out = toy_config("dfslwof-att"), tmp_path / "run"
    with pytest.raises(InputError, match=r"'dfslwof-att' starts from a trained 'cosine'"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), None)
    with pytest.raises(InputError, match=r"'gcgpn-aux' starts from no other run.*--set pretrain=cosine"):
        train(toy_config(), toy, out, start=start)
    with pytest.raises(InputError, match=r"'pn\+' starts from no other run: leave out the start \S+$"):
        train(toy_config("pn+"), toy, out, start=start)
    with pytest.raises(InputError, match=r"'gcgpn-aux' starts from a trained 'cosine'"):
        training.train_stage(toy_config(pretrain="cosine"), toy, out, torch.device("cpu"), Silent(), None)
    with pytest.raises(InputError, match="not a run folder"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), tmp_path / "absent")
    with pytest.raises(InputError, match=r"its backbone is 'conv4-32', not 'conv4-64'.*--start"):
        train(replace(config, backbone="conv4-64"), toy, out, start=start)
    with pytest.raises(Killed):
        train(toy_config("cosine"), toy, tmp_path / "half", progress=Stopping((9,)))
    with pytest.raises(InputError, match="before its training is finished"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), tmp_path / "half")
    train(toy_config("pn+", epochs=1, steps=1), toy, tmp_path / "pn")
    with pytest.raises(InputError, match=r"its variant is 'pn\+', not 'cosine'"):
        train(config, toy, out, start=tmp_path / "pn")
    assert not out.exists()
