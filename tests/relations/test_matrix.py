import numpy as np
import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import MatrixRelation

NAMES = ["cat", "dog", "cow"]
MATRIX = torch.tensor([[1.0, 0.2, 0.3], [0.4, 1.0, 0.0], [0.0, 0.6, 1.0]])  # directed


def sparse(matrix):
    index = matrix.ne(0).nonzero().T
    return torch.sparse_coo_tensor(index, matrix[index[0], index[1]], matrix.shape, check_invariants=True)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [torch.clone, sparse])
@pytest.mark.parametrize("names", [["cat", "dog", "cow"], ["cow", "cat", "dog"], ["dog", "cat"], ["cow"]])
def test_names_are_answered_in_the_order_asked_for(kind, names):
    answer = MatrixRelation(kind(MATRIX), NAMES).similarities(names)
    assert answer.layout == kind(MATRIX).layout
    answer = answer.to_dense()
    for m, row in enumerate(names):
        for n, column in enumerate(names):
            assert answer[m, n] == MATRIX[NAMES.index(row), NAMES.index(column)]


def test_sparse_graph_stays_sparse_and_keeps_only_the_edges_among_the_names():
    size = 2000
    ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
    graph = torch.sparse_coo_tensor(ring, torch.ones(size), (size, size), check_invariants=True)
    answer = MatrixRelation(graph, [f"class {i}" for i in range(size)]).similarities(["class 8", "class 3", "class 7"])
    assert answer.indices().tolist() == [[2], [0]]


@pytest.mark.parametrize("kind", [torch.clone, sparse])
def test_missing_class_is_named(kind):
    relation = MatrixRelation(kind(MATRIX), NAMES, "animals")
    with pytest.raises(InputError, match="'animals' lacks class 'pig':"):
        relation.similarities(["cat", "pig"])
    with pytest.raises(InputError, match="'pig' and 1 more"):
        relation.similarities(["cat", "pig", "hen"])


def test_class_named_twice_is_an_error():
    with pytest.raises(InputError, match="names 'dog' twice"):
        MatrixRelation(MATRIX, ["dog", "cat", "dog"])


def test_matrix_that_cannot_serve_is_an_error():
    with pytest.raises(InputError, match="3 x 3 matrix for 2 classes"):
        MatrixRelation(MATRIX, ["cat", "dog"])
    with pytest.raises(InputError, match="'cat' and 'dog'"):
        MatrixRelation(MATRIX.where(MATRIX != 0.2, torch.nan), NAMES)


def test_csv_has_names_in_its_first_row_and_column(tmp_path):
    path = write(tmp_path / "a.csv", "similarity,cat,Kuh,ж\ncat,1,0.5,-2\nKuh,1e-1,1,0\n\nж,0,.25,1\n")
    relation = MatrixRelation.read(path)
    assert relation.names == ("cat", "Kuh", "ж")
    assert relation.source == str(path)
    assert torch.equal(relation.matrix, torch.tensor([[1, 0.5, -2], [0.1, 1, 0], [0, 0.25, 1]]))


def test_npz_has_names_and_similarities(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, names=np.array(NAMES), similarities=MATRIX.numpy().astype(np.float64))
    assert torch.equal(MatrixRelation.read(path).similarities(["dog", "cow"]), MATRIX[1:, 1:])


@pytest.mark.parametrize("kind", [torch.clone, sparse])
def test_npz_says_which_pairs_have_no_similarity(tmp_path, kind):
    relation = MatrixRelation(kind(MATRIX), NAMES)
    np.savez(tmp_path / "a.npz", **relation.arrays())
    again = MatrixRelation.read(tmp_path / "a.npz")
    assert again.names == tuple(NAMES)
    assert again.matrix.layout == relation.matrix.layout
    assert torch.equal(again.matrix.to_dense(), MATRIX)
    if kind is sparse:
        assert torch.equal(again.matrix.indices(), relation.matrix.indices())


@pytest.mark.parametrize("edges", [[[0, 1], [1, 3]], [[0, 1], [1, -1]], [[0, 1], [1, 0.5]], [[0, 1]], [0, 1]])
def test_npz_with_edges_to_nowhere_is_an_error_that_names_the_file(tmp_path, edges):
    np.savez(tmp_path / "bad.npz", names=np.array(NAMES), similarities=np.ones(2), edges=np.array(edges))
    with pytest.raises(InputError, match=r"bad\.npz has similarities of 2 pairs"):
        MatrixRelation.read(tmp_path / "bad.npz")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (",cat,dog\n", "is empty"),
        (",cat,dog\ncat,1,2\ndog,1\n", "row 'dog' has 1 values for 2 classes"),
        (",cat,dog\ncat,1,2\ndog,1,high\n", "row 'dog' holds something that is not a number.*high"),
        (",cat,dog\ncat,1,2\n", "1 x 2 matrix"),
        (",cat,dog\ndog,1,2\ncat,1,2\n", "same classes in the same order"),
        (",cat,dog\ncat,1,nan\ndog,1,2\n", "'cat' and 'dog'"),
        (",cat,cat\ncat,1,2\ncat,1,2\n", "names 'cat' twice"),
    ],
)
def test_bad_csv_is_an_error_that_names_file_and_fault(tmp_path, text, said):
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(InputError, match=said) as error:
        MatrixRelation.read(path)
    assert str(path) in str(error.value)


def test_csv_in_another_encoding_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "latin1.csv"
    path.write_bytes(",grün\ngrün,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin1\.csv"):
        MatrixRelation.read(path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"names": np.array(NAMES)},
        {"similarities": np.eye(3)},
        {"names": np.array(NAMES), "similarities": np.ones(2)},
        {"names": np.array(NAMES, dtype=object), "similarities": np.eye(3)},
        {"names": np.array(NAMES), "similarities": np.array([["a"] * 3] * 3)},
        {"names": np.array(NAMES), "similarities": np.eye(4)},
        {"names": np.array(NAMES), "similarities": np.full((3, 3), np.nan)},
    ],
    ids=["no similarities", "no names", "no edges", "pickled names", "words", "wrong size", "nan"],
)
def test_npz_without_a_usable_matrix_is_an_error_that_names_the_file(tmp_path, arrays):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"bad\.npz"):
        MatrixRelation.read(path)


@pytest.mark.parametrize("content", [b"", b"names", b"PK\x03\x04 and then nothing"], ids=["empty", "text", "truncated"])
def test_file_that_is_no_npz_is_an_error_that_names_it(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.npz"):
        MatrixRelation.read(path)


def test_missing_and_unknown_files_are_errors_that_name_them(tmp_path):
    with pytest.raises(InputError, match=r"no relation file at .*gone\.csv"):
        MatrixRelation.read(tmp_path / "gone.csv")
    with pytest.raises(InputError, match=r"cannot read a relation from .*a\.xlsx"):
        MatrixRelation.read(write(tmp_path / "a.xlsx", "?"))


def test_a_file_that_is_too_large_is_refused_unread(tmp_path):
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(17_000_000_000)  # without content on the disk
    with pytest.raises(InputError, match=r"large\.csv has 17,000,000,000 bytes, more than 16,000,000,000"):
        MatrixRelation.read(tmp_path / "large.csv")
