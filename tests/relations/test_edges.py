import itertools
import math
import random
import re
import sys

import networkx
import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import EdgeRelation

#  a small taxonomy with an inner node, a second component and a loop
EDGES = [
    ("cat", "mammal", 2.0),
    ("dog", "mammal", 0.5),
    ("mammal", "animal", 1.0),
    ("hen", "animal", 3.0),
    ("tree", "plant", 1.0),
]
CLASSES = ["cat", "dog", "hen", "tree", "animal"]
NODES = sorted({node for edge in EDGES for node in edge[:2]})


def naive_weights(directed):
    """Weights [nodes, nodes] as nested dictionaries."""
    weights = {m: dict.fromkeys(NODES, 0.0) for m in NODES}
    for tail, head, weight in EDGES:
        weights[tail][head] = weight
        if not directed:
            weights[head][tail] = weight
    return weights


def naive_distances(directed):
    """Floyd and Warshall."""
    weights = naive_weights(directed)
    steps = {m: {n: 0 if m == n else 1 if weights[m][n] else math.inf for n in NODES} for m in NODES}
    for via, m, n in itertools.product(NODES, NODES, NODES):
        steps[m][n] = min(steps[m][n], steps[m][via] + steps[via][n])
    return steps


def naive_power(directed, power):
    weights = naive_weights(directed)
    if power > 1:
        sums = {m: sum(row.values()) for m, row in weights.items()}
        weights = {m: {n: value / sums[m] if sums[m] else 0 for n, value in row.items()} for m, row in weights.items()}
    answer = weights
    for _ in range(power - 1):
        answer = {m: {n: sum(answer[m][via] * weights[via][n] for via in NODES) for n in NODES} for m in NODES}
    return answer


def check(answer, names, expected):
    assert answer.dtype == torch.float32
    dense = answer.to_dense()
    assert dense.shape == (len(names), len(names))
    for m, row in enumerate(names):
        for n, column in enumerate(names):
            assert dense[m, n].item() == pytest.approx(1 if m == n else expected(row, column), abs=1e-6)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("names", [CLASSES, NODES, ["hen", "cat"], ["cat"], []])
def test_path_similarity_counts_the_edges_of_the_shortest_path(directed, names):
    answer = EdgeRelation(EDGES, directed=directed).similarities(names)
    assert answer.layout == torch.strided
    check(answer, names, lambda m, n: 1 / (1 + naive_distances(directed)[m][n]))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("power", [1, 2, 3, 4])
@pytest.mark.parametrize("names", [CLASSES, NODES, ["hen", "cat"], ["cat"], []])
def test_adjacency_is_sparse_and_its_powers_pass_nodes_that_are_no_classes(directed, power, names):
    answer = EdgeRelation(EDGES, measure="adjacency", power=power, directed=directed).similarities(names)
    assert answer.layout == torch.sparse_coo
    assert answer.is_coalesced()
    check(answer, names, lambda m, n: naive_power(directed, power)[m][n])
    off_diagonal = answer.indices()[0] != answer.indices()[1]
    assert answer.values()[off_diagonal].all()  # what is zero is not stored


def test_powers_stay_bounded():
    answer = EdgeRelation(EDGES, measure="adjacency", power=50).similarities(NODES).to_dense()
    assert ((answer - torch.eye(len(NODES)) * answer.diag()).sum(1) <= 1 + 1e-6).all()


def test_sparse_graph_is_restricted_without_making_all_pairs():
    ring = [(f"class {i}", f"class {(i + 1) % 3000}", 1.0) for i in range(3000)]
    answer = EdgeRelation(ring, measure="adjacency", directed=True, power=2).similarities(["class 8", "class 3", "class 6"])
    assert answer.indices().T.tolist() == [[0, 0], [1, 1], [2, 0], [2, 2]]


