"""Shards of features: the same whoever makes them and whatever happened before."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from data.layouts import write_folder
from data.test_tar_images import write_tar
from encoders.images import tiny_encoder
from protograph import Classifier, open_dataset
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data.datasets.features import read_features
from protograph.data.feature_shards import (
    MANIFEST,
    ShardReader,
    is_feature_folder,
    read_feature_folder,
    read_manifest,
    read_shard,
)
from protograph.data.image_list import list_images
from protograph.encoders import embedding as module
from protograph.encoders.embedding import Embedding, EmbedResult, ShardSettings, Share, embed

COUNTS = {"crow": 9, "duck": 4, "owl": 10}
TOTAL = sum(COUNTS.values())


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("birds") / "birds", COUNTS)


def opened(source: Path, out: Path, skip_bad: bool = False, seed: int = 0, **settings: Any) -> Embedding:
    images = list_images(source, True, skip_bad, Silent())
    settings = {"images_per_shard": 5, **settings}
    return Embedding.opened(images, tiny_encoder(seed), "tiny", out, ShardSettings(**settings), skip_bad)


def made(source: Path, out: Path, share: Share | None = None, **options: Any) -> EmbedResult:
    return embed(opened(source, out, **options), share or Share(), Silent())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_shards_hold_the_features_of_the_images_in_the_order_of_the_list(birds: Path, tmp_path: Path) -> None:
    result = made(birds, tmp_path / "f")
    assert (result.images, result.continued, result.shards, result.missing, result.problems) == (TOTAL, 0, 5, 0, {})
    assert sorted(contents(tmp_path / "f")) == [*(f"0000{index}.safetensors" for index in range(5)), MANIFEST]
    features = read_feature_folder(tmp_path / "f")
    files = sorted(birds.glob("*/*.png"))
    assert features.names == [path.relative_to(birds).as_posix() for path in files]
    assert features.labels == [path.parent.name for path in files]
    for path, vector in zip(files, torch.from_numpy(features.vectors), strict=True):
        torch.testing.assert_close(vector, tiny_encoder().encode([path])[0], rtol=1e-4, atol=1e-5)


def test_the_bits_depend_neither_on_shares_nor_on_threads(birds: Path, tmp_path: Path) -> None:
    made(birds, tmp_path / "whole")
    for number in (3, 1, 2):
        result = made(birds, tmp_path / "shared", Share(number, 3))
    assert result.missing == 0
    assert contents(tmp_path / "shared") == contents(tmp_path / "whole")
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(3 if usual != 3 else 2)
        made(birds, tmp_path / "threads")
    finally:
        torch.set_num_threads(usual)
    assert contents(tmp_path / "threads") == contents(tmp_path / "whole")


def test_shares_have_every_shard_once() -> None:
    for of in (1, 2, 3, 7):
        shards = [shard for number in range(1, of + 1) for shard in Share(number, of).shards(5)]
        assert sorted(shards) == [0, 1, 2, 3, 4]
    for number, of in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(InputError, match="there is no share"):
            Share(number, of)


def test_what_is_missing_damaged_or_of_changed_files_is_made_anew(birds: Path, tmp_path: Path) -> None:
    own = shutil.copytree(birds, tmp_path / "birds")
    made(own, tmp_path / "f")
    whole = contents(tmp_path / "f")
    (tmp_path / "f" / "00001.safetensors").unlink()
    damaged = bytearray(whole["00003.safetensors"])
    damaged[-1] ^= 1
    (tmp_path / "f" / "00003.safetensors").write_bytes(damaged)
    (tmp_path / "f" / "00002.safetensors").write_bytes(whole["00004.safetensors"])
    (tmp_path / "f" / ".00001.safetensors.abcdefgh.part").write_bytes(b"half")  # of a process that was killed
    result = made(own, tmp_path / "f")
    assert result.continued == TOTAL - 15
    assert contents(tmp_path / "f") == whole
    shutil.copy(own / "owl" / "001.png", own / "crow" / "000.png")
    with (own / "crow" / "000.png").open("ab") as file:
        file.write(b"of another size")
    assert made(own, tmp_path / "f").continued == TOTAL - 5
    made(own, tmp_path / "anew")
    assert contents(tmp_path / "f") == contents(tmp_path / "anew") != whole


def test_shards_of_another_encoder_list_or_form_never_mix(birds: Path, tmp_path: Path) -> None:
    made(birds, tmp_path / "f", Share(1, 2))
    for options, words in (
        ({"seed": 1}, "the features there are by tiny at 20 pixels"),
        ({"images_per_shard": 6}, "its shards have 5 images, not 6"),
        ({"kind": "parquet"}, "its shards are .safetensors, not .parquet"),
    ):
        with pytest.raises(InputError, match=words):
            opened(birds, tmp_path / "f", **options)
    more = shutil.copytree(birds, tmp_path / "birds")
    shutil.copy(more / "owl" / "000.png", more / "owl" / "100.png")
    with pytest.raises(InputError, match="images were added, removed or renamed"):
        opened(more, tmp_path / "f")
    made(birds, tmp_path / "g", seed=1)
    shutil.copy(tmp_path / "g" / "00001.safetensors", tmp_path / "f")
    with pytest.raises(InputError, match="belongs to another list of images or another encoder"):
        read_shard(tmp_path / "f", read_manifest(tmp_path / "f"), 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(InputError, match="exists and holds no features"):
        opened(birds, tmp_path / "other")


def test_an_image_that_cannot_be_read_is_named_and_left_out_only_if_allowed(birds: Path, tmp_path: Path) -> None:
    made(birds, tmp_path / "good")
    own = shutil.copytree(birds, tmp_path / "birds")
    (own / "crow" / "002.png").write_bytes(b"nothing")
    (own / "crow" / "004.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"crow/002\.png cannot be read.*--skip-bad leaves"):
        made(own, tmp_path / "f")
    assert sorted(contents(tmp_path / "f")) == [MANIFEST]
    result = made(own, tmp_path / "f", skip_bad=True)
    assert [*result.problems] == ["crow/002.png", "crow/004.png"]
    assert "empty" in result.problems["crow/004.png"]
    assert made(own, tmp_path / "f", skip_bad=True).problems == result.problems
    kept, good = (read_feature_folder(tmp_path / name) for name in ("f", "good"))
    assert kept.names == [name for name in good.names if name not in result.problems]
    rows = [row for row, name in enumerate(good.names) if name not in result.problems]
    assert kept.vectors.tobytes() == good.vectors[rows].tobytes()  # others' bits do not depend on it
    with pytest.raises(InputError, match=r"crow/002\.png cannot be read"):
        made(own, tmp_path / "f")


def test_a_shard_of_nothing_but_bad_images_has_no_features(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "birds", {"crow": 5, "owl": 5})
    for path in (own / "crow").iterdir():
        path.write_bytes(b"nothing")
    assert len(made(own, tmp_path / "f", skip_bad=True).problems) == 5
    assert read_feature_folder(tmp_path / "f").names == [f"owl/{number:03d}.png" for number in range(5)]
    reader = ShardReader(tmp_path / "f")
    assert torch.equal(reader.vectors(0, 5), torch.from_numpy(read_feature_folder(tmp_path / "f").vectors))


def test_a_missing_shard_is_named_before_any_is_read(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(birds, tmp_path / "f", Share(2, 2))
    monkeypatch.setattr("protograph.data.feature_shards.read_shard", lambda *_: pytest.fail("it was read"))
    words = r"lacks 3 of 5 shards \(00000\.safetensors, 00002\.safetensors, 00004\.safetensors\)"
    for read in (read_feature_folder, ShardReader, lambda folder: open_dataset("features", folder)):
        with pytest.raises(InputError, match=words):
            read(tmp_path / "f")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"images": 23', '"images": -1'),
        lambda text: text.replace('"kind"', '"sort"'),
        lambda text: text[:-10],
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_refused(birds: Path, tmp_path: Path, change: Any) -> None:
    opened(birds, tmp_path / "f")
    path = tmp_path / "f" / MANIFEST
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match="is not a manifest of features"):
        read_manifest(tmp_path / "f")


def test_ranges_of_features_are_read_from_one_shard_after_the_other(birds: Path, tmp_path: Path) -> None:
    made(birds, tmp_path / "f")
    reader, whole = ShardReader(tmp_path / "f"), torch.from_numpy(read_feature_folder(tmp_path / "f").vectors)
    for start, stop in ((0, 23), (4, 6), (5, 10), (3, 17), (22, 23), (7, 7)):
        assert torch.equal(reader.vectors(start, stop), whole[start:stop])


def test_a_shard_is_a_file_of_features_by_itself(birds: Path, tmp_path: Path) -> None:
    made(birds, tmp_path / "f")
    vectors, labels, parts = read_features(tmp_path / "f" / "00002.safetensors")
    whole = read_feature_folder(tmp_path / "f")
    assert whole.labels is not None
    assert (labels, parts) == (whole.labels[10:15], None)
    assert vectors.tobytes() == whole.vectors[10:15].tobytes()
    with safe_open(tmp_path / "f" / "00002.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["shard"])["names"] == whole.names[10:15]


def test_parquet_shards_hold_the_same(birds: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    made(birds, tmp_path / "f")
    made(birds, tmp_path / "p", kind="parquet")
    ours, theirs = read_feature_folder(tmp_path / "f"), read_feature_folder(tmp_path / "p")
    assert (ours.names, ours.labels, ours.vectors.tobytes()) == (theirs.names, theirs.labels, theirs.vectors.tobytes())
    table = parquet.read_table(tmp_path / "p" / "00001.parquet").to_pydict()
    assert table["file"] == ours.names[5:10]
    assert read_features(tmp_path / "p" / "00001.parquet")[0].tobytes() == ours.vectors[5:10].tobytes()
    whole = contents(tmp_path / "p")
    (tmp_path / "p" / "00001.parquet").write_bytes(whole["00001.parquet"][:-30] + whole["00001.parquet"][-29:])
    assert made(birds, tmp_path / "p", kind="parquet").continued == TOTAL - 5
    assert contents(tmp_path / "p") == whole


def test_parquet_shards_without_pyarrow_say_what_to_install(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r'need pyarrow: pip install "protograph\[parquet\]"'):
        made(birds, tmp_path / "f", kind="parquet")


def test_members_of_tars_give_the_features_of_the_files(birds: Path, tmp_path: Path) -> None:
    members = {}
    for path in sorted(birds.glob("*/*.png")):
        name = path.relative_to(birds).with_suffix("").as_posix()
        members |= {f"{name}.png": path.read_bytes(), f"{name}.cls": path.parent.name.encode()}
    made(birds, tmp_path / "f")
    made(write_tar(tmp_path / "birds.tar", members), tmp_path / "t")
    ours, theirs = read_feature_folder(tmp_path / "f"), read_feature_folder(tmp_path / "t")
    assert theirs.names == [f"birds.tar/{name}" for name in ours.names]
    assert (ours.labels, ours.vectors.tobytes()) == (theirs.labels, theirs.vectors.tobytes())


def test_as_a_dataset_shards_are_split_as_their_images_are(tmp_path: Path) -> None:
    free = write_folder(tmp_path / "free", {f"class {number}": 10 for number in range(10)})
    for part, count in (("train", 8), ("test", 5)):
        write_folder(tmp_path / "parted" / part, {f"class {number}": count for number in range(10)})
    for source in (free, tmp_path / "parted"):
        out = tmp_path / f"{source.name}-features"
        made(source, out)
        features, images = open_dataset("features", out), open_dataset("folder", source)
        assert features.classes == images.classes
        assert images.images is not None
        names = read_feature_folder(out).names
        for pool in ("train", "seen_validation", "seen_test", "novel_validation", "novel_test"):
            of_features = [[names[row] for row in rows.tolist()] for rows in getattr(features, pool).by_class()]
            of_images = [[images.images.names[row] for row in rows.tolist()] for rows in getattr(images, pool).by_class()]
            assert of_features == of_images, pool
    _, _, parts = read_features(tmp_path / "parted-features")
    assert parts is not None
    assert (parts.count("train"), parts.count("seen-test")) == (80, 50)


def test_shards_without_classes_are_no_dataset(birds: Path, tmp_path: Path) -> None:
    images = list_images(birds, False, False, Silent())
    embed(Embedding.opened(images, tiny_encoder(), "tiny", tmp_path / "f", ShardSettings(), False), Share(), Silent())
    assert is_feature_folder(tmp_path / "f")
    with pytest.raises(InputError, match="has no labels"):
        open_dataset("features", tmp_path / "f")


def test_a_shard_is_written_as_a_whole_or_not_at_all(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def write(path: Path, content: bytes) -> None:
        written.append(path.name)
        if path.name.startswith("00002"):
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    embedding = opened(birds, tmp_path / "f")
    monkeypatch.setattr(module, "write_atomically", write)
    with pytest.raises(OSError, match="No space"):
        embed(embedding, Share(), Silent())
    assert written == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
    monkeypatch.undo()
    assert made(birds, tmp_path / "f").continued == 10


def test_a_classifier_takes_shards_of_its_own_encoder_alone(birds: Path, tmp_path: Path) -> None:
    files = sorted(birds.glob("*/*.png"))
    made(birds, tmp_path / "f")
    made(birds, tmp_path / "g", seed=1)
    classifier = Classifier(tiny_encoder()).fit(files, [file.parent.name for file in files])
    names, vectors = classifier.encode_files([tmp_path / "f"])
    assert names == [file.relative_to(birds).as_posix() for file in files]
    assert classifier.predict(vectors.numpy()).tolist() == classifier.predict(files).tolist()
    with pytest.raises(InputError, match="not the network that the model was fitted with"):
        classifier.encode_files([tmp_path / "g"])
