import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from protograph.cli import app
from protograph.cli.relations import neighbours, statistics
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.relations import MatrixRelation
from protograph.report.figures import draw_similarities

write_wordnet = runpy.run_path(str(Path(__file__).parents[1] / "relations" / "wordnet_files.py"))["write_wordnet"]


def relations(*arguments: str | Path) -> Result:
    environment = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PROTOGRAPH_DATA": None}
    given = ["relations", *map(str, arguments)]
    return CliRunner(env=environment).invoke(app, given, prog_name="protograph")


def answer(*arguments: str | Path) -> dict[str, object]:
    result = relations(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def toy_source(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """`toy` known by its name to the command."""
    monkeypatch.setitem(DATASETS, "toy", DatasetSource(lambda *_: toy, "conv4-32", "noisy patterns", built_in=True))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree.csv"
    path.write_text("cat,mammal,2\ndog,mammal,1\nmammal,animal,1\nhen,animal,1\n")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("class,fur,legs\ncat,9,4\ndog,8,4\nhen,0,2\nfish,1,0\n")
    return path


def test_own_relation_of_a_dataset_is_shown_for_its_first_novel_class(toy: Dataset) -> None:
    result = answer("kinship", "--dataset=toy")
    first = toy.classes[toy.seen]
    assert (result["class"], result["classes"], result["seen"]) == (first, len(toy.classes), toy.seen)
    row = toy.relations["kinship"].similarities(toy.classes)[toy.seen].tolist()
    others = sorted(((value, name) for name, value in zip(toy.classes, row, strict=True) if name != first), reverse=True)
    for shown, expected in ((result["strongest"], others[:10]), (result["weakest"], others[-5:])):
        assert [pair["class"] for pair in shown] == [name for _, name in expected]
        assert [pair["similarity"] for pair in shown] == pytest.approx([value for value, _ in expected], abs=1e-5)
    shown = relations("kinship", "--dataset=toy").stdout
    assert all(name in shown for _, name in others[:10] + others[-5:])


def test_statistics_are_of_pairs_and_of_the_softmax_over_rows() -> None:
    matrix = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
    pairs = sorted(matrix[m, n].item() for m in range(6) for n in range(6) if m != n)
    perplexities = []
    for row in matrix.tolist():
        shares = [math.exp(value) / sum(map(math.exp, row)) for value in row]
        perplexities.append(math.exp(-sum(share * math.log(share) for share in shares)))
    found = statistics(matrix)
    assert (found["min"], found["median"], found["max"]) == pytest.approx((pairs[0], pairs[14], pairs[-1]))
    assert found["effective_neighbours"] == pytest.approx(sum(perplexities) / 6, abs=1e-3)


def test_only_the_edges_of_a_sparse_graph_count_as_neighbours() -> None:
    graph = torch.tensor([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]]).to_sparse_coo().coalesce()
    assert statistics(graph)["effective_neighbours"] == pytest.approx((2 + 1 + 1) / 3, abs=1e-3)
    assert statistics(graph)["min"] == 0
    assert neighbours(graph, ["a", "b", "c"], "a")["strongest"][0] == {"class": "b", "similarity": 1}


def test_one_class_alone_is_shown(table: Path) -> None:
    result = answer(f"attributes:{table}", "--names=cat")
    assert result["strongest"] == result["weakest"] == []
    assert result["statistics"] == {"min": None, "median": None, "max": None, "effective_neighbours": 1}
    assert relations(f"attributes:{table}", "--names=cat").exit_code == 0


def test_matrix_is_written_for_training_to_read(tmp_path: Path, table: Path, tree: Path) -> None:
    for spec, more in ((f"attributes:{table}", ["--centred"]), (f"edges:{tree}", ["--measure=adjacency", "--power=2"])):
        result = answer(spec, "--names=dog, cat,hen", "--out", tmp_path / "own" / "written.npz", *more)
        relation = MatrixRelation.read(tmp_path / "own" / "written.npz")
        assert relation.names == ("dog", "cat", "hen")
        strongest = result["strongest"][0]
        value = relation.matrix.to_dense()[0, relation.names.index(strongest["class"])].item()
        assert value == pytest.approx(strongest["similarity"], abs=1e-5)
    assert relation.similarities(["dog", "cat"]).to_dense()[0, 1] == pytest.approx(0.5)  # two steps over what they both are


def test_written_matrix_can_be_shown_again_for_all_its_classes(tmp_path: Path, table: Path, tree: Path) -> None:
    for spec, count in (([f"attributes:{table}"], 4), ([f"edges:{tree}", "--measure=adjacency", "--names=cat,mammal,hen"], 3)):
        first = answer(*spec, "--out", tmp_path / "a.npz")
        again = answer(tmp_path / "a.npz")
        assert first["classes"] == again["classes"] == count
        assert {**first, "relation": ""} == {**again, "relation": ""}


def test_dataset_is_written_by_its_class_names_and_read_by_train(toy: Dataset, tmp_path: Path) -> None:
    answer("kinship", "--dataset=toy", "--out", tmp_path / "a.npz")
    written = MatrixRelation.read(tmp_path / "a.npz")
    assert torch.equal(written.similarities(toy.classes), toy.relations["kinship"].similarities(toy.classes))


def test_wordnet_tells_what_it_takes_names_for(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path / "wn")
    arguments = (f"wordnet:{tmp_path / 'wn'}", f"--names=crane,Zebra_Finch,{ids[5]}")
    senses = answer(*arguments)["senses"]
    assert [(sense["id"], sense["by"]) for sense in senses] == [(ids[4], "name"), (ids[6], "last words"), (ids[5], "id")]
    shown = relations(*arguments).stdout
    for words in (ids[4], "crane.n.01", "a large bird; long legs", "last words", "a small bird"):
        assert words in shown
    assert "lifts and moves" not in shown  # an id means what it means


def test_classes_that_a_relation_lacks_are_named_and_the_rest_is_shown(tmp_path: Path, table: Path) -> None:
    write_wordnet(tmp_path / "wn")
    arguments = (f"wordnet:{tmp_path / 'wn'}", "--names=crane,Zoggle,Zebra_Finch,Quux")
    said = answer(*arguments)
    assert said["lacking"] == ["Zoggle", "Quux"]
    alone = answer(arguments[0], "--names=crane,Zebra_Finch")
    assert said == {**alone, "lacking": ["Zoggle", "Quux"]}
    shown = relations(*arguments)
    assert "Zebra_Finch" in shown.stdout
    assert "lacks Zoggle, Quux (2 of 4 classes), left out here" in shown.stderr
    answer(f"attributes:{table}", "--names=hen,pig,cat", "--out", tmp_path / "a.npz")
    assert MatrixRelation.read(tmp_path / "a.npz").names == ("hen", "cat")


def test_chosen_class_is_shown(table: Path) -> None:
    result = answer(f"attributes:{table}", "--class=hen")
    assert result["class"] == "hen"
    assert [pair["class"] for pair in result["strongest"]][-1] == "fish"


@pytest.mark.slow
def test_image_is_drawn(tmp_path: Path, tree: Path) -> None:
    for spec, more in (("kinship", ["--dataset=toy"]), (f"edges:{tree}", ["--names=cat,dog,hen", "--measure=adjacency"])):
        answer(spec, *more, "--image", tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as image:
            assert min(image.size) > 300


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "seen"), [(1, 1), (2, 1), (3, 3), (140, 100)])
def test_image_of_any_size_is_drawn(tmp_path: Path, classes: int, seen: int) -> None:
    for number, matrix in enumerate((torch.zeros(classes, classes), torch.rand(classes, classes) - 0.5)):
        path = tmp_path / f"{number}.png"
        draw_similarities(matrix, [f"class {row}" for row in range(classes)], seen, path, "any")
        assert path.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["wordnets", "--names=a"], ["'wordnets'", "wordnet"]),
        (["kinshop", "--dataset=toy"], ["'kinshop'", "kinship"]),
        (["kinship", "--dataset=tyo"], ["'tyo'", "toy"]),
        (["kinship", "--names=a,b"], ["'kinship'"]),
        (["attributes:TABLE", "--class=cta"], ["unknown class 'cta'", "cat"]),
        (["attributes:TABLE", "--names=pig,fly"], ["lacks class 'pig' and 1 more"]),
        (["attributes:TABLE", "--names=cat,pig,fly", "--class=fly"], ["lacks class 'pig' and 1 more"]),
        (["attributes:TABLE", "--dataset=toy"], ["lacks class 'class-00' and 24 more"]),
        (["attributes:TABLE", "--names=cat,cat"], ["different class names", "'cat,cat'"]),
        (["attributes:TABLE", "--names=,"], ["--names"]),
        (["attributes:TABLE", "--names=cat", "--dataset=toy"], ["--names would be ignored"]),
        (["attributes:TABLE", "--root=here"], ["--root would be ignored"]),
        (["attributes:TABLE", "--measure=path"], ["'attributes' has no setting 'measure'", "edges"]),
        (["attributes:TABLE", "--power=2"], ["'attributes' has no setting 'power'"]),
        (["edges:TREE", "--names=cat", "--centred"], ["'edges' has no setting 'centred'", "attributes and embeddings"]),
        (["edges:TREE", "--names=cat", "--power=2"], ["would ignore power 2", "adjacency"]),
        (["edges:TREE", "--names=cat", "--measure=pth"], ["unknown measure 'pth'", "path"]),
        (["edges:TREE"], ["--dataset or --names"]),
        (["kinship", "--dataset=toy", "--centred"], ["'kinship' of toy has no setting 'centred'"]),
        (["attributes:TABLE", "--out=a.csv"], ["a.csv", ".npz"]),
        (["attributes:TABLE", "--image=a.jpg"], ["a.jpg", ".png"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(table: Path, tree: Path, arguments: list[str], named: list[str]) -> None:
    arguments = [argument.replace("TABLE", str(table)).replace("TREE", str(tree)) for argument in arguments]
    result = relations(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for words in named:
        assert words in result.stderr


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", names=np.array(["[bold]a", "b[/]"]), similarities=np.eye(2))
    shown = relations(tmp_path / "a.npz").stdout
    assert "[bold]a" in shown
    assert "b[/]" in shown
