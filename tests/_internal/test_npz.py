import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from protograph._internal.errors import InputError
from protograph._internal.npz import read_npz


def write_entry(path: Path, header: dict[str, object], content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Write a .npz whose array 'x' has this header and this content, whether they fit or not."""
    start = io.BytesIO()
    np.lib.format.write_array_header_1_0(start, header)
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x.npy", start.getvalue() + content)
    return path


def described(shape: tuple[int, ...], dtype: str = "<f4") -> dict[str, object]:
    return {"descr": dtype, "fortran_order": False, "shape": shape}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(tmp_path: Path, save: object) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3).T, "b": np.array(["é", "longer"]), "c": np.zeros((0, 4)), "d": np.array(3)}
    save(tmp_path / "own.npz", **arrays, unused=np.array([object], object))  # type: ignore[operator]
    read = read_npz(tmp_path / "own.npz", ["a", "b"], ["c", "d", "none"])
    assert list(read) == ["a", "b", "c", "d"]
    for name, array in read.items():
        assert array.dtype == arrays[name].dtype
        assert np.array_equal(array, arrays[name])
    with pytest.raises(ValueError, match=r"no item named 'none\.npy'"):
        read_npz(tmp_path / "own.npz", ["none"])
    with pytest.raises(ValueError, match=r"unused.npy' holds objects"):
        read_npz(tmp_path / "own.npz", ["unused"])


def test_an_array_of_far_more_bytes_than_its_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = write_entry(tmp_path / "bomb.npz", described((30_000_000,)), b"\0" * 120_000_000)
    tracemalloc.start()
    with pytest.raises(InputError, match=r"'x.npy' of .*bomb.npz has [0-9,]+ bytes and would unpack to 120,000,"):
        read_npz(path, ["x"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        described((1 << 40, 1024)), described((1 << 62, 1 << 62)), described((-1, -8)), described((3,)), described((2,), "|O"),
        described((2,), "<U100000000"), described((1,), "V0"), described((2, 0)),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_header_that_its_content_does_not_bear_out_is_refused(tmp_path: Path, header: dict[str, object]) -> None:
    path = write_entry(tmp_path / "lie.npz", header, b"\0" * 8)
    with pytest.raises(ValueError, match=r"does not hold an array|holds objects|header"):
        read_npz(path, ["x"])


@pytest.mark.parametrize("content", [b"", b"PK", b"hello", b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        read_npz(tmp_path / "own.npz", ["x"])
