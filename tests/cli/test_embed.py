"""The verb embed, and the verbs that read what it made."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import save

from cli.test_classifier_verbs import answer, check_refused, protograph, write_birds
from encoders.images import tiny_encoder
from protograph._internal.errors import InputError
from protograph.cli.embed import parse_share
from protograph.encoders import shipped
from protograph.encoders.embedding import Share

KINDS = ("crow", "duck", "finch", "gull")
IMAGES = 6


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_birds(tmp_path_factory.mktemp("birds") / "birds", KINDS, IMAGES)


@pytest.fixture
def tiny_conv4(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conv4 that takes a blink."""
    path = tmp_path_factory.mktemp("shipped") / "conv4.safetensors"
    encoder = tiny_encoder()
    path.write_bytes(save(encoder.tensors(), {"encoder": json.dumps(encoder.description())}))
    monkeypatch.setattr(shipped, "SHIPPED", path)


def embedded(birds: Path, out: Path) -> Path:
    answer("embed", birds, "--out", out, "--backbone=conv4", "--images-per-shard=7")
    return out


@pytest.mark.usefixtures("tiny_conv4")
def test_shards_are_made_by_shares_and_what_is_missing_is_said(birds: Path, tmp_path: Path) -> None:
    command = ("embed", birds, "--out", tmp_path / "f", "--backbone=conv4", "--images-per-shard=7")
    said = answer(*command, "--shard=2/3")
    expected = {"folder": str(tmp_path / "f"), "images": 7, "continued": 0, "shards": 1, "shards_missing": 3, "unreadable": {}}
    assert said == expected
    result = protograph(*command)
    assert result.stdout == f"wrote 4 shards of 24 images into {tmp_path / 'f'}\n"
    assert f"continuing {tmp_path / 'f'}: 7 of 24 images are encoded" in result.stderr
    (tmp_path / "f" / "00003.safetensors").unlink()
    for verb in (
        ("fit", tmp_path / "f", "--out", tmp_path / "a.pg"),
        ("train", "--dataset=features", "--root", tmp_path / "f"),
    ):
        check_refused(protograph(*verb), "lacks 1 of 4 shards (00003.safetensors): run the same `protograph embed` again")


@pytest.mark.usefixtures("tiny_conv4")
def test_a_model_of_shards_answers_as_one_of_the_images_does(birds: Path, tmp_path: Path) -> None:
    shards = embedded(birds, tmp_path / "f")
    own, usual = tmp_path / "own.pg", tmp_path / "usual.pg"
    answer("fit", shards, "--out", own)
    answer("fit", birds, "--out", usual, "--backbone=conv4")
    photo = birds / "crow" / "1.png"
    ours, theirs = (answer("predict", model, photo)[0] for model in (own, usual))
    assert ours["class"] == theirs["class"] == "crow"
    assert ours["likeness"] == pytest.approx(theirs["likeness"], rel=1e-3)
    rows = answer("predict", own, shards)
    assert [row["file"] for row in rows] == [f"{kind}/{number}.png" for kind in KINDS for number in range(IMAGES)]
    for model in (own, usual):
        out = tmp_path / f"{model.stem}.jsonl"
        assert answer("predict", model, shards, "--out", out)["images"] == len(KINDS) * IMAGES
        written = [json.loads(line) for line in out.read_text().splitlines()]
        assert [row["class"] for row in written] == [row["file"].partition("/")[0] for row in written]
        assert answer("evaluate", model, shards)["joint"] == 1.0
    check_refused(protograph("predict", own, shards, "--sort-into", tmp_path / "s"), "these are features")
    check_refused(protograph("fit", shards, "--out", own, "--size", "128"), "holds features: leave out --size 128")
    check_refused(
        protograph("fit", shards, "--out", own, "--backbone=efficientnet-lite0"), "are by conv4, not by this efficientnet-lite0"
    )


@pytest.mark.usefixtures("tiny_conv4")
def test_shards_of_another_network_are_refused(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = embedded(birds, tmp_path / "f")
    other = tmp_path / "other.safetensors"
    encoder = tiny_encoder(seed=1)
    other.write_bytes(save(encoder.tensors(), {"encoder": json.dumps(encoder.description())}))
    monkeypatch.setattr(shipped, "SHIPPED", other)
    model = tmp_path / "own.pg"
    answer("fit", birds, "--out", model, "--backbone=conv4")
    for command in (
        ("predict", model, shards),
        ("predict", model, shards, "--out", tmp_path / "a.csv"),
        ("evaluate", model, shards),
    ):
        check_refused(protograph(*command), "is not the network that the model was fitted with")
    answer("fit", shards, "--out", tmp_path / "features.pg")  # a model of features: the network is not here
    check_refused(protograph("predict", tmp_path / "features.pg", birds / "crow" / "1.png"), "cannot read features from")


@pytest.mark.usefixtures("tiny_conv4")
def test_images_that_cannot_be_read_are_listed(birds: Path, tmp_path: Path) -> None:
    own = write_birds(tmp_path / "birds", ("crow", "owl"), 3)
    (own / "owl" / "1.png").write_bytes(b"nothing")
    command = ("embed", own, "--out", tmp_path / "f", "--backbone=conv4")
    check_refused(protograph(*command), "owl/1.png cannot be read", "--skip-bad leaves such images out")
    result = protograph(*command, "--skip-bad")
    assert result.stdout == f"wrote 1 shard of 6 images into {tmp_path / 'f'}; 1 image cannot be read\n"
    assert "left out: owl/1.png cannot be read" in result.stderr
    assert [*answer(*command, "--skip-bad")["unreadable"]] == ["owl/1.png"]


def test_mistakes_are_refused_before_images_are_read(tmp_path: Path) -> None:
    command = ("embed", tmp_path / "none", "--out", tmp_path / "f")
    check_refused(protograph(*command, "--shard=4/3"), "there is no share 4/3")
    check_refused(protograph(*command, "--shard=three"), "--shard takes I/N, such as 3/16")
    check_refused(protograph(*command, "--format=npz"), "unknown format 'npz'")
    check_refused(protograph(*command, "--backbone=conv4"), "no folder at")
    check_refused(protograph(*command, "--backbone=conv5"), "unknown backbone 'conv5'")


def test_a_share_is_a_number_of_a_number() -> None:
    assert parse_share("3/16") == Share(3, 16)
    for text in ("", "3", "/", "3/", "-1/4", "1/4/5", "٣/٤", "1.0/2"):
        with pytest.raises(InputError):
            parse_share(text)


@pytest.mark.slow
def test_killed_at_random_moments_the_shards_are_the_same(tmp_path: Path) -> None:
    birds = write_birds(tmp_path / "birds", ("crow", "owl"), 40)
    command = [
        *(sys.executable, "-m", "protograph", "embed", str(birds), "--backbone=conv4", "--images-per-shard=4", "--json"),
        f"--out={tmp_path / 'killed'}",
    ]
    shards = tmp_path / "killed"
    drawn = random.Random(0)
    for goal in (1, 7, 13):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
            while len([*shards.glob("0*")]) < goal and process.poll() is None:
                time.sleep(0.002)
            time.sleep(drawn.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
    assert answer("embed", birds, "--out", shards, "--backbone=conv4", "--images-per-shard=4")["continued"] >= 4
    answer("embed", birds, "--out", tmp_path / "whole", "--backbone=conv4", "--images-per-shard=4")
    kept = {path.name: path.read_bytes() for path in shards.iterdir() if not path.name.startswith(".")}
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
