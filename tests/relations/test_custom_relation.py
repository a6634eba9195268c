"""A relation source from outside the package: registered by a plugin file, named on the command line, kept in a model file."""

import hashlib
import json
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import protograph as pg
from protograph._internal.errors import InputError
from protograph.cli import app
from protograph.data.check import inspect_dataset
from protograph.relations import RELATION_KINDS, RelationSpec, as_relation, register_relation
from protograph.training.setup import find_similarities

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_relation.py"
SIZES = {"sparrow": 15.0, "finch": 14.0, "goose": 80.0, "swan": 150.0, "robin": 13.0}


@pytest.fixture(autouse=True)
def kinds():
    """The kinds of the package alone, whatever a test registers."""
    before = dict(RELATION_KINDS)
    yield
    RELATION_KINDS.clear()
    RELATION_KINDS.update(before)


@pytest.fixture
def sizes(tmp_path):
    path = tmp_path / "sizes.csv"
    path.write_text("".join(f"{name},{size}\n" for name, size in SIZES.items()))
    return path


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.npz"
    labels = ["sparrow", "finch", "goose", "swan"]
    np.savez(path, vectors=np.eye(8, dtype=np.float32), labels=[*labels, *labels])
    return path


def protograph(*arguments):
    environment = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    result = CliRunner(env=environment).invoke(app, [*map(str, arguments), "--json"], prog_name="protograph")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def naive(names):
    return [[min(SIZES[m], SIZES[n]) / max(SIZES[m], SIZES[n]) for n in names] for m in names]


def test_the_example_is_named_on_the_command_line(sizes, tmp_path):
    result = protograph("relations", f"sizes:{sizes}", "--class=goose", "--plugin", EXAMPLE)
    assert [pair["class"] for pair in result["strongest"]] == ["swan", "sparrow", "finch", "robin"]
    assert result["strongest"][0]["similarity"] == pytest.approx(80 / 150, abs=1e-5)
    spec = RelationSpec.parse(f"sizes:{sizes}")
    assert (spec.label, str(spec)) == ("sizes_sizes", f"sizes:{sizes}")
    first = spec.digest
    sizes.write_text(sizes.read_text().replace("80", "81"))
    assert spec.digest != first
    assert spec.open().similarities(list(SIZES)).shape == (5, 5)


def test_a_model_file_asks_the_example_about_new_classes(sizes, vectors, tmp_path):
    model, names = tmp_path / "birds.pg", ["finch", "goose", "sparrow", "swan"]
    protograph("fit", vectors, "--out", model, f"--relations=sizes:{sizes}", "--plugin", EXAMPLE)
    RELATION_KINDS.pop("sizes")
    for _ in range(2):  # a process that does not know the kind can use and write the file
        loaded = pg.Classifier.load(model)
        assert loaded.predict(np.eye(8, dtype=np.float32)[:2]).shape == (2,)
        loaded.save(model)
    np.savez(tmp_path / "new.npz", vectors=np.ones((1, 8), np.float32))
    refused = CliRunner().invoke(app, ["add-class", str(model), "thrush", str(tmp_path / "new.npz")])
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "relation 'sizes' is of a kind that is not registered: name the file" in refused.stderr
    assert "thrush" not in pg.Classifier.load(model).classes_
    assert protograph("add-class", model, "thrush", tmp_path / "new.npz", "--like=finch=0.8")["notes"] == []
    protograph("remove-class", model, "thrush")
    robin = ["add-class", str(model), "robin", str(tmp_path / "new.npz"), "--plugin", str(EXAMPLE)]
    refused = CliRunner().invoke(app, robin)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert f"add --relations sizes:{sizes}" in refused.stderr
    assert protograph(*robin, "--relations", f"sizes:{sizes}")["notes"] == []
    (relation,) = pg.Classifier.load(model).space_.relations.values()
    expected = torch.tensor(naive([*names, "robin"]))
    torch.testing.assert_close(relation.similarities, expected)


