import copy
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from data.layouts import blocks
from encoders.images import tiny_encoder, write_images
from protograph._internal.errors import InputError
from protograph._internal.progress import Advance, Silent
from protograph.encoders import Preparation, cache, open_encoder
from protograph.encoders.base import BATCH, FEWEST, ImageEncoder, KeptEncoder


class Counting:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.tasks: list[list[Any]] = []

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        self.tasks.append([title, total, unit, done])

        def advance(count: int) -> None:
            self.tasks[-1][3] += count

        yield advance

    def say(self, line: str) -> None:
        raise AssertionError(line)


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def encoder() -> ImageEncoder:
    return tiny_encoder()


def naive(encoder: ImageEncoder, pixels: np.ndarray[Any, Any]) -> Tensor:
    """Features [D] of pixels [C, H, W], normalised by hand in float64 and passed alone."""
    mean, std = (np.array(values)[:, None, None] for values in (encoder.preparation.mean, encoder.preparation.std))
    with torch.no_grad():
        return encoder.network.double()(torch.from_numpy((pixels / 255 - mean) / std)[None])[0]


def test_features_are_the_networks_of_the_normalised_image(encoder: ImageEncoder) -> None:
    batch = BATCH["cpu"]
    arrays = [blocks(30, 24, 1, place) for place in range(batch + 3)]  # more than a batch
    found = encoder.encode(arrays)
    assert found.shape == (batch + 3, encoder.features)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    exact = copy.deepcopy(encoder)
    for row in (0, batch - 1, batch, batch + 2):
        pixels = np.asarray(Image.fromarray(arrays[row]).resize((20, 20), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert torch.allclose(found[row].double(), naive(exact, pixels), atol=1e-5)


def test_a_batch_of_prepared_pixels_gives_the_features_of_its_images(encoder: ImageEncoder) -> None:
    images = [blocks(30, 24, seed) for seed in range(3)]
    pixels = torch.stack([encoder.preparation.read(image, "image") for image in images])
    assert torch.allclose(encoder.encode_pixels(pixels), encoder.encode(images), atol=1e-5)


def test_features_can_be_trained_on(encoder: ImageEncoder) -> None:
    weight = torch.zeros(encoder.features, requires_grad=True)
    (encoder.encode([blocks(30, 24, 1)]) @ weight).sum().backward()
    assert weight.grad is not None


def test_augmented_copies_are_crops_and_flips_drawn_by_seed_and_image(encoder: ImageEncoder) -> None:
    """Naively: pad with black, try every offset and flip, and find each copy among them."""
    array = blocks(20, 20, 3)
    found = encoder.encode_augmented([array], 6, seed=1)
    assert found.shape == (1, 6, encoder.features)
    padded = np.zeros((3, 24, 24), np.uint8)
    padded[:, 2:22, 2:22] = array.transpose(2, 0, 1)
    crops = [padded[:, top : top + 20, left : left + 20] for top in range(5) for left in range(5)]
    every = encoder.encode([crop.transpose(1, 2, 0) for one in crops for crop in (one, one[:, :, ::-1])])
    distances = (found[0][:, None] - every).abs().amax(2)
    assert distances.min(1).values.max() < 1e-4
    assert len(set(distances.argmin(1).tolist())) > 2, "not all alike"


def test_copies_depend_on_nothing_but_the_seed_and_the_image(encoder: ImageEncoder) -> None:
    arrays = [blocks(30, 24, 4, place) for place in range(5)]
    whole = encoder.encode_augmented(arrays, 3, seed=7)
    assert torch.allclose(encoder.encode_augmented(arrays[::-1], 3, seed=7).flip(0), whole, atol=1e-6)
    assert torch.allclose(encoder.encode_augmented(arrays[3:4], 3, seed=7)[0], whole[3], atol=1e-6)
    assert not torch.allclose(encoder.encode_augmented(arrays, 3, seed=8), whole, atol=1e-3)


def test_files_are_encoded_once(encoder: ImageEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "images", FEWEST)
    first, copies = encoder.encode(paths), encoder.encode_augmented(paths, 2, seed=0)
    assert torch.equal(first, tiny_encoder().encode(list(map(str, paths))))
    monkeypatch.setattr(encoder, "_inputs", None)  # it would be called to encode anything
    progress = Counting()
    assert torch.equal(encoder.encode(paths, progress), first)
    assert torch.equal(encoder.encode_augmented(paths, 2, seed=0, progress=progress), copies)
    assert progress.tasks == [["encode", 0, "images", 0]] * 2
    paths[3].replace(tmp_path / "moved.png")
    assert torch.equal(encoder.encode([*paths[:3], tmp_path / "moved.png", *paths[4:]]), first), "by contents, not by name"
    with pytest.raises(TypeError):
        encoder.encode_augmented([*paths[:3], tmp_path / "moved.png", *paths[4:]], 2, seed=1)


def test_a_cache_that_cannot_be_written_stops_nothing(
    encoder: ImageEncoder, tmp_path: Path, fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Silent):
        def say(self, line: str) -> None:
            lines.append(line)

    lines: list[str] = []
    files = write_images(tmp_path / "images", FEWEST + 1)
    monkeypatch.setattr(cache, "SECONDS_BETWEEN_BLOCKS", 0)
    fresh_cache.parent.mkdir(parents=True, exist_ok=True)
    fresh_cache.write_text("a file in the place of the folder")
    features = encoder.encode(files, Told())
    assert len(lines) == 1
    assert re.fullmatch(
        r"features are not cached \(Not a directory, .*\): set PROTOGRAPH_CACHE to a folder that can be written", lines[0]
    )
    fresh_cache.unlink()
    assert torch.equal(features, encoder.encode(files))


def test_a_changed_file_is_encoded_again(encoder: ImageEncoder, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "images", FEWEST + 2)
    first = encoder.encode(paths)
    stamp = paths[2].stat()
    Image.fromarray(blocks(30, 24, 99)).save(paths[2])
    os.utime(paths[2], ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    progress = Counting()
    second = encoder.encode(paths, progress)
    assert progress.tasks == [["encode", 1, "images", 1]]
    same = [row for row in range(len(paths)) if row != 2]
    assert torch.equal(first[same], second[same])
    assert torch.allclose(second[2], encoder.encode([blocks(30, 24, 99)])[0], atol=1e-6)


def test_another_network_or_preparation_has_a_cache_of_its_own(encoder: ImageEncoder, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "images", FEWEST)
    first = encoder.encode(paths)
    for other in (tiny_encoder(seed=1), tiny_encoder(size=24)):
        assert other.digest() != encoder.digest()
        assert not torch.allclose(other.encode(paths), first, atol=1e-3)


def test_few_files_and_images_in_memory_leave_the_cache_alone(encoder: ImageEncoder, tmp_path: Path, fresh_cache: Path) -> None:
    encoder.encode(write_images(tmp_path / "images", FEWEST - 1))
    encoder.encode([blocks(30, 24, place) for place in range(2 * FEWEST)])
    assert not fresh_cache.exists()


def test_the_same_contents_are_encoded_once(encoder: ImageEncoder, tmp_path: Path) -> None:
    (path,) = write_images(tmp_path / "images", 1)
    progress = Counting()
    found = encoder.encode([path] * FEWEST, progress)
    assert progress.tasks == [["encode", 1, "images", 1]]
    assert torch.equal(found, found[:1].expand_as(found))


@pytest.mark.slow
def test_two_processes_encode_the_same_at_once(tmp_path: Path, fresh_cache: Path) -> None:
    write_images(tmp_path / "images", FEWEST)
    code = (
        "import sys; from pathlib import Path; from encoders.images import tiny_encoder;"
        "print(tiny_encoder().encode(sorted(Path(sys.argv[1]).iterdir())).double().sum().item())"
    )
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")])}
    command = [sys.executable, "-c", code, str(tmp_path / "images")]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {one.communicate()[0] for one in both}
    assert [one.returncode for one in both] == [0, 0]
    assert len(answers) == 1
    assert not list(fresh_cache.rglob(".*")), "nothing half-written"


def test_a_killed_encoding_goes_on(encoder: ImageEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_images(tmp_path / "images", FEWEST + 4)
    paths[-1].write_text("no image")
    monkeypatch.setitem(BATCH, "cpu", 8)
    with pytest.raises(InputError, match=r"image .*019\.png cannot be read"):
        encoder.encode(paths)
    progress = Counting()
    encoder.encode(paths[:-1], progress)
    assert progress.tasks == [["encode", 3, "images", 3]], "all batches before the error are kept"


def test_several_workers_give_what_one_gives(encoder: ImageEncoder) -> None:
    """Each takes a batch from the image to its features, with one thread of PyTorch."""
    arrays = [blocks(30, 24, 5, place) for place in range(2 * BATCH["cpu"] + 5)]
    whole, copies = encoder.encode(arrays), encoder.encode_augmented(arrays[:5], 2, seed=3)
    torch.set_num_threads(3)
    try:
        assert torch.allclose(encoder.encode(arrays), whole, atol=1e-6)
        assert torch.allclose(encoder.encode(arrays[:2]), whole[:2], atol=1e-6)
        assert torch.allclose(encoder.encode_augmented(arrays[:5], 2, seed=3), copies, atol=1e-6)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("size", "count"), [(20, 16), (260, 16), (640, 4), (2000, 1)])
def test_fewer_large_images_are_passed_together(encoder: ImageEncoder, size: int, count: int) -> None:
    other = copy.copy(encoder)
    other.preparation = Preparation((3, size, size), encoder.preparation.mean, encoder.preparation.std, size)
    assert other.batch_size() == count


def test_where_a_score_comes_from_adds_up(encoder: ImageEncoder) -> None:
    image, weights = blocks(30, 24, 8), torch.randn(encoder.features)
    for seeing in (encoder, KeptEncoder(encoder.description(), encoder.tensors(), encoder.features, open_encoder)):
        pixels = seeing.prepare(image)
        assert np.array_equal(pixels.permute(1, 2, 0), Image.fromarray(image).resize((20, 20), Image.Resampling.BILINEAR))
        scores = seeing.score_map(pixels, weights)
        assert torch.allclose(seeing.encode_pixels(pixels[None]), encoder.encode([image]))
        assert scores.shape == (1, 1)
        assert scores.sum().item() == pytest.approx((encoder.encode([image])[0] @ weights).item(), rel=1e-4)


def test_a_network_that_keeps_no_positions_apart_says_so(encoder: ImageEncoder) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1200, 4))
    origin = {"kind": "timm", "name": "vit"}
    other = ImageEncoder(network, encoder.preparation, encoder.augmentation, origin, device=torch.device("cpu"))
    with pytest.raises(InputError, match="there is no heatmap: the features of timm model 'vit' do not add up over positions"):
        other.score_map(other.prepare(blocks(20, 20, 1)), torch.zeros(4))


def test_nothing_gives_nothing(encoder: ImageEncoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.features)
    assert encoder.encode_augmented([], 4, 0).shape == (0, 4, encoder.features)


@pytest.mark.parametrize("single", ["a.png", Path("a.png"), b"a", Image.new("RGB", (3, 3))])
def test_a_single_image_is_refused(encoder: ImageEncoder, single: Any) -> None:
    with pytest.raises(InputError, match="give a list of images, not a single"):
        encoder.encode(single)


def test_it_is_built_again_from_json_and_tensors(encoder: ImageEncoder) -> None:
    again = open_encoder(json.loads(json.dumps(encoder.description())), encoder.tensors())
    array = blocks(30, 24, 6)
    assert torch.equal(again.encode([array]), encoder.encode([array]))
    assert again.digest() == encoder.digest()


def test_it_can_be_pickled_and_copied(encoder: ImageEncoder) -> None:
    array = blocks(30, 24, 6)
    for again in (pickle.loads(pickle.dumps(encoder)), copy.deepcopy(encoder)):
        assert torch.equal(again.encode([array]), encoder.encode([array]))


def test_the_network_is_frozen(encoder: ImageEncoder) -> None:
    def state() -> str:
        return hashlib.sha256(b"".join(value.numpy().tobytes() for value in encoder.tensors().values())).hexdigest()

    before = state()
    encoder.encode([blocks(30, 24, place) for place in range(4)])
    assert state() == before
    assert not any(parameter.requires_grad for parameter in encoder.network.parameters())


def test_a_grey_network_takes_colours() -> None:
    grey = tiny_encoder(channels=1)
    array = blocks(20, 20, 7)
    shown = np.asarray(Image.fromarray(array).convert("L"))
    assert torch.equal(grey.encode([array]), grey.encode([shown]))
