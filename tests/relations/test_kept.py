import math
import pickle

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import (
    AttributeRelation,
    ClassHint,
    EdgeRelation,
    EmbeddingRelation,
    KeptRelation,
    MatrixRelation,
    UnicodeRelation,
    keep_relations,
    kept,
)

NAMES = ("a", "b", "c")
DENSE = torch.tensor([[1.0, 0.2, 0.4], [0.3, 1.0, 0.6], [0.5, 0.1, 1.0]])


def again(relation: KeptRelation) -> KeptRelation:
    """What a model file makes of it."""
    return KeptRelation.restore(*relation.describe())


def test_a_dense_relation_grows_by_what_is_told_and_the_lowest_similarity_otherwise():
    (relation,) = keep_relations(DENSE, NAMES).values()
    assert relation.floor == pytest.approx(0.1)
    for one in (relation, again(relation)):
        grown, known = one.added("new", NAMES, ClassHint({"b": 0.9}))
        assert known
        expected = [[*row, value] for row, value in zip(DENSE.tolist(), (0.1, 0.9, 0.1), strict=True)] + [[0.1, 0.9, 0.1, 1.0]]
        assert grown.similarities.tolist() == [pytest.approx(row) for row in expected]
        assert grown.floor == relation.floor
        further, known = grown.added("newer", (*NAMES, "new"))
        assert not known
        assert further.similarities[-1].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.1, 1.0])


@pytest.mark.parametrize("sparse", [False, True])
def test_seen_classes_that_a_source_lacks_are_unrelated_wherever_they_stand(sparse):
    there = MatrixRelation(5 * (DENSE.to_sparse_coo() if sparse else DENSE), NAMES)
    with pytest.warns(UserWarning, match="2 of 5 classes are taken as unrelated: relation 'matrix' lacks class 'x' and 1 more"):
        (relation,) = keep_relations(there, ("x", "a", "b", "y", "c")).values()
    floor = 0.0 if sparse else 0.5
    for one in (relation, again(relation)):
        matrix = one.similarities.to_dense()
        assert matrix[[1, 2, 4]][:, [1, 2, 4]].tolist() == [pytest.approx(row) for row in (5 * DENSE).tolist()]
        assert matrix[0].tolist() == pytest.approx([5.0, floor, floor, floor, floor])
        assert matrix[:, 3].tolist() == pytest.approx([floor, floor, floor, 5.0, floor])
        assert one.known == (None, "a", "b", None, "c")
    if sparse:
        assert not {(0, 1), (1, 0), (0, 3), (4, 3)} & {tuple(pair) for pair in relation.similarities.indices().T.tolist()}


def test_a_source_that_knows_two_classes_at_most_is_refused():
    with pytest.raises(InputError, match="lacks class 'x' and 1 more") as caught:
        keep_relations(MatrixRelation(DENSE, NAMES), ("x", "a", "b", "y"))
    assert pickle.loads(pickle.dumps(caught.value)).missing == ("x", "y"), "as it comes from another process"


@pytest.mark.parametrize("sparse", [False, True])
def test_a_class_that_is_told_of_is_as_alike_to_itself_as_the_others_are(sparse):
    scaled = 70 * DENSE
    (relation,) = keep_relations(scaled.to_sparse_coo() if sparse else scaled, NAMES).values()
    grown, _ = relation.added("new", NAMES, ClassHint({"a": 40.0}))
    matrix = grown.similarities.to_dense()
    assert matrix[3, 3].item() == pytest.approx(70)
    assert matrix[3, 0].item() == matrix[0, 3].item() == 40


