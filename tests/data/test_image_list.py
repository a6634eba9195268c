"""The list of images to encode: which, in which order, and what its digest depends on."""

import os
from pathlib import Path

import pytest

from data.layouts import blocks, save, write_folder
from data.test_tar_images import write_tar
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data.image_list import ImageList, list_images


def listed(source: Path, labelled: bool = True, skip_bad: bool = False) -> ImageList:
    return list_images(source, labelled, skip_bad, Silent())


def test_class_folders_parts_and_tables_are_listed_by_class_and_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "birds", {"owl": 2, "crow": 1})
    names = [(image.name, image.label, image.part) for image in listed(folder).images]
    assert names == [("crow/000.png", "crow", None), ("owl/000.png", "owl", None), ("owl/001.png", "owl", None)]
    (tmp_path / "birds.csv").write_text("path,label\nbirds/owl/001.png,o\nbirds/crow/000.png,c\nbirds/owl/000.png,o\n")
    table = listed(tmp_path / "birds.csv")
    assert [(image.name, image.label) for image in table.images] == [
        ("birds/crow/000.png", "c"), ("birds/owl/000.png", "o"), ("birds/owl/001.png", "o")
    ]  # fmt: skip
    assert all(image.contents == tmp_path / image.name for image in table.images)
    (tmp_path / "parted").mkdir()
    for part in ("train", "test"):
        write_folder(tmp_path / "parted" / part, {"owl": 1, "crow": 1})
    parted = {image.name: image.part for image in listed(tmp_path / "parted").images}
    assert parted["train/owl/000.png"] == "train"
    assert parted["test/owl/000.png"] == "test"


def test_without_classes_images_are_found_at_any_depth(tmp_path: Path) -> None:
    save(tmp_path / "b.png", blocks(8, 8, 0))
    save(tmp_path / "deep" / "er" / "a.png", blocks(8, 8, 1))
    images = listed(tmp_path, labelled=False)
    assert [image.name for image in images.images] == ["b.png", "deep/er/a.png"]
    assert not images.labelled
    with pytest.raises(InputError, match="takes a folder or tars"):
        listed(tmp_path / "b.png", labelled=False)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no images"):
        listed(tmp_path / "none", labelled=False)


def test_tars_in_a_folder_are_one_list(tmp_path: Path) -> None:
    write_tar(tmp_path / "b.tar", {"1.jpg": b"one", "1.cls": b"owl"})
    write_tar(tmp_path / "a.tar", {"1.jpg": b"two!", "1.cls": b"crow"})
    images = listed(tmp_path)
    assert [(image.name, image.label, image.size()) for image in images.images] == [
        ("a.tar/1.jpg", "crow", 4), ("b.tar/1.jpg", "owl", 3)
    ]  # fmt: skip
    assert [image.name for image in listed(tmp_path / "b.tar").images] == ["b.tar/1.jpg"]
    assert not listed(tmp_path, labelled=False).labelled
    write_tar(tmp_path / "c.tar", {"1.jpg": b"one"})
    with pytest.raises(InputError, match=r"c\.tar/1\.jpg has no class, though other images have"):
        listed(tmp_path)


def test_a_parquet_table_is_read_as_a_csv_is(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write_folder(tmp_path / "birds", {"owl": 2, "crow": 1})
    rows = {"file_name": [f"birds/{name}.png" for name in ("owl/001", "crow/000", "owl/000")], "label": ["o", "c", "o"]}
    parquet.write_table(arrow.table(rows), tmp_path / "birds.parquet")
    lines = [f"{name},{label}" for name, label in zip(*rows.values(), strict=True)]
    (tmp_path / "birds.csv").write_text("\n".join(["file_name,label", *lines]))
    assert listed(tmp_path / "birds.parquet").digest() == listed(tmp_path / "birds.csv").digest()
    parquet.write_table(arrow.table({"file_name": ["gone.png"], "label": ["o"]}), tmp_path / "gone.parquet")
    with pytest.raises(InputError, match=r"line 1 of .*gone\.parquet: there is no image gone\.png"):
        listed(tmp_path / "gone.parquet")
    parquet.write_table(arrow.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="no column of images, but 'x'"):
        listed(tmp_path / "x.parquet")
    parquet.write_table(arrow.table(rows), tmp_path / "text.parquet", compression="none", use_dictionary=False)
    damaged = (tmp_path / "text.parquet").read_bytes().replace(b"birds/crow", b"birds/\x80row")
    for content in (b"nothing", damaged):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(InputError, match="not a readable parquet file"):
            listed(tmp_path / "bad.parquet")


def test_the_digest_depends_on_names_and_classes_alone(tmp_path: Path) -> None:
    first = write_folder(tmp_path / "a" / "birds", {"owl": 2, "crow": 1})
    second = write_folder(tmp_path / "b" / "birds", {"owl": 2, "crow": 1})
    assert listed(first).digest() == listed(second).digest()
    os.utime(second / "owl" / "000.png", (0, 0))
    assert listed(first).digest() == listed(second).digest()
    (second / "owl" / "000.png").rename(second / "owl" / "002.png")
    assert listed(first).digest() != listed(second).digest()
    assert listed(first).digest() != listed(first, labelled=False).digest()


def test_an_image_that_is_gone_has_no_size(tmp_path: Path) -> None:
    image = listed(write_folder(tmp_path / "birds", {"owl": 1})).images[0]
    assert isinstance(image.contents, Path)
    assert image.size() == image.contents.stat().st_size
    image.contents.unlink()
    assert image.size() == -1
