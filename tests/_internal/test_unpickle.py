import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.layouts import dump, python2_pickle
from protograph._internal.errors import InputError
from protograph._internal.unpickle import read_pickled_arrays

CONTENT = {"image_data": np.arange(24, dtype=np.uint8).reshape(2, 4, 3), "class_dict": {"n01": [0], "n02": [1]}}


def check(found: dict[str, Any]) -> None:
    assert list(found) == ["image_data", "class_dict"]
    assert np.array_equal(found["image_data"], CONTENT["image_data"])
    assert found["image_data"].dtype == np.uint8
    assert found["class_dict"] == CONTENT["class_dict"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_come_back_from_every_protocol(tmp_path: Path, protocol: int) -> None:
    check(read_pickled_arrays(dump(tmp_path / "own.pkl", CONTENT, protocol=protocol)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_either_order_come_back(tmp_path: Path, order: Any) -> None:
    array = np.asarray(CONTENT["image_data"], order=order)
    found = read_pickled_arrays(dump(tmp_path / "own.pkl", {"a": array}, protocol=5))
    assert np.array_equal(found["a"], array)


def test_what_python_2_wrote_comes_back_with_texts_for_strings(tmp_path: Path) -> None:
    content = python2_pickle(CONTENT)
    assert b"cnumpy.core.multiarray\n_reconstruct" in content
    (tmp_path / "own.pkl").write_bytes(content)
    check(read_pickled_arrays(tmp_path / "own.pkl"))


def test_what_numpy_1_wrote_comes_back(tmp_path: Path) -> None:
    content = pickle.dumps(CONTENT, 5).replace(b"\x8c\x13numpy._core.numeric", b"\x8c\x12numpy.core.numeric")
    content = content[:2] + b"\x95" + (len(content) - 11).to_bytes(8, "little") + content[11:]  # the frame's length
    assert b"numpy.core.numeric" in content
    (tmp_path / "own.pkl").write_bytes(content)
    check(read_pickled_arrays(tmp_path / "own.pkl"))


def test_keys_of_bytes_become_texts(tmp_path: Path) -> None:
    assert list(read_pickled_arrays(dump(tmp_path / "own.pkl", {b"data": 1, "labels": 2}))) == ["data", "labels"]


class Caller:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, "posix.system"), (eval, "eval"), (getattr, "getattr"), (np.load, "numpy.load"), (np.fromfile, "fromfile")],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_names_code_is_refused_and_runs_nothing(tmp_path: Path, function: Any, named: str, protocol: int) -> None:
    marker = tmp_path / "marker"
    code = f"touch {marker}" if function is os.system else f"open({str(marker)!r}, 'w')"
    path = dump(tmp_path / "evil.pkl", {"image_data": Caller(function, code)}, protocol=protocol)
    with pytest.raises(InputError, match=rf"evil\.pkl asks for .*{named}.*do not use it"):
        read_pickled_arrays(path)
    assert not marker.exists()


def test_a_dotted_way_around_the_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "evil.pkl").write_bytes(b"\x80\x04\x8c\x05numpy\x8c\x16ndarray.__subclasses__\x93)R.")
    with pytest.raises(InputError, match=r"asks for numpy\.ndarray\.__subclasses__"):
        read_pickled_arrays(tmp_path / "evil.pkl")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x80\x04.", pickle.dumps(CONTENT)[:-40], b"\xff\xd8\xff\xe0"], ids=range(5)
)
def test_a_damaged_pickle_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.pkl").write_bytes(content)
    with pytest.raises(InputError, match=r"own\.pkl is not a readable pickle .*fetch it again"):
        read_pickled_arrays(tmp_path / "own.pkl")


def test_something_else_than_a_dictionary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a list, not a dictionary"):
        read_pickled_arrays(dump(tmp_path / "own.pkl", [1, 2]))


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
TEXT = b"S'" + b"x" * 8 + b"'\n"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x03}U\x01acnumpy\nndarray\n(K\x01\x85U\x01OC\x08" + b"A" * 8 + b"tRs.",  # an array of addresses
        ARRAY + b"(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\ntRI00\n" + TEXT + b"tb.",  # an array of addresses, by its state
        ARRAY + b"(I1\n(I1000000000\ntcnumpy\ndtype\n(S'u1'\ntRI00\n" + TEXT + b"tb.",  # more bytes than it has
        ARRAY + b"(I1\n(I-8\nI-1\ntcnumpy\ndtype\n(S'u1'\ntRI00\n" + TEXT + b"tb.",
        ARRAY + b"(I1\n(I1000000000\ntcnumpy\ndtype\n(S'S0'\ntRI00\nS''\ntb.",  # elements without size
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntR" + TEXT + b"tR.",
        b"cnumpy\ndtype\n(S'u1'\ntR(I3\nS'<'\n(S'a'\nt(dI8\nI8\nI0\ntb.",  # a dtype with fields
        b"cnumpy\ndtype\n(N(dS'__defaults__'\nI1\nstb.",  # the state of a function
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # a byte array of a terabyte
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x02" + b"r\xff\xff\xff\xfe" + b".",  # a memo of four billion entries
    ],
    ids=range(11),
)
def test_a_forged_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "evil.pkl").write_bytes(content)
    with pytest.raises(InputError, match=r"evil\.pkl is not a readable pickle"):
        read_pickled_arrays(tmp_path / "evil.pkl")


def test_a_small_file_cannot_make_much_of_few_bytes(tmp_path: Path) -> None:
    again = b"c_codecs\nencode\n(g0\nS'latin1'\ntR"
    (tmp_path / "evil.pkl").write_bytes(b"(V" + b"x" * 10_000 + b"\np0\n" + again * 100 + b"l.")
    with pytest.raises(InputError, match="its content is larger than the file"):
        read_pickled_arrays(tmp_path / "evil.pkl")


@pytest.mark.parametrize("dtype", [">i4", "<f8", "?", "S3", "<U2", "uint16"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_other_numbers_and_text_come_back(tmp_path: Path, dtype: str, protocol: int) -> None:
    array = np.arange(6).reshape(3, 2).astype(dtype)
    content = {"a": array, "b": OrderedDict([("c", array[0, 1])]), "d": {"e": [array.T]}}
    path = dump(tmp_path / "own.pkl", content, protocol=protocol)
    found, array = read_pickled_arrays(path), pickle.loads(path.read_bytes())["a"]
    for loaded, expected in ((found["a"], array), (found["b"]["c"], array[0, 1]), (found["d"]["e"][0], array.T)):
        assert np.array_equal(loaded, expected)
        assert loaded.dtype == expected.dtype
