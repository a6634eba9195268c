import os
import pickle
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
