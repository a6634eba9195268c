import math

import numpy as np
import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import AttributeRelation

NAMES = ["cat", "dog", "cow", "stone"]
ATTRIBUTES = ["fur", "horns", "legs"]
VALUES = torch.tensor([[90.0, 0, 4], [80, 0.5, 4], [30, 70, 4], [0, 0, 0]], dtype=torch.float64)


def naive_cosine(first, second):
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    size = math.sqrt(sum(a * a for a in first)) * math.sqrt(sum(b * b for b in second))
    return dot / size if size else 0.0


def naive_centred(rows):
    means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return [[value - mean for value, mean in zip(row, means, strict=True)] for row in rows]


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("names", [NAMES, ["stone", "cat"], ["cow"], []])
def test_similarity_is_the_cosine_of_attributes(centred, names):
    answer = AttributeRelation(VALUES, NAMES, centred=centred).similarities(names)
    assert answer.dtype == torch.float32
    assert answer.shape == (len(names), len(names))
    rows = naive_centred(VALUES.tolist()) if centred else VALUES.tolist()
    for m, row in enumerate(names):
        for n, column in enumerate(names):
            expected = naive_cosine(rows[NAMES.index(row)], rows[NAMES.index(column)]) if m != n else 1
            assert answer[m, n].item() == pytest.approx(expected, abs=1e-6)


def test_class_without_attributes_is_like_no_other():
    answer = AttributeRelation(VALUES, NAMES).similarities(NAMES)
    assert answer[3].tolist() == [0, 0, 0, 1]


def test_missing_class_is_named():
    relation = AttributeRelation(VALUES, NAMES, source="animals")
    with pytest.raises(InputError, match="'animals' lacks class 'pig': add its row"):
        relation.similarities(["cat", "pig"])
    with pytest.raises(InputError, match="'pig' and 1 more"):
        relation.similarities(["pig", "cat", "hen"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_is_named_by_class_and_attribute(value):
    values = VALUES.clone()
    values[2, 1] = value
    with pytest.raises(InputError, match="no finite value for class 'cow' in column 'horns'"):
        AttributeRelation(values, NAMES, ATTRIBUTES)
    with pytest.raises(InputError, match="class 'cow' in column number 2"):
        AttributeRelation(values, NAMES)


@pytest.mark.parametrize(
    ("values", "names", "attributes", "said"),
    [
        (VALUES, NAMES[:3], None, "4 x 3 table for 3 classes"),
        (VALUES[0], NAMES, None, "3 table for 4 classes"),
        (VALUES[:, :0], NAMES, None, "4 x 0 table"),
        (VALUES, NAMES, ATTRIBUTES[:2], "names 2 columns of 3"),
        (VALUES, ["cat", "dog", "cat", "cow"], None, "names 'cat' twice"),
    ],
)
def test_table_that_cannot_serve_is_an_error(values, names, attributes, said):
    with pytest.raises(InputError, match=said):
        AttributeRelation(values, names, attributes)


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".npz"])
@pytest.mark.parametrize("centred", [False, True])
def test_table_is_read_from_every_kind_of_file(tmp_path, kind, centred):
    path = tmp_path / f"animals{kind}"
    if kind == ".npz":
        np.savez(path, names=np.array(NAMES), values=VALUES.numpy())
    else:
        lines = [["class", *ATTRIBUTES], *([name, *map(str, row)] for name, row in zip(NAMES, VALUES.tolist(), strict=True))]
        joint = "," if kind == ".csv" else "\t"
        path.write_text("\ufeff" + "\n".join(map(joint.join, lines)), encoding="utf-8")
    relation = AttributeRelation.read(path, centred)
    assert relation.source == str(path)
    assert torch.equal(relation.similarities(NAMES), AttributeRelation(VALUES, NAMES, centred=centred).similarities(NAMES))


def test_header_of_numbers_is_still_a_header(tmp_path):
    path = tmp_path / "years.csv"
    path.write_text("class,1990,2000\ncat,1,2\ndog,2,1\n")
    assert AttributeRelation.read(path).names == ("cat", "dog")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("class,fur\n", "is empty"),
        ("class,fur,legs\ncat,1\n", "row 'cat' has 1 values for 2 columns"),
        ("class,fur\ncat,much\n", "row 'cat' holds something that is not a number.*much"),
        ("class,fur\ncat,nan\n", "class 'cat' in column 'fur'"),
        ("class,fur\ncat,1\ncat,2\n", "names 'cat' twice"),
        ("class\ncat\n", "1 x 0 table"),
    ],
)
def test_bad_file_is_an_error_that_names_file_and_fault(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        AttributeRelation.read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "arrays",
    [{"names": np.array(NAMES)}, {"values": np.eye(4)}, {"names": np.array(NAMES), "values": np.array([["a"]] * 4)}],
    ids=["no values", "no names", "words"],
)
def test_npz_without_a_table_is_an_error_that_names_it(tmp_path, arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InputError, match=r"bad\.npz is not a relation: it needs arrays 'names' and 'values'"):
        AttributeRelation.read(tmp_path / "bad.npz")


def test_npz_of_any_kind_of_number_is_read(tmp_path):
    for kind in (">f4", "<f2", "u1", "?"):
        np.savez(tmp_path / "a.npz", names=np.array(NAMES), values=(VALUES.numpy() > 1).astype(kind))
        expected = AttributeRelation((VALUES > 1).double(), NAMES).similarities(NAMES)
        assert torch.equal(AttributeRelation.read(tmp_path / "a.npz").similarities(NAMES), expected)


def test_missing_and_unknown_files_are_errors_that_name_them(tmp_path):
    with pytest.raises(InputError, match=r"no relation file at .*gone\.csv: give a \.csv, \.tsv or \.npz table"):
        AttributeRelation.read(tmp_path / "gone.csv")
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(InputError, match=r"cannot read attributes from .*a\.xlsx"):
        AttributeRelation.read(tmp_path / "a.xlsx")
