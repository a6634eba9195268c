import re

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import MatrixRelation, Relation, UnicodeRelation, check_similarities

NAMES = ["cat", "dog", "cow"]


def sparse(matrix):
    index = matrix.ne(0).nonzero().T
    return torch.sparse_coo_tensor(index, matrix[index[0], index[1]], matrix.shape, check_invariants=True)


@pytest.mark.parametrize("kind", [torch.clone, sparse])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_good_matrix_comes_back_in_float32_with_its_layout(kind, dtype):
    matrix = torch.tensor([[2, 1, 0], [3, 2, 0], [0, 1, 2]], dtype=dtype)
    answer = check_similarities(kind(matrix), NAMES, "here")
    assert answer.dtype == torch.float32
    assert answer.layout == kind(matrix).layout
    assert torch.equal(answer.to_dense(), matrix.float())


@pytest.mark.parametrize(("shape", "said"), [((2, 3), "2 x 3"), ((4, 4), "4 x 4"), ((9,), "9"), ((3, 3, 3), "3 x 3 x 3")])
def test_wrong_size_is_named(shape, said):
    with pytest.raises(InputError, match=rf"'here' has a {said} matrix for 3 classes"):
        check_similarities(torch.zeros(shape), NAMES, "here")


@pytest.mark.parametrize("kind", [torch.clone, sparse])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_is_not_finite_is_named_by_its_pair(kind, value):
    matrix = torch.eye(3)
    matrix[2, 1] = value
    with pytest.raises(InputError, match=re.escape("'here' has no finite similarity between 'cow' and 'dog'")):
        check_similarities(kind(matrix), NAMES, "here")


def test_every_relation_keeps_the_contract():
    relations: list[Relation] = [UnicodeRelation({"base": 1.0}), MatrixRelation(torch.eye(3), ["a", "b", "c"])]
    for relation in relations:
        answer = relation.similarities(["c", "a"])
        assert answer.shape == (2, 2)
        assert answer.dtype == torch.float32
