"""Thumbnails of examples: how they are made, which follow their examples through every change, and what a file may hold."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from kept import D, blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier.thumbnails import (
    LONGEST_EDGE,
    MOST_BYTES,
    Examples,
    check_thumbnail,
    jpeg_size,
    make_thumbnail,
    make_thumbnails,
)


def image(level: int = 0, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A plain image whose colour is its own, and which a thumbnail tells from others."""
    return Image.new("RGB", size, (level, 255 - level, 128))


def level(content: bytes | None) -> int | None:
    """The level of the image that a thumbnail is of, to the nearest ten."""
    if content is None:
        return None
    return 10 * round(np.asarray(Image.open(BytesIO(content)).convert("RGB"))[..., 0].mean() / 10)


def levels(known: Classifier, name: Any) -> list[int | None]:
    return [level(content) for content in known.thumbnails_of(name)]


@pytest.fixture
def known() -> Classifier:
    """Two fitted classes of four images, and one added."""
    images = [image(10 * row) for row in range(8)]
    fitted = Classifier("conv4", thumbnails=True, keep_features=True).fit(images, list("aabbaabb"))
    return fitted.add_class("x", [image(100), image(110)])


@pytest.mark.parametrize(
    ("size", "expected"), [((40, 30), (40, 30)), ((960, 480), (96, 48)), ((480, 960), (48, 96)), ((3000, 2), (96, 1))]
)
def test_the_longest_edge_has_96_pixels_at_most(size: tuple[int, int], expected: tuple[int, int], tmp_path: Path) -> None:
    image(100, size).save(tmp_path / "large.jpg")
    image(100, size).save(tmp_path / "large.png")
    for given in (tmp_path / "large.jpg", tmp_path / "large.png", image(100, size)):
        content = make_thumbnail(given, "it")
        assert Image.open(BytesIO(content)).size == jpeg_size(content) == expected
        assert level(content) == 100
        assert len(content) < 10_000


def test_a_thumbnail_holds_pixels_and_nothing_else(tmp_path: Path) -> None:
    told, exif = image(50, (60, 20)), Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret place"  # turned by a quarter
    told.save(tmp_path / "told.jpg", exif=exif, comment=b"secret comment", icc_profile=b"secret profile" * 20)
    content = make_thumbnail(tmp_path / "told.jpg", "it")
    assert b"secret" not in content
    assert jpeg_size(content) == (20, 60)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "1", "I;16", "F"])
def test_images_of_all_modes_have_thumbnails(mode: str) -> None:
    check_thumbnail(make_thumbnail(image().convert("L").convert(mode) if mode != "I;16" else Image.new(mode, (9, 9)), "it"))


def test_arrays_and_tensors_have_thumbnails_in_order() -> None:
    array = np.asarray(image(60))
    given = [array, array[..., 0], torch.from_numpy(array.copy()).permute(2, 0, 1), image(60)] * 40
    made = make_thumbnails(given, Silent())
    assert [level(content) for content in made] == [60] * 160
    assert make_thumbnails([], Silent()) == ()


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"image .*bad.jpg cannot be read: it is not one of"):
        make_thumbnails([tmp_path / "bad.jpg"], Silent())
    with pytest.raises(InputError, match="more than 64 million"):
        make_thumbnail(Image.new("1", (9000, 9000)), "it")


def test_thumbnails_follow_their_examples(known: Classifier) -> None:
    assert levels(known, "a") == [0, 10, 40, 50]
    assert levels(known, "b") == [20, 30, 60, 70]
    assert levels(known, "x") == [100, 110]
    known.add_examples("a", [image(120)]).add_examples("x", [image(130)])
    assert (levels(known, "a"), levels(known, "x")) == ([0, 10, 40, 50, 120], [100, 110, 130])
    known.rename_class("a", "z").remove_class("b")
    assert (levels(known, "z"), levels(known, "x")) == ([0, 10, 40, 50, 120], [100, 110, 130])
    known.add_class("b", [image(140)])
    assert levels(known, "b") == [140]
    known.refit()
    assert (levels(known, "z"), levels(known, "b")) == ([0, 10, 40, 50, 120], [140])
    with pytest.raises(InputError, match="there is no class 'a'"):
        known.thumbnails_of("a")


def test_thumbnails_come_back_from_a_file(known: Classifier, tmp_path: Path) -> None:
    known.add_class("plain", known.encode_examples([image(1)]).features).save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    for name in loaded.classes_:
        assert loaded.thumbnails_of(name) == known.thumbnails_of(name)
    assert loaded.thumbnails_of("plain") == [None]
    assert loaded.thumbnail_bytes == sum(len(content) for name in "abx" for content in known.thumbnails_of(name) if content)
    loaded.add_examples("plain", [image(150)])
    assert levels(loaded, "plain") == [None, 150]