def test_the_example_is_used_from_python(sizes):
    source = runpy.run_path(str(EXAMPLE))["SizeRelation"](sizes)
    torch.testing.assert_close(source.similarities(list(SIZES)), torch.tensor(naive(SIZES)))
    with pytest.raises(pg.MissingClassesError, match="no size of class 'crane': add a row"):
        source.similarities(["crane"])
    labels = np.repeat(["sparrow", "finch", "goose", "crane"], 2)
    with pytest.warns(UserWarning, match="one class is taken as unrelated: relation 'sizes' has no size of class 'crane'"):
        known = pg.Classifier().fit(np.eye(8, dtype=np.float32), labels, source)
    assert list(known.space_.relations) == ["size"]


def test_the_example_is_named_in_a_run(toy, tmp_path, monkeypatch):
    runpy.run_path(str(EXAMPLE))
    rows = [f"{name},{1 + number}\n" for number, name in enumerate(toy.classes)]
    (tmp_path / "sizes.csv").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    config = pg.configure(toy, "gcgpn-aux", relations=["sizes:sizes.csv"])
    assert config.relations == (f"sizes:{tmp_path / 'sizes.csv'}",)
    assert config.relation_digests == (hashlib.sha256("".join(rows).encode()).hexdigest()[:16],)
    (matrix,) = find_similarities(pg.find_variant("gcgpn-aux"), toy, config.relations).values()
    assert matrix[3, 1].item() == pytest.approx(2 / 4)


class Restored(pg.Relation):
    """A relation with a description of its own."""

    takes_attributes = True

    def __init__(self, power=1.0):
        self.power = power

    def similarities(self, names):
        """Powers of one half by the difference of the names' lengths."""
        lengths = torch.tensor([float(len(name)) for name in names])
        return 0.5 ** (self.power * (lengths[:, None] - lengths).abs())

    def with_attributes(self, name, values):
        """The length of the name that stands for the class is its only attribute."""
        return self, "x" * int(values[0])

    def describe(self):
        """The power."""
        return {"kind": "lengths"}, {"power": torch.tensor(self.power)}


def test_a_relation_that_describes_itself_is_restored_from_a_model_file(tmp_path):
    register_relation("lengths", Restored, restore=lambda values, tensors: Restored(tensors["power"].item()))
    features = np.eye(6, dtype=np.float32)
    known = pg.Classifier().fit(features, list("aabbcc"), {"length": Restored(2.0)})
    known.save(tmp_path / "one.pg")
    loaded = pg.Classifier.load(tmp_path / "one.pg")
    loaded.add_class("four", features[:1]).add_class("new", features[:1], [3])
    relation = loaded.space_.relations["length"]
    assert relation.known[-2:] == ("four", "xxx")
    assert relation.similarities[3].tolist() == pytest.approx([2**-6, 2**-6, 2**-6, 1.0, 2**-2])


def test_a_kind_says_what_users_may_give():
    register_relation("lengths", Restored)
    assert RelationSpec.parse("lengths").open(power=3.0).power == 3.0
    assert RelationSpec.parse("lengths").digest == ""
    with pytest.raises(InputError, match="relation 'lengths' takes no file, 'here' would be ignored"):
        RelationSpec.parse("lengths:here")
    with pytest.raises(InputError, match="'lengths' has no setting 'speed': leave it out"):
        RelationSpec.parse("lengths").open(speed=3)
    with pytest.raises(InputError, match="kind 'bad' cannot be opened without 'file': name the parameter for its file 'path'"):
        register_relation("bad", lambda file: Restored())


class Duck:
    """An object with similarities and nothing else."""

    def similarities(self, names):
        """All classes are alike."""
        return torch.ones(len(names), len(names))


def test_any_object_with_similarities_is_a_relation(toy):
    register_relation("ducks", Duck)
    opened = RelationSpec.parse("ducks").open()
    assert isinstance(opened, pg.Relation)
    assert (opened.label, opened.summary, opened.classes, opened.senses(["a"])) == ("duck", "Duck", None, [])
    assert as_relation(opened) is opened
    assert inspect_dataset(replace(toy, relations={"ducks": Duck()})).relations == {"ducks": "Duck"}
    known = pg.Classifier().fit(np.eye(6, dtype=np.float32), list("aabbcc"), Duck())
    with pytest.raises(InputError, match="'duck' takes no attributes of class 'd'"):
        known.add_class("d", np.eye(6, dtype=np.float32)[:1], [1.0])
