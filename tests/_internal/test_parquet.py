"""Columns of Parquet files: what they hold, and what would fill the memory."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protograph._internal.parquet import equal_lists, read_parquet

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
LISTS = [[1.0, 2.0], [3.0, 4.0]]


def written(columns: dict[str, Any], **settings: Any) -> bytes:
    target = io.BytesIO()
    parquet.write_table(arrow.table(columns), target, **settings)
    return target.getvalue()


def everything(names: list[str]) -> Sequence[str]:
    return names


@pytest.mark.parametrize("texts", [arrow.string(), arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())])
def test_chosen_columns_are_read_from_a_path_or_from_bytes(tmp_path: Path, texts: Any) -> None:
    columns = {"label": arrow.array(["a", "b", None, "a"], texts), "number": [1, 2, 3, 4], "more": [0.5] * 4}
    content = written(columns)
    (tmp_path / "own.parquet").write_bytes(content)
    for source in (content, tmp_path / "own.parquet"):
        read, metadata = read_parquet(source, lambda names: [name for name in ("number", "label", "x") if name in names])
        assert {name: column.to_pylist() for name, column in read.items()} == {
            "number": [1, 2, 3, 4], "label": ["a", "b", None, "a"]
        }  # fmt: skip
        assert metadata == {}


VECTORS = arrow.list_(arrow.float64()), arrow.large_list(arrow.float32()), arrow.list_(arrow.float32(), 2)


@pytest.mark.parametrize("kind", VECTORS)
def test_lists_of_one_length_are_an_array(kind: Any) -> None:
    for lists, groups in ((LISTS, 1), (LISTS * 3, 2)):
        (column,) = read_parquet(written({"vector": arrow.array(lists, kind)}, row_group_size=groups), everything)[0].values()
        array = equal_lists(column)
        assert array.dtype == np.float32
        assert array.tolist() == lists


@pytest.mark.parametrize("values", [[[1.0], [2.0, 3.0]], [[1.0], None], [1.0, 2.0], ["a", "b"]])
def test_other_columns_are_no_vectors(values: list[Any]) -> None:
    (column,) = read_parquet(written({"vector": values}), everything)[0].values()
    with pytest.raises(ValueError, match="its vectors"):
        equal_lists(column)


def bombs() -> dict[str, Any]:
    """Columns of a few kB that unpack to more than 200 MB."""
    zeros = np.zeros(30_000_000, np.float32)
    same = arrow.DictionaryArray.from_arrays(np.zeros(20_000, np.int32), ["n" * 20_000])
    return {
        "numbers": arrow.array(zeros),
        "a list": arrow.ListArray.from_arrays([0, len(zeros)], zeros),
        "texts": same,
        "plain texts": same.cast(arrow.string()),
        "bytes": arrow.DictionaryArray.from_arrays(same.indices, arrow.array([b"n" * 20_000])),
    }


@pytest.mark.parametrize("name", bombs())
def test_a_small_file_with_a_large_column_is_refused(name: str) -> None:
    content = written({"label": bombs()[name]}, compression="zstd")
    assert len(content) < 500_000
    with pytest.raises(ValueError, match="would unpack to"):
        read_parquet(content, everything)


@pytest.mark.parametrize("value", [{"a": 1}, [[1.0]], ["text"]])
def test_a_nested_column_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="its column 'label' is of type"):
        read_parquet(written({"label": [value]}), everything)


@pytest.mark.parametrize("content", [b"", b"nothing", b"PAR1" * 40])
def test_what_is_no_parquet_is_a_value_error_of_one_line(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^.+$"):
        read_parquet(content, everything)
