import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from protograph._internal.errors import InputError
from protograph._internal.files import (
    build_folder,
    cache_folder,
    is_folder,
    read_plain_file,
    read_text_file,
    unfinished,
    write_atomically,
    write_json,
)


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def test_the_old_file_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_the_old_file_outlives_a_write_the_system_cuts_short(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    code = (
        "import resource, sys; from pathlib import Path; from protograph._internal.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomically(Path(sys.argv[1]), b'n' * 5000)\n"
        "except OSError as error: sys.exit(error.errno)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path / "file")], check=False)
    assert ended.returncode == errno.EFBIG
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_json(tmp_path / "file", {"ê": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    assert (tmp_path / "file").read_text(encoding="utf-8") == '{\n  "ê": 1\n}\n'


def test_a_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    def build(scratch: Path) -> None:
        (scratch / "part").write_text("1")
        assert not (tmp_path / "whole").exists()

    build_folder(tmp_path / "whole", build)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
    assert (tmp_path / "whole" / "part").read_text() == "1"


def test_a_folder_whose_building_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(scratch: Path) -> None:
        (scratch / "part").write_text("1")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        build_folder(tmp_path / "whole", build)
    assert list(tmp_path.iterdir()) == []


def test_of_two_builders_the_first_to_finish_wins(tmp_path: Path) -> None:
    def slow(scratch: Path) -> None:
        (scratch / "by").write_text("slow")
        build_folder(tmp_path / "whole", lambda other: (other / "by").write_text("fast") and None)

    build_folder(tmp_path / "whole", slow)
    assert (tmp_path / "whole" / "by").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOGRAPH_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("PROTOGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_folder() == tmp_path / "protograph"
    (tmp_path / "protograph").chmod(0o755)  # as earlier versions made it
    assert stat.S_IMODE(cache_folder().stat().st_mode) == 0o700, "it holds images of the user's"


def test_a_link_stays_one_and_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    write_atomically(path, b"one")
    link.symlink_to(path)
    path.chmod(0o600)
    write_atomically(link, b"two")
    assert link.is_symlink()
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_another_process_took_for_remains_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def removed_once(one: str, other: Path) -> None:
        if not seen:
            Path(one).unlink()
        seen.append(one)
        replace(one, other)

    seen: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", removed_once)
    write_atomically(tmp_path / "file", b"one")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert len(seen) == len(set(seen)) == 2


def test_only_what_was_being_written_counts_as_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: str) -> None:
        left.extend(file.name for file in tmp_path.iterdir())

    left: list[str] = []
    path = tmp_path / "a[1].pg"
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        write_atomically(path, b"one")
    for name in (".a[1].pg.lock", ".a[1].pg.v2.lock", ".a[1].pg.README", ".a1.pg.12345678.part", "a[1].pg"):
        (tmp_path / name).touch()
    assert len(left) == 1
    assert [file.name for file in unfinished(path)] == left


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"12345")
    assert read_plain_file(tmp_path / "plain", "model file", 5) == b"12345"
    os.mkfifo(tmp_path / "pipe")
    for path, most, named in (
        ("plain", 4, "plain has 5 bytes, more than 4 of a model file: give a smaller one"),
        ("absent", 5, "there is no model file at .*absent: fit one"),
        ("plain/below", 5, "there is no model file at .*below"),
        (".", 5, "is a folder, not a model file: fit one"),
        ("pipe", 5, "pipe is a pipe or a device, not a model file: save its contents into a file"),
        ("/dev/zero", 5, "/dev/zero is a pipe or a device"),
        ("x" * 5000, 5, "xxx cannot be read .File name too long.: give another model file"),
        ("a\0b", 5, "cannot be read .*null.*: give another"),
    ):
        with pytest.raises(InputError, match=named):
            read_plain_file(tmp_path / path, "model file", most, "fit one")
    assert not is_folder(tmp_path / ("x" * 5000))
    assert is_folder(tmp_path)


def test_text_is_utf_8_with_or_without_a_mark(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "own.csv").write_bytes("Käfer\n".encode(encoding))
        assert read_text_file(tmp_path / "own.csv", "table", 99) == "Käfer\n"
    (tmp_path / "own.csv").write_bytes(b"a\nb\n\xff\n")
    with pytest.raises(InputError, match=r"own\.csv is not a readable \.csv file \(line 3 is not UTF-8: byte 0xff\)"):
        read_text_file(tmp_path / "own.csv", "table", 99)
