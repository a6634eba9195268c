import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from protograph._internal.errors import InputError
from protograph.data import Augmentation, Dataset, FeatureStore
from protograph.data.augmentation import Portion
from protograph.episodes import seeded
from protograph.training import processes
from protograph.training.processes import Processes, SharedStatistics, joined, share_statistics
from protograph.training.recipes import Recipe
from protograph.training.run_folder import Run
from protograph.training.setup import check_processes
from protograph.training.step import drop_features, turn_counts
from protograph.variants import find_variant
from training.interrupted import outcome
from training.several import CONFIGS, train_all

# gloo connects two processes of one machine nearly always, and nearly is too little for every run of the tests.
with_torchrun = pytest.mark.skipif(
    "PROTOGRAPH_TEST_TORCHRUN" not in os.environ, reason="set PROTOGRAPH_TEST_TORCHRUN=1 to run it"
)
ROOT = Path(__file__).parents[2]
SEVERAL = str(Path(__file__).with_name("several.py"))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def torchrun(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Two processes of torchrun that run the words."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*TORCHRUN, *words], cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture
def joined_alone(tmp_path: Path) -> Iterator[None]:
    """A group of which this process is the only one."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@with_torchrun
def test_two_processes_lose_what_one_loses_in_float64_also_when_they_are_killed(tmp_path: Path) -> None:
    train_all(tmp_path / "one")
    ended = torchrun(SEVERAL, "two", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for name in CONFIGS:
        one, two = (Run.open(tmp_path / count / name) for count in ("one", "two"))
        for ours, theirs in zip(one.history, two.history, strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        one_weights, two_weights = one.weights("last"), two.weights("last")
        assert one_weights.keys() == two_weights.keys()
        for key, value in one_weights.items():
            torch.testing.assert_close(value, two_weights[key], rtol=1e-9, atol=1e-9)
        assert one.measures is not None
        assert two.measures is not None
        assert one.measures["measures"] == two.measures["measures"]

    killed = torchrun(SEVERAL, "killed", "4", cwd=tmp_path)
    assert killed.returncode
    assert "training.interrupted.Killed" in killed.stderr
    again = torchrun(SEVERAL, "killed", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert outcome(tmp_path / "killed" / "classify") == outcome(tmp_path / "two" / "classify")


TINY = (
    "--variant=cosine", "--backbone=conv4-32", "--set=epochs=2", "--set=steps=2", "--set=batch_size=4", "--set=warmup_steps=0",
    "--set=validation_episodes=2", "--set=test_queries=2",
)  # fmt: skip


@pytest.mark.slow
@with_torchrun
def test_the_command_by_torchrun_says_once_what_it_does_and_refuses_once(tmp_path: Path) -> None:
    command = ("-m", "protograph", "train", *TINY, "--device=cpu", "--out=run")
    refused = torchrun(*command, "--set=batch_size=5", cwd=tmp_path)
    assert refused.returncode
    assert refused.stderr.count("error: recipe 'demo': batch_size 5 cannot be divided evenly among 2 processes") == 1
    assert not (tmp_path / "run").exists()
    ended = torchrun(*command, "--json", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count('"variant": "cosine"') == 1
    assert Run.open(tmp_path / "run").environment["processes"] == 2


def norms(kind: type[nn.Module], channels: int) -> tuple[nn.Module, nn.Module]:
    """A batch norm with weights other than one, and one that shares its statistics."""
    usual = kind(channels).double()
    with torch.no_grad():
        for parameter in usual.parameters():
            parameter.uniform_(0.5, 1.5)
    shared = kind(channels).double()
    shared.load_state_dict(usual.state_dict())
    share_statistics_of_one(shared)
    return usual, shared


def share_statistics_of_one(network: nn.Module) -> None:
    """`share_statistics` as if there were other processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processes, "alone", False)
        share_statistics(network)


@pytest.mark.usefixtures("joined_alone")
@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (7, 3)), (nn.BatchNorm2d, (5, 3, 4, 6))])
def test_shared_statistics_are_those_of_batch_norm(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    usual, shared = norms(kind, 3)
    assert isinstance(shared, SharedStatistics)
    assert isinstance(shared, kind)
    ours, theirs = (torch.randn(*shape, generator=seeded(1), dtype=torch.float64).requires_grad_() for _ in range(2))
    for _ in range(2):
        outputs = shared(ours), usual(theirs)
        torch.testing.assert_close(*outputs)
        for output in outputs:
            (output * torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view(shape)).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    for (name, mine), (_, other) in zip(shared.named_parameters(), usual.named_parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name)
    torch.testing.assert_close(shared.state_dict(), usual.state_dict())
    torch.testing.assert_close(shared.eval()(ours), usual.eval()(theirs))


@pytest.mark.usefixtures("joined_alone")
def test_shared_statistics_keep_the_precision_of_their_inputs() -> None:
    shared = nn.BatchNorm2d(3)
    share_statistics_of_one(shared)
    inputs = torch.randn(4, 3, 5, 5, generator=seeded(1)).bfloat16().requires_grad_()
    outputs = shared(inputs)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert (outputs.dtype, inputs.grad.dtype) == (torch.bfloat16, torch.bfloat16)
    torch.testing.assert_close(outputs.float(), nn.BatchNorm2d(3)(inputs.float()), atol=2e-2, rtol=2e-2)


def test_alone_nothing_is_shared() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3))
    share_statistics(network)
    assert type(network[0]) is nn.BatchNorm2d
    alone = Processes.current()
    assert (alone.alone, alone.leads, alone.portion([3], torch.device("cpu"))) == (True, True, None)
    assert alone.agreed(True)