@pytest.mark.parametrize("size", [4, 30])
def test_a_sparse_relation_grows_as_a_dense_one_and_stays_in_order(size):
    matrix = torch.rand(size, size, generator=torch.Generator().manual_seed(size))
    matrix[matrix < 0.6] = 0
    matrix.fill_diagonal_(1)
    names = [f"{row:02d}" for row in range(size)]
    (relation,) = keep_relations(matrix.to_sparse_coo(), names).values()
    grown, expected = relation, matrix
    for step in range(3):
        similarities = {name: 0.1 * (row + 1) for row, name in enumerate(names) if row % 3 == step}
        grown, _ = grown.added(f"new {step}", names, ClassHint(similarities=similarities))
        larger = torch.zeros(len(names) + 1, len(names) + 1)
        larger[:-1, :-1] = expected
        for name, value in similarities.items():
            larger[-1, names.index(name)] = larger[names.index(name), -1] = value
        larger[-1, -1] = 1
        names, expected = [*names, f"new {step}"], larger
    torch.testing.assert_close(grown.similarities.to_dense(), expected)
    row, column = grown.similarities.indices()
    assert (row * len(names) + column).diff().min() > 0


def test_a_sparse_relation_grows_by_the_edges_that_are_told():
    (relation,) = keep_relations({("a", "b"): 0.5, ("b", "a"): 0.7, ("c", "a"): 0.2}, NAMES).values()
    assert relation.similarities.to_dense().tolist() == [
        pytest.approx(row) for row in ([1.0, 0.5, 0.2], [0.7, 1.0, 0.0], [0.2, 0.0, 1.0])
    ]
    grown, known = relation.added("new", NAMES, ClassHint({"c": 0.0, "a": 0.4}))
    assert known
    edges = {tuple(pair) for pair in grown.similarities.indices().T.tolist()}
    assert {(3, 2), (2, 3), (3, 0), (0, 3), (3, 3)} <= edges, "a similarity of zero is an edge too"
    assert (3, 1) not in edges
    alone, known = relation.added("new", NAMES)
    assert not known
    assert alone.similarities.indices().T.tolist()[-1] == [3, 3]


@pytest.mark.parametrize(
    "source",
    [
        MatrixRelation(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)), tuple("abcde")),
        MatrixRelation(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)).to_sparse(), tuple("abcde")),
        AttributeRelation(torch.rand(5, 4, generator=torch.Generator().manual_seed(1)), tuple("abcde"), centred=True),
        EmbeddingRelation(torch.rand(5, 4, generator=torch.Generator().manual_seed(2)), tuple("abcde"), centred=True),
        EdgeRelation([("a", "b", 0.5), ("b", "d", 2.0), ("d", "c", 1.0), ("e", "a", 1.0)], measure="adjacency", directed=True),
        EdgeRelation([("a", "b", 1.0), ("b", "d", 1.0), ("d", "c", 1.0), ("e", "a", 1.0)]),
        UnicodeRelation({"base": 1.0, "script": 1.0}),
    ],
    ids=lambda source: type(source).__name__,
)
@pytest.mark.parametrize("asked", [1, 256])
def test_a_source_answers_for_new_classes_as_for_all_together(source, asked, monkeypatch):
    monkeypatch.setattr(kept, "CLASSES_PER_REQUEST", asked)
    (relation,) = keep_relations(source, NAMES).values()
    grown, known = relation.added("d", NAMES)
    assert known
    grown, _ = grown.added("e", (*NAMES, "d"))
    whole = source.similarities(tuple("abcde"))
    torch.testing.assert_close(grown.similarities.to_dense(), whole.to_dense())
    assert grown.sparse == (whole.layout != torch.strided)
    fewer = grown.removed(1)
    torch.testing.assert_close(fewer.similarities.to_dense(), source.similarities(tuple("acde")).to_dense())
    if not isinstance(source, EmbeddingRelation | EdgeRelation):  # which a file names, or leaves out
        grown, _ = again(fewer).added("b", tuple("acde"))
        torch.testing.assert_close(grown.similarities.to_dense(), source.similarities(tuple("acdeb")).to_dense())
    else:
        with pytest.warns(UserWarning, match="is kept without its source"):
            assert again(fewer).source is None


