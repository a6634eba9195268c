import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from wordnet_files import write_wordnet

from protograph._internal.errors import InputError
from protograph.relations import (
    AttributeRelation,
    EdgeRelation,
    EmbeddingRelation,
    MatrixRelation,
    RelationSpec,
    SentenceRelation,
    WordNetRelation,
    canonical_name,
    named_kinds,
    open_relations,
)

OWN = {"kinship": MatrixRelation(torch.eye(2), ["a", "b"], "kinship")}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """One file of every kind, in the folder the user is in."""
    (tmp_path / "table.csv").write_text("class,x,y\na,1,0\nb,1,1\n")
    (tmp_path / "words.txt").write_text("a 1 0\nb 1 1\n")
    (tmp_path / "tree.csv").write_text("a,b\n")
    (tmp_path / "same.v1.csv").write_text(",a,b\na,1,0\nb,0,1\n")
    write_wordnet(tmp_path / "wn")
    np.savez(tmp_path / "same.npz", names=np.array(["a", "b"]), similarities=np.eye(2))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "path", "label", "opened"),
    [
        ("attributes:table.csv", "attributes", "table.csv", "attributes_table", AttributeRelation),
        ("embeddings:words.txt", "embeddings", "words.txt", "embeddings_words", EmbeddingRelation),
        ("edges:tree.csv", "edges", "tree.csv", "edges_tree", EdgeRelation),
        ("same.npz", "matrix", "same.npz", "same", MatrixRelation),
        ("same.v1.csv", "matrix", "same.v1.csv", "same-v1", MatrixRelation),
        ("matrix:same.v1.csv", "matrix", "same.v1.csv", "same-v1", MatrixRelation),
        ("wordnet:wn", "wordnet", "wn", "wordnet", WordNetRelation),
    ],
)
def test_relation_with_a_file_is_known_by_kind_and_place(files, text, kind, path, label, opened):
    spec = RelationSpec.parse(text)
    assert (spec.kind, spec.path, spec.label) == (kind, Path(path), label)
    assert isinstance(spec.open(), opened)
    prefix = "" if kind == "matrix" else f"{kind}:"
    assert str(spec) == canonical_name(text) == f"{prefix}{files / path}"
    assert str(RelationSpec.parse(str(spec))) == str(spec)
    torch.nn.Module().add_module(spec.label, torch.nn.Module())


def test_relation_without_a_file_is_known_by_its_kind():
    assert [str(RelationSpec.parse(kind)) for kind in ("wordnet", "names")] == ["wordnet", "names"]
    assert [RelationSpec.parse(kind).label for kind in ("wordnet", "names")] == ["wordnet", "names"]


def test_digest_is_of_the_content(files):
    content = (files / "table.csv").read_bytes()
    assert RelationSpec.parse("attributes:table.csv").digest == hashlib.sha256(content).hexdigest()[:16]
    assert RelationSpec.parse("wordnet:wn").digest == "WordNet 3.0"
    with pytest.raises(InputError, match=r"no relation file at gone\.csv"):
        _ = RelationSpec.parse("edges:gone.csv").digest


def test_digest_of_names_is_the_encoder(monkeypatch):
    monkeypatch.setattr(SentenceRelation, "__init__", lambda self, titles=None: None)
    monkeypatch.setattr(SentenceRelation, "version", "encoder 1")
    assert RelationSpec.parse("names").digest == "encoder 1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wordnets", "unknown relation 'wordnets': did you mean wordnet"),
        ("atributes:table.csv", "unknown relation 'atributes': did you mean attributes"),
        ("kinshop", "unknown relation 'kinshop': did you mean kinship"),
        ("", "unknown relation ''"),
        ("attributes", "relation 'attributes' needs a file: attributes:FILE"),
        ("edges:", "relation 'edges:' has no file behind the colon"),
        ("wordnet:", "relation 'wordnet:' has no file behind the colon"),
        ("names:table.csv", "takes no file, 'table.csv' would be ignored"),
    ],
)
def test_what_names_no_relation_is_an_error_with_the_way_out(text, said):
    with pytest.raises(InputError, match=re.escape(said)):
        RelationSpec.parse(text, OWN)


def test_drive_letter_is_no_kind():
    assert RelationSpec.parse(r"C:\data\same.csv").kind == "matrix"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("text", "setting", "takers"),
    [
        ("wordnet:wn", {"centred": True}, "attributes and embeddings have"),
        ("same.npz", {"centred": False}, "attributes and embeddings have"),
        ("attributes:table.csv", {"measure": "path"}, "edges have"),
        ("names", {"power": 2}, "edges have"),
    ],
)
def test_setting_that_would_be_ignored_is_an_error(text, setting, takers):
    with pytest.raises(InputError, match=f"has no setting '{next(iter(setting))}': only {takers}"):
        RelationSpec.parse(text).open(**setting)


@pytest.mark.usefixtures("files")
def test_settings_reach_the_relation():
    for text in ("attributes:table.csv", "embeddings:words.txt"):
        assert RelationSpec.parse(text).open(centred=True).centred
    relation = RelationSpec.parse("edges:tree.csv").open(measure="adjacency", power=2)
    assert (relation.measure, relation.power) == ("adjacency", 2)
    assert RelationSpec.parse("embeddings:words.txt").open({"n1": "a b"}).titles == {"n1": "a b"}


@pytest.mark.usefixtures("files")
def test_relations_are_opened_in_order_and_by_label():
    opened = open_relations(["edges:tree.csv", "kinship", "same.npz"], OWN)
    assert list(opened) == ["edges_tree", "kinship", "same"]
    assert opened["kinship"] is OWN["kinship"]
    assert canonical_name("kinship", OWN) == "kinship"
    assert all(relation.similarities(["a", "b"]).shape == (2, 2) for relation in opened.values())


@pytest.mark.usefixtures("files")
def test_relations_of_one_label_are_an_error_that_names_both():
    for named in (
        ["same.npz", "same.npz"],
        ["kinship", "kinship"],
        ["same.npz", "matrix:same.csv"],
        ["kinship", "kinship.csv"],
    ):
        with pytest.raises(InputError, match=re.escape(f"relations '{named[0]}' and '{named[1]}' would both be called")):
            open_relations(named, OWN)


def test_every_kind_is_described():
    kinds = named_kinds()
    assert set(kinds) == {"attributes", "edges", "embeddings", "matrix", "names", "wordnet"}
    assert all(kind.help.startswith(name) for name, kind in kinds.items())
