"""Reading of image files into an ImageStore: they are decoded once, by all cores, kept in the cache and mapped from there."""

import csv
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError
from protograph._internal.files import ALWAYS_ALLOWED, LARGEST_RATIO, build_folder, cache_folder, read_text_file
from protograph._internal.progress import Progress
from protograph.data import decode
from protograph.data.images import Images
from protograph.data.store import ImageStore, Normalisation

SUFFIXES = decode.HEIC_OR_AVIF | {
    ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".jfif",
}  # fmt: skip
PIXELS_VERSION = 2  # raised whenever the same file gives other pixels
FILES_OF_A_JOB = 128  # files in a worker's job
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # all others come from names in an archive
MAX_TABLE_BYTES = 1_000_000_000  # of a table of images; one with a million lines has a tenth


def read_images(root: Path, names: Sequence[str], size: int, normalisation: Normalisation, progress: Progress) -> Images:
    """Return the image files of these names, from the cache if none of them has changed.

    A file counts as unchanged while its name, its size and its times of change (of contents and of permissions) are the same.

    Args:
        root: The folder that `names` are relative to.
        names: Names of the files.
        size: Images are resized to size x size.
        normalisation: How gathered images are normalised.
        progress: Shows how far decoding is.

    """
    base = os.fspath(root.resolve())
    files = [f"{base}{os.sep}{name}" for name in names]
    parts: list[object] = [base, size, list(names), [_stamp(file) for file in files]]
    if any(_suffix(name) in decode.HEIC_OR_AVIF for name in names):
        parts.append(decode.installed_decoders())  # with another decoder, they are read again
    return open_images(
        _key(parts),
        names,
        normalisation,
        lambda folder: _decode(files, size, folder, progress),
    )


def read_image_arrays(
    sources: Sequence[Path], load: Callable[[], tuple[list[str], Iterator[NDArray[np.uint8]]]], normalisation: Normalisation
) -> Images:
    """Return images of a few large files, from the cache if none of them has changed.

    Args:
        sources: The files.
        load: Returns the names of the images, and the images [n, H, W, 3] in portions.
        normalisation: How gathered images are normalised.

    """

    def build(folder: Path) -> None:
        names, portions = load()
        pixels: NDArray[np.uint8] | None = None
        row = 0
        digests = []
        for portion in portions:
            if pixels is None:
                shape = (len(names), 3, *portion.shape[1:3])
                pixels = _new_pixels(folder / "pixels.npy", shape)
            pixels[row : row + len(portion)] = portion.transpose(0, 3, 1, 2)
            digests += [hashlib.sha256(np.ascontiguousarray(image).data).hexdigest() for image in portion]
            row += len(portion)
        assert pixels is not None
        sizes = np.full((len(names), 2), pixels.shape[2:][::-1], np.int32)
        _write(folder, digests, sizes, np.zeros(len(names), bool), {})
        (folder / "names.json").write_text(json.dumps(names), encoding="utf-8")

    return open_images(_key(_stamps(sources)), None, normalisation, build)


def open_images(key: str, names: Sequence[str] | None, normalisation: Normalisation, build: Callable[[Path], None]) -> Images:
    """Return the images cached under `key`; `build` makes them where they are missing or damaged."""
    folder = cache_folder() / f"images-{key}"
    if folder.is_dir():
        try:
            return _open(folder, names, normalisation)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # as when a clean-up removed old files only
            shutil.rmtree(folder)
    build_folder(folder, build)
    return _open(folder, names, normalisation)


def _open(folder: Path, names: Sequence[str] | None, normalisation: Normalisation) -> Images:
    if names is None:
        names = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    with np.load(folder / "read.npz") as read:
        digests, sizes, grey = read["digests"], read["sizes"], read["grey"]
    errors = {int(row): error for row, error in json.loads((folder / "errors.json").read_text(encoding="utf-8")).items()}
    return Images(ImageStore.open(folder / "pixels.npy", normalisation), names, digests, sizes, grey, errors)