def test_nodes_without_edges_and_edges_without_weight_lead_nowhere():
    relation = EdgeRelation([("a", "b", 0.0), ("b", "c", 1.0), ("c", "c", 5.0)], nodes=["lonely"])
    names = ["a", "b", "c", "lonely"]
    assert relation.similarities(names).tolist() == [[1, 0, 0, 0], [0, 1, 0.5, 0], [0, 0.5, 1, 0], [0, 0, 0, 1]]
    graph = EdgeRelation([("a", "b", 0.0), ("b", "c", 1.0), ("c", "c", 5.0)], ["lonely"], "adjacency").similarities(names)
    assert graph.to_dense().tolist() == [[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    assert graph.indices().shape == (2, 6)


def test_edge_may_come_twice_with_one_weight():
    once, twice = EdgeRelation(EDGES), EdgeRelation([*EDGES, *((head, tail, weight) for tail, head, weight in EDGES)])
    assert torch.equal(once.similarities(NODES), twice.similarities(NODES))
    with pytest.raises(InputError, match=r"'links' has two weights for the edge 'b' -> 'a' \(either way\), 1 and 2: keep one"):
        EdgeRelation([("a", "b", 1), ("b", "a", 2)], source="links")
    EdgeRelation([("a", "b", 1), ("b", "a", 2)], directed=True)
    with pytest.raises(InputError, match="two weights for the edge 'a' -> 'b', 1 and 2"):
        EdgeRelation([("a", "b", 1), ("a", "b", 2)], directed=True)


@pytest.mark.parametrize("weight", [-1.0, 1e39, math.nan, math.inf, "much", None])
def test_weight_that_cannot_serve_is_named_by_its_edge(weight):
    with pytest.raises(InputError, match=re.escape(f"'links' has weight {weight} at the edge 'a' -> 'b'")):
        EdgeRelation([("b", "c", 1), ("a", "b", weight)], source="links")


def test_missing_class_is_named():
    relation = EdgeRelation(EDGES, source="tree")
    with pytest.raises(InputError, match="'tree' lacks class 'pig': add an edge of it"):
        relation.similarities(["cat", "pig"])
    with pytest.raises(InputError, match="'pig' and 1 more"):
        relation.similarities(["pig", "cat", "fly"])


def test_settings_that_make_no_sense_are_errors():
    with pytest.raises(InputError, match="unknown measure 'paths': did you mean path"):
        EdgeRelation(EDGES, measure="paths")
    with pytest.raises(InputError, match="power 0: give at least 1"):
        EdgeRelation(EDGES, measure="adjacency", power=0)
    with pytest.raises(InputError, match="would ignore power 2"):
        EdgeRelation(EDGES, power=2)


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("header", [[], [["source", "target", "weight"]], [["Source", "Target", "Weight"]]])
@pytest.mark.parametrize("measure", ["path", "adjacency"])
def test_edges_are_read_from_text(tmp_path, suffix, header, measure):
    path = tmp_path / f"tree{suffix}"
    joint = "," if suffix == ".csv" else "\t"
    path.write_text("\n".join(joint.join(row) for row in [*header, *([a, b, str(w)] for a, b, w in EDGES)]), encoding="utf-8")
    relation = EdgeRelation.read(path, measure)
    assert relation.source == str(path)
    expected = EdgeRelation(EDGES, measure=measure).similarities(CLASSES)
    assert torch.equal(relation.similarities(CLASSES).to_dense(), expected.to_dense())


def test_spaces_behind_commas_are_no_part_of_names(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text('source, target, weight\na, b, 1\n"b c" , a, 1\n')
    assert EdgeRelation.read(path).nodes == ["a", "b", "b c"]


def test_weight_may_be_left_out(tmp_path):
    path = tmp_path / "tree.csv"
    path.write_text("source,target\na,b\nb,c\n")
    answer = EdgeRelation.read(path, "adjacency", directed=True).similarities(["a", "b", "c"]).to_dense()
    assert answer.tolist() == [[1, 1, 0], [0, 1, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("source,target\n", "is empty"),
        ("a,b,1\nc\n", "row 'c' is no edge"),
        ("a,b,1\nc,,1\n", "row 'c, , 1' is no edge"),
        ("a,b,1,2\n", "row 'a, b, 1, 2' is no edge"),
        ("a,b,high\n", "weight high at the edge 'a' -> 'b'"),
        ("a,b,nan\n", "weight nan at the edge 'a' -> 'b'"),
        ("a,b,-1\n", "weight -1 at the edge 'a' -> 'b'"),
    ],
)
def test_bad_text_is_an_error_that_names_file_and_fault(tmp_path, text, said):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        EdgeRelation.read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("kind", [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph])
@pytest.mark.parametrize("measure", ["path", "adjacency"])
def test_graphs_of_networkx_are_taken_with_their_direction_and_weights(tmp_path, kind, measure):
    graph = kind()
    graph.add_weighted_edges_from(EDGES)
    graph.add_node("lonely")
    directed = measure == "adjacency" and graph.is_directed()
    expected = EdgeRelation(EDGES, ["lonely"], measure, directed=directed).similarities([*CLASSES, "lonely"]).to_dense()
    assert torch.equal(EdgeRelation.of(graph, measure).similarities([*CLASSES, "lonely"]).to_dense(), expected)
    networkx.write_graphml(graph, tmp_path / "tree.graphml")
    read = EdgeRelation.read(tmp_path / "tree.graphml", measure)
    assert torch.equal(read.similarities([*CLASSES, "lonely"]).to_dense(), expected)


def test_direction_of_a_graph_may_be_said_otherwise():
    graph = networkx.DiGraph([("cat", "animal"), ("dog", "animal")])
    assert EdgeRelation.of(graph).similarities(["cat", "dog"])[0, 1] == pytest.approx(1 / 3)
    assert EdgeRelation.of(graph, directed=True).similarities(["cat", "dog"])[0, 1] == 0
    assert EdgeRelation.of(graph, "adjacency", directed=False).similarities(["animal", "dog"]).to_dense()[0, 1] == 1


def test_nodes_of_a_graph_may_be_numbers():
    assert EdgeRelation.of(networkx.path_graph(3)).similarities(["0", "2"])[0, 1] == pytest.approx(1 / 3)


def test_graph_with_a_bad_weight_is_an_error_that_names_the_edge():
    with pytest.raises(InputError, match="'graph' has weight -2 at the edge 'a' -> 'b'"):
        EdgeRelation.of(networkx.Graph([("a", "b", {"weight": -2})]))


@pytest.mark.parametrize("text", ["", "<graphml>", "<html></html>"])
def test_bad_graphml_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "bad.graphml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.graphml is not a \.graphml graph"):
        EdgeRelation.read(path)


def test_missing_reader_of_graphs_is_an_error_that_says_how_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "a.graphml").touch()
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(InputError, match=r'a\.graphml needs a reader of graphs: pip install "protograph\[graphs\]"'):
        EdgeRelation.read(tmp_path / "a.graphml")


def test_missing_and_unknown_files_are_errors_that_name_them(tmp_path):
    with pytest.raises(InputError, match=r"no relation file at .*gone\.csv: give edges"):
        EdgeRelation.read(tmp_path / "gone.csv")
    (tmp_path / "a.dot").touch()
    with pytest.raises(InputError, match=r"cannot read edges from .*a\.dot"):
        EdgeRelation.read(tmp_path / "a.dot")


@pytest.mark.parametrize(
    "text",
    ['<?xml version="1.0" encoding="nosuch"?><graphml/>', '<?xml version="1.0" encoding="utf-16"?><graphml/>', "", "<graphml>"],
)
def test_a_damaged_graph_is_named(tmp_path, text):
    (tmp_path / "own.graphml").write_text(text)
    with pytest.raises(InputError, match=r"own.graphml is not a .graphml graph"):
        EdgeRelation.read(tmp_path / "own.graphml")


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("at_once", [1, 70, 1024])
def test_paths_of_a_random_graph_are_those_of_a_naive_search(
    monkeypatch: pytest.MonkeyPatch, directed: bool, at_once: int
) -> None:
    """More starts than a word has bits, several searches, edges of weight 0, nodes without edges, names that come twice."""
    monkeypatch.setattr("protograph.relations.edges.STARTS_AT_ONCE", at_once)
    drawn = random.Random(0)
    nodes = [f"n{number}" for number in range(160)]
    pairs = {tuple(sorted(drawn.sample(nodes[:150], 2))) for _ in range(190)}
    edges = [(tail, head, float(drawn.random() < 0.9)) for tail, head in sorted(pairs)]
    names = [*drawn.sample(nodes, 90), nodes[159], nodes[0], nodes[0]]
    similarities = EdgeRelation(edges, nodes, directed=directed).similarities(names)
    both = [(tail, head) for tail, head, weight in edges if weight]
    both += [] if directed else [(head, tail) for tail, head in both]
    for row, start in enumerate(names):
        steps, reached = {start: 0}, [start]
        for node in reached:
            for tail, head in both:
                if tail == node and head not in steps:
                    steps[head] = steps[node] + 1
                    reached.append(head)
        expected = torch.tensor([1 / (1 + steps[name]) if name in steps else 0.0 for name in names])
        assert torch.equal(similarities[row], expected), start
    assert not EdgeRelation(edges, nodes).similarities([]).numel()