def test_examples_are_encoded_apart_from_the_classifier_that_takes_them(known: Classifier) -> None:
    examples = known.encode_examples([image(10), image(20), image(30)])
    assert (examples.features.shape, len(examples)) == ((3, known.n_features_in_), 3)
    before = known.predict_proba([image(15)])
    direct = known.add_class("y", examples).predict_proba([image(15)])
    assert levels(known, "y") == [10, 20, 30]
    assert not np.array_equal(before, direct)
    assert levels(known.add_examples("y", examples[[2, 0]]), "y") == [10, 20, 30, 30, 10]
    again = known.remove_class("y").add_class("y", [image(10), image(20), image(30)]).predict_proba([image(15)])
    np.testing.assert_allclose(again, direct, atol=1e-6)


def test_without_the_parameter_there_are_none() -> None:
    images = [image(10 * row) for row in range(8)]
    known = Classifier("conv4").fit(images, list("aabbaabb"))
    assert known.encode_examples(images[:2]).thumbnails == (None, None)
    assert known.thumbnails_of("a") == [None] * 4
    assert known.thumbnail_bytes == 0
    known.set_params(thumbnails=True).add_examples("a", images[:1])
    assert levels(known, "a") == [None] * 4 + [0]
    known.set_params(thumbnails=False).add_examples("a", images[:1])
    assert levels(known, "a") == [None] * 4 + [0, None]


def test_a_classifier_without_a_class_takes_thumbnails() -> None:
    known = Classifier.empty("conv4", thumbnails=True).add_class("a", [image(10)])
    assert levels(known, "a") == [10]
    known.add_class("b", [image(20), image(30)])
    assert levels(known, "b") == [20, 30]
    assert known.remove_class("a").remove_class("b").thumbnail_bytes == 0


def test_a_variant_has_thumbnails(tmp_path: Path) -> None:
    images = [image(10 * row) for row in range(8)]
    known = Classifier("conv4", variant="gcgpn-cos-aux", steps=0, thumbnails=True).fit(images, list("aabbaabb"))
    known.add_class("x", images[:1]).save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    assert (levels(loaded, "a"), levels(loaded, "x")) == ([0, 10, 40, 50], [0])


def test_a_classifier_of_features_has_none() -> None:
    with pytest.raises(InputError, match="thumbnails are made of images, and this is a classifier of features"):
        Classifier(thumbnails=True).fit(*blobs())
    known = Classifier().fit(*blobs())
    with pytest.raises(InputError, match="encode_examples takes images"):
        known.encode_examples(np.ones((2, D)))
    assert known.thumbnails_of("a") == [None] * 12


def test_thumbnails_that_are_none_are_refused() -> None:
    features = torch.zeros(1, D)
    with pytest.raises(InputError, match="1 examples have 0 thumbnails"):
        Examples(features, ())
    for content, reason in _bad():
        with pytest.raises(InputError, match=reason):
            Examples(features, (content,))
    with pytest.raises(ValueError, match="X has 6 features"):
        Classifier().fit(*blobs()).add_class("x", Examples(torch.zeros(1, D + 1), (None,)))


def _bad() -> list[tuple[bytes, str]]:
    good = make_thumbnail(image(), "it")
    at = good.index(b"\xff\xc0")
    large = good[: at + 5] + (LONGEST_EDGE + 1).to_bytes(2) + good[at + 7 :]
    flat = good[: at + 5] + bytes(2) + good[at + 7 :]
    return [
        (b"", "no JPEG"), (b"GIF89a", "no JPEG"), (good[:-1], "no JPEG"), (b"\xff\xd8\xff\xd9", "of no size"),
        (b"\xff\xd8" + b"\xff\xe0\x00\x00" * 9 + b"\xff\xd9", "of no size"), (large, "40 x 97 pixels"),
        (flat, "40 x 0 pixels"), (good[:-2] + bytes(MOST_BYTES) + b"\xff\xd9", "more than 65,536"),
    ]  # fmt: skip


def test_a_file_holds_nothing_but_thumbnails(known: Classifier, tmp_path: Path) -> None:
    from test_model_file import rewritten

    def change(values: dict[str, Any], tensors: dict[str, torch.Tensor], content: bytes) -> None:
        values["thumbnails"] = [["x", [len(content), 0]]]
        tensors["thumbnails"] = torch.frombuffer(bytearray(content or b"x"), dtype=torch.uint8)

    for content, reason in _bad():
        known.save(tmp_path / "kept.pg")
        rewritten(tmp_path / "kept.pg", lambda values, tensors, content=content: change(values, tensors, content))
        expected = "Expected `int` <= 65536" if len(content) > MOST_BYTES else reason if content else "'thumbnails' is"
        with pytest.raises(InputError, match=rf"kept.pg is damaged \(.*{expected}"):
            Classifier.load(tmp_path / "kept.pg")