def find_names(folder: Path) -> list[str]:
    """Return the sorted names of the image files directly in a folder."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    return sorted(name for name in names if _suffix(name) in SUFFIXES and not name.startswith("."))


def count_other_files(folders: Sequence[Path]) -> Counter[str]:
    """Return how many visible files directly in some folders are no images, by the end of their names."""
    counts: Counter[str] = Counter()
    for folder in folders:
        with os.scandir(folder) as entries:
            files = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        counts.update(Path(name).suffix.lower() or name for name in files if _suffix(name) not in SUFFIXES)
    return counts


def _suffix(name: str) -> str:
    return name[name.rfind(".") :].lower()


def find_folders(folder: Path) -> list[str]:
    """Return the sorted names of the folders directly in a folder, without hidden ones."""
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def find_all_folders(folder: Path) -> list[Path]:
    """Return a folder and all visible folders inside, at any depth, each once, also where links lead to it again."""
    folders, visited = [folder], {folder.resolve()}
    for parent in folders:  # grows as it goes
        for child in (parent / name for name in find_folders(parent)):
            if (target := child.resolve()) not in visited:
                visited.add(target)
                folders.append(child)
    return folders


def read_columns(path: Path, *needed: str) -> list[dict[str, str | None]]:
    """Return the rows of a .csv file that has the columns `needed`."""
    rows = csv.DictReader(io.StringIO(read_text_file(path, "table", MAX_TABLE_BYTES), newline=""))
    try:
        if not set(needed) <= set(rows.fieldnames or ()):
            columns = " and ".join(f"'{name}'" for name in needed)
            raise InputError(f"{path} has the columns {rows.fieldnames}: it needs {columns}")
        return list(rows)
    except csv.Error as error:
        raise InputError(f"{path} is not a readable .csv file (line {rows.line_num}: {error}): repair it") from error


def unpacked(archives: Sequence[Path], progress: Progress) -> Path:
    """Return the folder in the cache into which archives (.tgz, .tar, .zip) are unpacked together, once.

    Nothing is written outside that folder: a member with a path outside is refused, and so is anything but files and folders,
    since links can lead out of it.
    """
    folder = cache_folder() / f"unpacked-{_key(_stamps(archives))}"
    if not folder.is_dir():

        def build(scratch: Path) -> None:
            with progress.task("unpack", len(archives), "archives") as advance:
                for archive in archives:
                    _unpack(archive, scratch)
                    advance(1)

        build_folder(folder, build)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    most = LARGEST_RATIO * archive.stat().st_size + ALWAYS_ALLOWED
    unpacked_bytes = 0

    def harmless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal unpacked_bytes
        unpacked_bytes += member.size
        _check_unpacked(archive, unpacked_bytes, most)
        if member.name.startswith("/") or not (member.isfile() or member.isdir()):
            raise tarfile.SpecialFileError(member)
        return tarfile.data_filter(member, path)

    try:
        if archive.suffix.lower() == ".zip":
            with zipfile.ZipFile(archive) as opened:
                for member in opened.namelist():
                    if not (folder / member).resolve().is_relative_to(folder.resolve()):
                        raise InputError(f"{archive} has a member '{member}' outside its folder: do not use it")
                _check_unpacked(archive, sum(member.file_size for member in opened.infolist()), most)
                opened.extractall(folder)
        else:
            with tarfile.open(archive) as opened_tar:
                opened_tar.extractall(folder, forward_members(opened_tar), filter=harmless)
    except InputError:
        raise
    except tarfile.FilterError as error:
        name = error.tarinfo.name
        raise InputError(f"{archive} has a member '{name}' that is a link or outside its folder: do not use it") from error
    except Exception as error:  # a damaged archive can raise anything
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            raise
        reason = " ".join(str(error).split())
        raise InputError(f"{archive} cannot be unpacked ({reason}): fetch it again") from error


def forward_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar, as long as each lies behind the one before it.

    Raises:
        tarfile.ReadError: A member has less than no bytes; with many versions of Python, a tar that leads back has no end.

    """
    end = -1
    while (member := tar.next()) is not None:
        if member.size < 0 or tar.offset <= end:
            raise tarfile.ReadError(f"the size of '{member.name}' leads back")
        end = tar.offset
        yield member