def test_portions_divide_each_group_of_images() -> None:
    """Naively: of two groups of 6 and 4 images, each of two processes has the first or the last half."""
    for number, rows in enumerate(([0, 1, 2, 6, 7], [3, 4, 5, 8, 9])):
        portion = Processes(number, 2).portion([3, 2], torch.device("cpu"))
        assert portion is not None
        assert (portion.whole, portion.rows.tolist()) == (10, rows)
    assert [Processes(number, 3).part(12) for number in range(3)] == [(0, 4), (4, 8), (8, 12)]


CHANGES = (Augmentation(2, flip=True), Augmentation(2, flip=True, zoom=1.5, stretch=1.2, colour=0.3, erase=0.5))


@pytest.mark.parametrize("change", CHANGES)
def test_a_portion_is_changed_as_it_is_among_all_images(toy: Dataset, change: Augmentation) -> None:
    whole = toy.store.gather(torch.arange(10), change, seeded(1))
    rows = torch.tensor([1, 4, 9])
    assert torch.equal(toy.store.gather(rows, change, seeded(1), Portion(10, rows)), whole[rows])


def test_copies_and_dropout_of_a_portion_are_those_among_all_images() -> None:
    features = torch.randn(10, 4, generator=seeded(1))
    store = FeatureStore(features, torch.randn(10, 5, 4, generator=seeded(2)))
    rows = torch.tensor([0, 3, 8])
    portion = Portion(10, rows)
    assert torch.equal(store.gather(rows, None, seeded(3), portion), store.gather(torch.arange(10), None, seeded(3))[rows])
    assert torch.equal(drop_features(features[rows], 0.5, seeded(3), portion), drop_features(features, 0.5, seeded(3))[rows])


@pytest.mark.parametrize("count", [1, 6, 12, 20])
def test_the_turns_of_parts_are_those_of_the_whole(count: int) -> None:
    turns = [count - 3 * (count // 6), *[count // 6] * 3]
    listed = [quarters for quarters, images in enumerate(turns) for _ in range(images)]
    for size in (1, 2, count):
        for start in range(0, count - size + 1, size):
            part = listed[start : start + size]
            assert turn_counts(count, start, start + size) == [part.count(quarters) for quarters in range(4)]


@pytest.mark.parametrize(
    ("variant", "changes", "words"),
    [
        ("maml", {}, "variant 'maml' is a few-shot method, which several processes cannot share: train it without torchrun"),
        ("teen", {}, "variant 'teen' takes no steps"),
        ("gcgpn-aux", {"folds": 2}, "variant 'gcgpn-aux' is trained on out-of-fold episodes"),
        ("linear", {"mixup": True}, "variant 'linear' is trained on mixed images"),
        ("gcgpn-aux", {"episodes": 8}, "episodes 8 cannot be divided evenly among 3 processes: .* --set episodes=9"),
        ("cosine", {"batch_size": 1}, "batch_size 1 cannot be divided evenly among 3 processes: .* --set batch_size=3"),
    ],
)
def test_what_several_processes_cannot_share_is_refused(variant: str, changes: dict[str, float], words: str) -> None:
    recipe = replace(Recipe("short", episodes=6, batch_size=9), **changes)  # type: ignore[arg-type]
    check_processes(find_variant(variant), recipe, 1)
    with pytest.raises(InputError, match=words):
        check_processes(find_variant(variant), recipe, 3)
    check_processes(find_variant("cosine"), Recipe("short", episodes=6, batch_size=9), 3)


@pytest.mark.parametrize(
    ("local", "device", "words"),
    [
        ("2", "cpu", "torchrun started processes on several machines"),
        ("4", "cuda:1", "--device cuda:1 would be the same for all processes of torchrun: give cuda or cpu"),
        ("4", "cuda", "torchrun started 4 processes, and there are 0 GPUs: give one --nproc-per-node for each"),
    ],
)
def test_what_torchrun_cannot_start_is_refused_by_each(
    monkeypatch: pytest.MonkeyPatch, local: str, device: str, words: str
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", slept.append)
    processes.leave_to_first()
    variables = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": local}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=words), joined(device):
        pytest.fail("it joined")
    processes.leave_to_first()
    assert slept == [processes.FIRST_SPEAKS]