def test_attributes_are_taken_as_a_vector_and_stay():
    table = torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    source = AttributeRelation(table, NAMES, centred=True)
    (relation,) = keep_relations(source, NAMES).values()
    vector = torch.tensor([0.1, 0.9, 0.3, 0.4], dtype=torch.float64)
    grown, _ = relation.added("new", NAMES, ClassHint(attributes=vector))
    grown, _ = again(grown).added("a", (*NAMES, "new"), ClassHint(attributes=2 * vector))  # a name that its table has already
    centred = torch.cat([table, vector[None], 2 * vector[None]]) - table.mean(0)
    for row in range(5):
        for column in range(5):
            expected = torch.dot(centred[row], centred[column]) / (centred[row].norm() * centred[column].norm())
            assert grown.similarities[row, column].item() == pytest.approx(expected.item(), abs=1e-6)
    with pytest.raises(InputError, match="class 'x' has 2 attributes, but relation 'attributes' has 4"):
        relation.added("x", NAMES, ClassHint(attributes=vector[:2]))


def test_a_class_may_be_known_to_the_source_by_another_name():
    (relation,) = keep_relations(UnicodeRelation({"base": 1.0, "script": 1.0}), NAMES).values()
    grown, _ = relation.added("the first", NAMES, ClassHint(alias="á"))
    assert grown.known == ("a", "b", "c", "á")
    assert grown.similarities[3, 0].item() == pytest.approx(1.0)
    with pytest.raises(InputError, match="'42' is not a single letter"):
        relation.added("x", NAMES, ClassHint(alias="42"))


def test_what_was_told_of_a_class_is_not_asked_of_the_source():
    (relation,) = keep_relations(UnicodeRelation({"base": 1.0, "script": 1.0}), NAMES).values()
    grown, _ = relation.added("42", NAMES, ClassHint({"a": 0.3}))
    grown, _ = grown.added("á", (*NAMES, ClassHint(alias="42")))
    assert grown.similarities[4, 3].item() == pytest.approx(relation.floor)
    assert math.isclose(grown.similarities[4, 0].item(), 1.0, rel_tol=1e-6)


def test_several_relations_have_different_labels():
    unicode = UnicodeRelation({"base": 1.0})
    assert list(keep_relations([unicode, DENSE, unicode], NAMES)) == ["unicode", "similarity", "unicode-2"]
    assert list(keep_relations({"one": unicode, "two": {("a", "b"): 0.5}}, NAMES)) == ["one", "two"]
    assert keep_relations(None, NAMES) == {}


@pytest.mark.parametrize("sparse", [False, True])
def test_a_class_told_anew_keeps_its_place(sparse):
    (relation,) = keep_relations(DENSE.to_sparse_coo() if sparse else DENSE, NAMES).values()
    told, known = relation.retold(1, NAMES, ClassHint({"c": 0.9}))
    floor = 0.0 if sparse else relation.floor
    expected = [[1.0, floor, 0.4], [floor, 1.0, 0.9], [0.5, 0.9, 1.0]]
    assert known
    assert told.similarities.to_dense().tolist() == [pytest.approx(row) for row in expected]
    assert [told.row(index).tolist() for index in range(3)] == [pytest.approx(row) for row in expected]
    nothing, known = told.retold(1, NAMES, ClassHint({}))
    assert not known
    assert nothing.row(1).tolist() == pytest.approx([floor, 1.0, floor])


def test_a_relation_by_hand_begins_without_an_edge_and_grows():
    for names in ((), ("a",), NAMES):
        relation = again(KeptRelation.by_hand(names))
        assert relation.sparse
        assert torch.equal(relation.similarities.to_dense(), torch.eye(len(names)))
        grown, known = relation.added("x", names, ClassHint(dict.fromkeys(names, 0.5)))
        assert known == bool(names)
        assert grown.row(len(names)).tolist() == [0.5] * len(names) + [1.0]
        assert grown.ask_about("a") is None
    (relation,) = keep_relations({}, ()).values()
    assert relation.similarities.shape == (0, 0)
    with pytest.raises(InputError, match=r"such as \{'sparrow': 0.8\}"):
        KeptRelation.by_hand(()).added("x", (), ClassHint(alias="crane"))


def test_a_source_is_asked_about_a_class_that_may_be_there():
    (relation,) = keep_relations(MatrixRelation(DENSE, NAMES), ("c", "a")).values()
    assert relation.ask_about("b").tolist() == pytest.approx([0.6, 0.3])
    assert relation.ask_about("a").tolist() == pytest.approx([0.4, 1.0])
    assert relation.ask_about("nobody") is None
