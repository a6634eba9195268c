import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.layouts import blocks, save, write_folder
from data.test_tar_images import endless_tar, limited_next
from protograph._internal.errors import InputError
from protograph._internal.progress import Advance, Silent
from protograph.data import decode, reading
from protograph.data.images import IMAGE_NORMALISATION
from protograph.data.reading import Images, find_folders, find_names, read_columns, read_image_arrays, read_images, unpacked

SIZE = 24


class Heard:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, int, str]] = []
        self.steps: list[int] = []

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        self.tasks.append((title, total, unit))
        yield self.steps.append

    def say(self, line: str) -> None:
        pytest.fail(f"said {line}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for every test, since some count what is in it."""
    monkeypatch.setenv("PROTOGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "root", {"a": 3, "b": 2}, (SIZE, SIZE))


def read(root: Path, names: list[str] | None = None, progress: Heard | Silent | None = None) -> Images:
    names = names or sorted(str(path.relative_to(root)) for path in root.rglob("*.*"))
    return read_images(root, names, SIZE, IMAGE_NORMALISATION, progress or Silent())


def naive(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        whole = image.convert("RGB")
    return np.asarray(whole.resize((SIZE, SIZE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def test_images_are_what_pillow_makes_of_each_file(root: Path) -> None:
    save(root / "b" / "wide.png", blocks(30, 50, 9, 1))
    save(root / "b" / "grey.jpg", blocks(SIZE, SIZE, 9, 2), "L")
    found = read(root)
    assert found.store.image_shape == (3, SIZE, SIZE)
    assert found.errors == {}
    for row, name in enumerate(found.names):
        assert np.array_equal(found.store.pixels[row], naive(root / name))
        assert bool(found.grey[row]) == name.endswith("grey.jpg")
        with Image.open(root / name) as image:
            assert tuple(found.sizes[row]) == image.size
    assert len(set(found.digests.tolist())) == len(found.names)


@pytest.mark.slow
def test_several_workers_put_every_image_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers and jobs of seven images, the last one of fewer."""
    monkeypatch.setattr(reading, "FILES_OF_A_JOB", 7)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    root = write_folder(tmp_path / "root", {"a": 40}, (SIZE, SIZE))
    (root / "a" / "033.png").write_bytes(b"nothing")
    heard = Heard()
    found = read(root, progress=heard)
    assert heard.tasks == [("read images", 40, "images")]
    assert sorted(heard.steps) == [5, 7, 7, 7, 7, 7]
    assert list(found.errors) == [33]
    for row, name in enumerate(found.names):
        assert np.array_equal(found.store.pixels[row], naive(root / name) if row != 33 else np.zeros((3, SIZE, SIZE)))


def test_a_second_opening_decodes_nothing(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = read(root)
    monkeypatch.setattr(reading, "_decode", lambda *_: pytest.fail("decoded again"))
    two = read(root)
    assert np.array_equal(one.store.pixels, two.store.pixels)
    assert (one.digests == two.digests).all()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["pixels.npy", "read.npz", "errors.json"])
@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_cache_that_is_not_whole_any_more_is_built_again(root: Path, cache: Path, lost: str, how: str) -> None:
    one = read(root).store.pixels.clone()
    (file,) = cache.glob(f"*/{lost}")
    file.unlink()
    if how == "empty":
        file.touch()
    for found in (read(root), read(root)):
        assert np.array_equal(found.store.pixels, one)
    assert len(list(cache.iterdir())) == 1


def test_what_could_not_be_read_is_remembered_with_its_reason(root: Path) -> None:
    (root / "a" / "000.png").write_bytes((root / "a" / "001.png").read_bytes()[:60])
    names = ["a/000.png", "a/001.png", "a/absent.png"]
    for found in (read(root, names), read(root, names)):
        assert list(found.errors) == [0, 2]
        assert "No such file" in found.errors[2]
        assert found.duplicates() == [], "what cannot be read equals nothing"


@pytest.mark.slow
def test_a_changed_image_is_never_served_from_the_cache(root: Path) -> None:
    path = save(root / "a" / "0.ppm", blocks(SIZE, SIZE, 1))
    before, size = read(root), path.stat().st_size
    save(path, blocks(SIZE, SIZE, 2))
    assert path.stat().st_size == size
    after = read(root)
    assert np.array_equal(after.store.pixels[0], naive(path))
    assert before.digests[0] != after.digests[0]
    assert (before.digests[1:] == after.digests[1:]).all()


@pytest.mark.slow
def test_a_changed_image_with_its_old_time_is_never_served_from_the_cache(root: Path) -> None:
    """As copying with times kept, or unpacking another archive over the first, leaves it."""
    path = save(root / "a" / "0.ppm", blocks(SIZE, SIZE, 1))
    stamp = path.stat()
    read(root)
    save(path, blocks(SIZE, SIZE, 2))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_mtime_ns == stamp.st_mtime_ns
    assert np.array_equal(read(root).store.pixels[0], naive(path))


@pytest.mark.slow
def test_a_image_that_only_got_another_time_is_read_again_and_is_the_same(root: Path, cache: Path) -> None:
    before = read(root)
    os.utime(root / "a" / "000.png", ns=(1, 1))
    after = read(root)
    assert len(list(cache.iterdir())) == 2
    assert (before.digests == after.digests).all()


@pytest.mark.slow
def test_a_decoder_that_is_installed_later_reads_what_could_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photographs in HEIC and AVIF are listed either way; none is left out without a word."""
    (root / "photo.HEIC").write_bytes(b"no image")
    assert "photo.HEIC" in reading.find_names(root)
    built: list[str] = []
    monkeypatch.setattr(reading, "open_images", lambda key, *arguments: built.append(key))
    for decoders in (["AVIF"], ["AVIF", "HEIC"], ["AVIF"]):
        monkeypatch.setattr(decode, "installed_decoders", lambda decoders=decoders: decoders)
        for names in (["photo.HEIC"], ["other.png"]):
            reading.read_images(root, names, 84, IMAGE_NORMALISATION, Silent())
    heic, png = built[::2], built[1::2]
    assert heic[0] == heic[2] != heic[1]
    assert len(set(png)) == 1, "other images stay in the cache"


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    for name in ("a/one.png", "a/two.CR2", "a/three.cr2", "b/four.HEIC", "b/notes", "b/.hidden.txt", "b/deep.txt/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert reading.count_other_files([tmp_path / "a", tmp_path / "b"]) == {".cr2": 2, "notes": 1}


def test_a_image_that_appears_is_found(root: Path) -> None:
    names = ["a/000.png", "a/late.png"]
    assert list(read(root, names).errors) == [1]
    save(root / "a" / "late.png", blocks(9, 9, 3))
    assert read(root, names).errors == {}


@pytest.mark.slow
def test_other_sizes_and_other_names_are_other_images(root: Path) -> None:
    small = read_images(root, ["a/000.png"], 8, IMAGE_NORMALISATION, Silent())
    assert small.store.image_shape == (3, 8, 8)
    assert len(read(root, ["a/000.png"]).store) == 1
    assert len(read(root, ["a/000.png", "a/001.png"]).store) == 2


def test_the_same_files_by_another_path_are_the_same_images(root: Path, cache: Path) -> None:
    (root.parent / "link").symlink_to(root)
    read(root)
    read_images(root.parent / "link", read(root).names, SIZE, IMAGE_NORMALISATION, Silent())
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["new\nline.png", "quote'\".png", "ünï.png", "back\\slash.png", " .png", "\udcff.png"])
def test_any_file_name_can_be_read(root: Path, name: str) -> None:
    save(root / "any.png", blocks(SIZE, SIZE, 4))
    os.rename(os.fsencode(root / "any.png"), os.fsencode(root) + b"/" + os.fsencode(name))
    assert read(root, [name]).errors == {}


def test_no_images_are_no_mistake_of_the_reader(root: Path) -> None:
    assert len(read_images(root, [], SIZE, IMAGE_NORMALISATION, Silent()).store) == 0


SCRIPTS = {
    "ends at once": "",
    "ends at its first job": "input()",
    "fails": "input(); raise SystemExit(3)",
    "ends at its second job": "import json\njob = json.loads(input())\n"
    "print(json.dumps([[None, 1, 1, False, 'x']] * len(job[3])), flush=True)\ninput()",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_worker_that_dies_is_an_error_and_leaves_nothing(
    tmp_path: Path, root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (tmp_path / "dies.py").write_text(script)
    monkeypatch.setattr(decode, "__file__", str(tmp_path / "dies.py"))
    monkeypatch.setattr(reading, "FILES_OF_A_JOB", 1)
    with pytest.raises(RuntimeError, match=r"a worker ended while it read one of .*\.png"):
        read(root)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_an_interruption_leaves_no_half_folder(root: Path, cache: Path, kind: type[BaseException]) -> None:
    class Interrupted(Heard):
        @contextmanager
        def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
            def stop(count: int) -> None:
                raise kind("stop")

            yield stop

    with pytest.raises(kind, match="stop"):
        read(root, progress=Interrupted())
    assert list(cache.iterdir()) == []
    assert read(root).errors == {}


def test_workers_leave_ctrl_c_to_their_master(root: Path, tmp_path: Path) -> None:
    """A terminal sends the signal to them, too: they must not print, and end when their input does."""
    target = tmp_path / "pixels.npy"
    np.save(target, np.zeros((1, 3, SIZE, SIZE), np.uint8))
    job = json.dumps([str(target), 0, SIZE, [str(root / "a" / "000.png")]]) + "\n"
    command = [sys.executable, "-P", decode.__file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **pipes) as worker:  # type: ignore[call-overload]
        worker.stdin.write(job)
        assert json.loads(worker.stdout.readline())[0][0] is None
        worker.send_signal(signal.SIGINT)
        worker.stdin.write(job)
        assert json.loads(worker.stdout.readline())[0][0] is None
        answer, told = worker.communicate()
    assert (worker.returncode, answer, told) == (0, "", "")


def test_arrays_are_kept_with_their_names(tmp_path: Path, cache: Path) -> None:
    source = tmp_path / "source.pkl"
    source.write_bytes(b"1")
    pixels = np.stack([blocks(6, 9, place) for place in (1, 2, 3, 1)])
    loads = []

    def load() -> tuple[list[str], Iterator[np.ndarray]]:
        loads.append(1)
        return ["a", "b", "c", "d"], iter((pixels[:1], pixels[1:]))

    for _ in range(2):
        found = read_image_arrays([source], load, IMAGE_NORMALISATION)
        assert list(found.names) == ["a", "b", "c", "d"]
        assert np.array_equal(found.store.pixels, pixels.transpose(0, 3, 1, 2))
        assert found.sizes.tolist() == [[9, 6]] * 4
        assert found.duplicates() == [[0, 3]]
    assert len(loads) == 1
    source.write_bytes(b"2")
    read_image_arrays([source], load, IMAGE_NORMALISATION)
    assert len(loads) == 2


def test_duplicates_are_found_across_names(root: Path) -> None:
    (root / "b" / "copy.png").write_bytes((root / "a" / "001.png").read_bytes())
    found = read(root)
    assert [[found.names[row] for row in rows] for rows in found.duplicates()] == [["a/001.png", "b/copy.png"]]


def test_only_images_and_visible_folders_are_listed(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "c.webp", "notes.txt", ".hidden.png", "._a.png", "png", "noend"):
        (tmp_path / name).write_bytes(b"")
    for name in ("two", "one", ".git"):
        (tmp_path / name).mkdir()
    assert find_names(tmp_path) == ["a.png", "b.JPG", "c.webp"]
    assert find_folders(tmp_path) == ["one", "two"]


def test_columns_of_a_spreadsheet_are_read_and_others_named(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_bytes("class,split\nKäfer,seen\nshort\n".encode("utf-8-sig"))
    assert [dict(row) for row in read_columns(path, "class", "split")] == [
        {"class": "Käfer", "split": "seen"}, {"class": "short", "split": None},
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"own\.csv has the columns \['class', 'split'\]: it needs 'filename' and 'label'"):
        read_columns(path, "filename", "label")
    path.write_bytes("class,split\nKäfer,seen\n".encode("latin1"))
    with pytest.raises(InputError, match=r"own\.csv is not a readable \.csv file .*UTF-8"):
        read_columns(path, "class", "split")
    path.write_bytes(b"")
    with pytest.raises(InputError, match="has the columns None"):
        read_columns(path, "class")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    content = b"written" if kind == tarfile.REGTYPE else b""
    info.size = len(content)
    return info, content


def write_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def long_way_out(target: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Links along a path too long to be resolved: tarfile's own filter was fooled by it (CVE-2025-4517)."""
    part, path, made = "d" * 247, "", []
    for step in "abcdefghijklmnop":
        made += [member(f"{path}{part}", tarfile.DIRTYPE), member(f"{path}{step}", tarfile.SYMTYPE, part)]
        path += f"{part}/"
    along = f"{'/'.join('abcdefghijklmnop')}/{'l' * 254}"
    made.append(member(along, tarfile.SYMTYPE, "../" * 16))
    return [*made, member("escape", tarfile.SYMTYPE, f"{along}{target}"), member("escape/outside.txt")]


ESCAPES: dict[str, Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]] = {
    "upwards": lambda outside: [member("../../outside.txt")],
    "upwards from within": lambda outside: [member("a/../../../outside.txt")],
    "absolute": lambda outside: [member(str(outside))],
    "a symbolic link": lambda outside: [
        member("link", tarfile.SYMTYPE, str(outside.parent)), member("link/outside.txt"),
    ],
    "a relative link": lambda outside: [member("link", tarfile.SYMTYPE, "../.."), member("link/outside.txt")],
    "a hard link": lambda outside: [member("link", tarfile.LNKTYPE, str(outside))],
    "a long way": lambda outside: long_way_out("/../.."),
    "a device": lambda outside: [member("null", tarfile.CHRTYPE)],
    "a pipe": lambda outside: [member("pipe", tarfile.FIFOTYPE)],
}  # fmt: skip


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_a_tar_member_that_would_leave_is_refused_by_name(
    tmp_path: Path, cache: Path, escape: Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]
) -> None:
    outside = tmp_path / "outside.txt"
    members = escape(outside)
    archive = write_tar(tmp_path / "own.tgz", member("fine.txt"), *members)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(
        InputError, match=r"own\.tgz has a member '.*' that is a link or outside its folder: do not use it"
    ) as error:
        unpacked([archive], Silent())
    assert any(info.name in str(error.value) for info, _ in members)
    assert sorted(tmp_path.iterdir()) == sorted([*before, cache])
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("name", ["../outside.txt", "a/../../outside.txt", "/outside.txt"])
def test_a_zip_member_that_would_leave_is_refused_by_name(tmp_path: Path, cache: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "own.zip", "w") as archive:
        archive.writestr("fine.txt", "written")
        archive.writestr(name, "written")
    with pytest.raises(InputError, match=rf"own\.zip has a member '{name}' outside its folder: do not use it"):
        unpacked([tmp_path / "own.zip"], Silent())
    assert list(cache.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "own.zip"]


def test_a_tar_that_leads_back_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(endless_tar("1.txt"))
    counted = limited_next(monkeypatch)
    with pytest.raises(InputError, match=r"a\.tar cannot be unpacked"):
        unpacked([tmp_path / "a.tar"], Silent())
    assert len(counted) < 20


@pytest.mark.parametrize("suffix", [".zip", ".ZIP", ".tgz", ".tar.gz", ".tar"])
def test_archives_are_unpacked_together_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    archives = []
    for number in (1, 2):
        archives.append(tmp_path / f"own{number}{suffix}")
        if suffix.lower() == ".zip":
            with zipfile.ZipFile(archives[-1], "w") as archive:
                archive.writestr(f"both/{number}.txt", "written")
        else:
            write_tar(archives[-1], member(f"both/{number}.txt"))
    heard = Heard()
    folder = unpacked(archives, heard)
    assert sorted(path.name for path in (folder / "both").iterdir()) == ["1.txt", "2.txt"]
    assert (heard.tasks, heard.steps) == ([("unpack", 2, "archives")], [1, 1])
    monkeypatch.setattr(reading, "_unpack", lambda *_: pytest.fail("unpacked again"))
    assert unpacked(archives, heard) == folder


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_a_damaged_archive_is_named(tmp_path: Path, cache: Path, suffix: str, damage: str) -> None:
    path, noise = tmp_path / f"own{suffix}", np.random.default_rng(0).integers(0, 9, 20_000, np.uint8).tobytes()
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("noise", noise)
    else:
        info = tarfile.TarInfo("noise")
        info.size = len(noise)
        write_tar(path, (info, noise))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[1500:1600] = bytes(100)
    path.write_bytes({"empty": b"", "text": b"hello", "cut": whole[:1500], "flipped": bytes(flipped)}[damage])
    with pytest.raises(InputError, match=rf"own\{suffix} cannot be unpacked .*fetch it again"):
        unpacked([path], Silent())
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_an_archive_that_grows_without_measure_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(reading, "ALWAYS_ALLOWED", 1000)
    path, zeros = tmp_path / f"bomb{suffix}", bytes(1_000_000)
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", zeros)
    else:
        info = tarfile.TarInfo("zeros")
        info.size = len(zeros)
        write_tar(path, (info, zeros))
    assert 100 * path.stat().st_size + 1000 < len(zeros)
    with pytest.raises(InputError, match=rf"bomb\{suffix} would unpack to more than [\d,]+ bytes, too much for its size"):
        unpacked([path], Silent())
    assert list(cache.iterdir()) == []


def test_an_encrypted_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "own.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "written")
    content = bytearray(path.read_bytes())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + at] |= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"own\.zip cannot be unpacked .*password"):
        unpacked([path], Silent())


def test_what_the_cache_keeps_can_be_read_by_others(root: Path, cache: Path) -> None:
    read(root)
    (folder,) = cache.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["errors.json", "pixels.npy", "read.npz"]
    assert json.loads((folder / "errors.json").read_text()) == {}
    assert folder.stat().st_mode & 0o055 == 0o055 & ~os.umask(os.umask(0o022) or 0o022)