def _check_unpacked(archive: Path, count: int, most: int) -> None:
    if count > most:
        raise InputError(f"{archive} would unpack to more than {most:,} bytes, too much for its size: do not use it")


def _key(parts: object) -> str:
    return hashlib.sha256(json.dumps([PIXELS_VERSION, parts]).encode()).hexdigest()[:16]


def _stamps(files: Sequence[Path]) -> list[tuple[str, tuple[int, ...]]]:
    return [(os.fspath(file.resolve()), _stamp(os.fspath(file))) for file in files]


def _stamp(file: str) -> tuple[int, ...]:
    """Return size and times of change; a missing file gets an empty stamp and is named when it is read."""
    try:
        status = os.stat(file)  # noqa: PTH116 - called for every image at every start
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _new_pixels(path: Path, shape: tuple[int, ...]) -> "np.memmap[Any, np.dtype[np.uint8]]":
    """Return new pixels that are kept in a file.

    All of the file's space is taken at once: a write into memory ends the process where the disk is full.
    """
    pixels = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return pixels


def _decode(files: Sequence[str], size: int, folder: Path, progress: Progress) -> None:
    """Decode files into `folder`, by one worker process per core."""
    target = folder / "pixels.npy"
    shape = (len(files), 3, size, size)
    _new_pixels(target, shape).flush()
    starts = range(0, len(files), FILES_OF_A_JOB)
    digests = [""] * len(files)
    sizes, grey, errors = np.zeros((len(files), 2), np.int32), np.zeros(len(files), bool), {}
    local = threading.local()  # every thread has a separate worker

    def run(start: int) -> tuple[int, list[tuple[str | None, int, int, bool, str]]]:
        paths = files[start : start + FILES_OF_A_JOB]
        try:
            local.worker.stdin.write(json.dumps([os.fspath(target), start, size, paths]) + "\n")
            local.worker.stdin.flush()
            answer = local.worker.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"a worker ended while it read one of {paths[0]} ... {paths[-1]}")
        return start, json.loads(answer)

    count = min(os.cpu_count() or 1, max(1, len(starts)))
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker()) for _ in range(count)]
        threads = stack.enter_context(ThreadPoolExecutor(count, initializer=lambda: setattr(local, "worker", workers.pop())))
        stack.callback(threads.shutdown, cancel_futures=True)  # after an error or Ctrl-C, do not finish the jobs
        advance = stack.enter_context(progress.task("read images", len(files), "images"))
        for job in as_completed([threads.submit(run, start) for start in starts]):
            start, answers = job.result()
            for row, (error, width, height, is_grey, digest) in enumerate(answers, start):
                digests[row], sizes[row], grey[row] = digest, (width, height), is_grey
                if error is not None:
                    errors[row] = error
            advance(len(answers))
    _write(folder, digests, sizes, grey, errors)


@contextmanager
def _worker() -> Iterator[subprocess.Popen[str]]:
    # -P keeps the folder of the script off the import path.
    command = [sys.executable, "-P", decode.__file__]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert worker.stdin
    assert worker.stdout
    try:
        yield worker
    finally:
        with suppress(BrokenPipeError):  # of one that died
            worker.stdin.close()
        worker.stdout.close()
        worker.wait()


def _write(folder: Path, digests: list[str], sizes: NDArray[np.int32], grey: NDArray[np.bool_], errors: dict[int, str]) -> None:
    np.savez(folder / "read.npz", digests=np.array(digests, "S64"), sizes=sizes, grey=grey)
    (folder / "errors.json").write_text(json.dumps(errors), encoding="utf-8")
