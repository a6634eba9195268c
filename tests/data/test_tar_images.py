"""Tars as webdataset writes them: which images they hold, and what is refused."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from protograph._internal.errors import InputError
from protograph.data.tar_images import read_tar_index


def write_tar(path: Path, members: dict[str, bytes], form: int = tarfile.PAX_FORMAT, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=form) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_images_are_found_with_their_classes_in_the_order_of_the_tar(tmp_path: Path, form: int) -> None:
    long = "d" * 90 + "/" + "n" * 60  # longer than a header has room for
    members = {
        "b/1.left.jpg": b"left",
        "b/1.cls": b"owl\n",
        "a/2.PNG": b"two",
        "a/2.json": json.dumps({"width": 3, "label": 7}).encode(),
        f"{long}.jpg": b"long",
        "a/3.txt": b"no image",
        ".hidden.jpg": b"hidden",
        "readme": b"nothing",
    }
    index = read_tar_index(write_tar(tmp_path / "a.tar", members, form))
    assert [image.name for image in index.images] == ["a/2.PNG", f"{long}.jpg"]
    assert [image.read() for image in index.images] == [b"two", b"long"]
    assert index.labels == ["7", None]


def test_a_class_is_a_name_or_a_number_and_cls_counts_more_than_json(tmp_path: Path) -> None:
    members = {"1.json": b'{"class": "crow"}', "1.jpg": b"1", "1.cls": b"owl", "2.jpg": b"2", "2.cls": b" 12 "}
    assert read_tar_index(write_tar(tmp_path / "a.tar", members)).labels == ["owl", "12"]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"../1.jpg": b""}, "outside its folder"),
        ({"/1.jpg": b""}, "outside its folder"),
        ({"a\\1.jpg": b""}, "outside its folder"),
        ({"1.jpg": b"", "1.png": b""}, "both 1.jpg and 1.png"),
        ({"1.jpg": b"", "1.cls": b" "}, "names no class"),
        ({"1.jpg": b"", "1.cls": b"\xff"}, "1.cls of .* cannot be read"),
        ({"1.jpg": b"", "1.json": b"{"}, "1.json of .* cannot be read"),
        ({"1.jpg": b"", "1.json": b'{"label": true}'}, "names no class"),
        ({"1.jpg": b"", "1.json": b'{"label": "\\ud800"}'}, "1.json of .* cannot be read"),
        ({"1.jpg": b"", "1.cls": b"x" * 1_000_001}, "too many for the name of a class"),
    ],
)
def test_members_that_cannot_be_used_are_named(tmp_path: Path, members: dict[str, bytes], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_tar_index(write_tar(tmp_path / "a.tar", members))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("1.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(InputError, match=r"'1\.jpg' that is a link or outside its folder"):
        read_tar_index(tmp_path / "a.tar")


def test_a_tar_that_is_compressed_cut_or_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not compressed"):
        read_tar_index(write_tar(tmp_path / "a.tar", {"1.jpg": b"1"}, mode="w:gz"))
    (tmp_path / "b.tar").write_bytes(b"nothing" * 200)
    with pytest.raises(InputError, match="cannot be read as a tar"):
        read_tar_index(tmp_path / "b.tar")
    whole = write_tar(tmp_path / "c.tar", {"1.jpg": b"1" * 5000}).read_bytes()
    (tmp_path / "c.tar").write_bytes(whole[:3000])
    with pytest.raises(InputError, match=r"c\.tar"):
        read_tar_index(tmp_path / "c.tar")
    with pytest.raises(InputError, match="there is no tar"):
        read_tar_index(tmp_path / "d.tar")


@pytest.mark.parametrize("name", ["1.txt", "1.jpg"])
def test_a_tar_that_leads_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Python's tarfile read the same two members for ever, and an image of -1 bytes was all the rest of the tar."""
    (tmp_path / "a.tar").write_bytes(endless_tar(name))
    counted = limited_next(monkeypatch)
    with pytest.raises(InputError, match="cannot be read as a tar"):
        read_tar_index(tmp_path / "a.tar")
    assert len(counted) < 5


def endless_tar(name: str) -> bytes:
    """A tar whose second member has a size that leads back to the first."""
    first, second = tarfile.TarInfo("0.txt"), tarfile.TarInfo(name)
    second.size = -1024
    return b"".join(member.tobuf(tarfile.GNU_FORMAT) for member in (first, second)) + bytes(1024)


def limited_next(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Let the members of a tar end after a thousand of them; their list."""
    counted: list[None] = []
    real = tarfile.TarFile.next

    def limited(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
        counted.append(None)
        assert len(counted) < 1000, "it has no end"
        return real(tar)

    monkeypatch.setattr(tarfile.TarFile, "next", limited)
    return counted


def test_a_tar_that_shrinks_after_it_was_indexed_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"1" * 5000})
    (image,) = read_tar_index(path).images
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="cut short"):
        image.read()
