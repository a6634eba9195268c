import sys

import pytest
import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.rows import Rows
from protograph.nn import neighbours
from protograph.nn.classify import normalise
from protograph.nn.neighbours import NeighbourGraph, NeighbourMeasure, VectorIndex, all_nearest, load_usearch, nearest


def vectors(count: int, size: int = 6, seed: int = 0) -> Tensor:
    return normalise(torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def naive(rows: Tensor, columns: Tensor, count: int, measure: NeighbourMeasure) -> list[list[int]]:
    found = []
    for row in rows:
        scores = [float(row @ other) if measure == "cosine" else -float((row - other).norm()) for other in columns]
        found.append(sorted(range(len(columns)), key=lambda index, scores=scores: -scores[index])[:count])
    return found


@pytest.mark.parametrize("measure", ["cosine", "l2"])
def test_blocks_of_columns_have_the_nearest_of_all(measure: NeighbourMeasure) -> None:
    rows, columns = vectors(7), 2 * vectors(30, seed=1) if measure == "l2" else vectors(30, seed=1)
    blocks = Rows([columns[:4], columns[4:5], columns[5:]])
    scores, indices = nearest(rows, blocks, 5, measure)
    assert indices.tolist() == naive(rows, columns, 5, measure)
    assert bool((scores.diff(dim=1) <= 0).all())


def test_the_index_finds_nearly_what_comparing_with_all_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("usearch")
    points = vectors(2000, 16).float()
    exact = all_nearest(Rows.of(points), 8, "cosine")[1].tensor()
    monkeypatch.setattr(neighbours, "MOST_EXACT", 1000)
    scores, found = (part.tensor() for part in all_nearest(Rows.of(points), 8, "cosine"))
    assert found.dtype == torch.int32
    assert (found[:, :1] == torch.arange(2000)[:, None]).all(), "a class is nearest to itself"
    shared = sum(len(set(one) & set(other)) for one, other in zip(exact.tolist(), found.tolist(), strict=True))
    assert shared > 0.97 * exact.numel()
    torch.testing.assert_close(scores[5], points[found[5].long()] @ points[5])
    assert VectorIndex(1, 16, "cosine").search(points[:3], 2).tolist() == [[-1, -1]] * 3, "an empty index finds none"


def test_a_missing_index_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    with pytest.raises(InputError, match=r"the nearest of 50,000 classes are found by an index, .* pip install"):
        load_usearch(50_000)


@pytest.mark.parametrize("count", [4, 100])
@pytest.mark.parametrize("measure", ["cosine", "l2"])
def test_a_graph_that_is_changed_is_that_of_the_changed_classes(measure: NeighbourMeasure, count: int) -> None:
    points = vectors(25)
    graph = NeighbourGraph.of(Rows.of(points), count, measure)
    for step in range(6):
        new = vectors(2, seed=10 + step)
        before = graph.indices.tensor().clone()
        if step % 3 == 0:
            graph, changed = graph.extended(new)
            points = torch.cat([points, new])
        elif step % 3 == 1:
            graph, changed = graph.replaced(step, new[0])
            points = points.index_copy(0, torch.tensor([step]), new[:1])
        else:
            graph, changed = graph.without(step)
            points = torch.cat([points[:step], points[step + 1 :]])
        expected = naive(points, points, min(count, len(points)), measure)
        found = graph.indices.tensor()[:, : len(expected[0])].tolist()
        assert [sorted(row) for row in found] == [sorted(row) for row in expected]
        if step % 3 == 0 and count == 4:
            same = (graph.indices.tensor()[: len(before)] == before).all(1)
            assert set((~same).nonzero()[:, 0].tolist()) == set(changed.tolist())
