import json

import pytest
import torch
from wordnet_files import write_wordnet

from kept import blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.relations import ClassHint, EmbeddingRelation, KeptRelation, RelationSpec, WordNetRelation, keep_relations
from protograph.relations.stored import StoredRelation, name_relation


def through_json(relation, named=None):
    values, tensors = relation.describe()
    return KeptRelation.restore(json.loads(json.dumps(values)), tensors, named and RelationSpec.parse(named))


def test_wordnet_is_asked_again_where_it_is(tmp_path, monkeypatch):
    write_wordnet(tmp_path / "dict")
    names = ("crane", "finch", "machine")
    (given,) = keep_relations(f"wordnet:{tmp_path}", names).values()
    (made,) = keep_relations(WordNetRelation(tmp_path), names).values()
    for relation in (given, made, through_json(given, f"wordnet:{tmp_path}")):
        again = through_json(relation, f"wordnet:{tmp_path}")
        assert isinstance(again.source, StoredRelation)
        grown, known = again.added("house finch", names)
        assert known
        whole = WordNetRelation(tmp_path).similarities((*names, "house finch"))
        torch.testing.assert_close(grown.similarities, whole)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    values, _ = made.describe()
    assert values["source"] == {"kind": "named", "spec": "wordnet"}, "the usual place needs no path"


def test_a_source_that_cannot_go_along_is_left_out_and_says_so():
    vectors = EmbeddingRelation(torch.eye(3), ("a", "b", "c"))
    (relation,) = keep_relations(vectors, ("a", "b")).values()
    with pytest.warns(UserWarning, match="'embedding' is kept without its source, which was made in Python"):
        again = through_json(relation)
    assert again.source is None
    assert again.known == ("a", "b")
    with pytest.warns(UserWarning, match="'c' is taken as unrelated: relation 'embedding' was kept without its source"):
        again.added("c", ("a", "b"))
    with pytest.raises(InputError, match="has no source that could answer for 'c'"):
        again.added("c", ("a", "b"), ClassHint(alias="c"))


def test_titles_go_along():
    source = StoredRelation(*name_relation("names", {"a": "an apple"}))
    (kept,) = keep_relations({"words": torch.eye(2)}, ("a", "b")).values()
    values, _ = KeptRelation("words", kept.similarities, 0.0, ("a", "b"), source).describe()
    assert values["source"] == {"kind": "named", "spec": "names", "titles": {"a": "an apple"}}


def test_an_unknown_kind_is_named_when_it_is_asked_and_stays_in_the_file():
    (kept,) = keep_relations({("a", "b"): 0.5}, ("a", "b")).values()
    values, tensors = kept.describe()
    oracle = {"kind": "oracle", "wisdom": 3}
    again = KeptRelation.restore({**values, "source": oracle}, tensors)
    assert torch.equal(again.similarities.to_dense(), kept.similarities.to_dense())
    with pytest.raises(InputError, match=r"relation 'oracle' is of a kind that is not registered: name the file"):
        again.source.similarities(("a",))
    assert through_json(again).describe()[0]["source"] == oracle
    named = StoredRelation(*name_relation("oracle:/here.csv"))
    with pytest.raises(InputError, match=r"relation 'oracle' is of a kind that is not registered.*--plugin FILE"):
        named.similarities(("a",))


def test_titles_of_a_relation_that_was_opened_by_name_go_along(tmp_path):
    path, titles = tmp_path / "words.csv", {"n1": "finch", "n2": "crane", "n3": "goose"}
    path.write_text("finch,1,0\ncrane,1,1\ngoose,0,1\nhen,2,1\n")
    source = RelationSpec.parse(f"embeddings:{path}").open(titles)
    relation = KeptRelation.of("words", source.similarities(list(titles)), list(titles), source, f"embeddings:{path}")
    with pytest.raises(InputError, match=rf"relation embeddings:{path}, a path that is opened only if you name it: add --rel"):
        through_json(relation).added("hen", list(titles))
    path.rename(tmp_path / "moved.csv")
    grown, known = through_json(relation, f"embeddings:{tmp_path / 'moved.csv'}").added("hen", list(titles))
    assert known
    torch.testing.assert_close(grown.similarities, source.similarities([*titles, "hen"]))


def test_a_model_file_asks_the_relations_that_the_user_names(tmp_path):
    path, names = tmp_path / "words.csv", list("abcdef")
    path.write_text("".join(f"{name},{row},{row % 3},1\n" for row, name in enumerate([*names, "g"])))
    features, labels = blobs()
    Classifier().fit(features, labels, {"told": f"embeddings:{path}"}).save(tmp_path / "own.pg")
    loaded = Classifier.load(tmp_path / "own.pg")
    with pytest.raises(InputError, match="add --relations embeddings:"):
        loaded.add_class("g", features[:2])
    loaded.add_class("h", features[:2], {"a": 0.5})
    with Classifier.edit(tmp_path / "own.pg", relations=[f"embeddings:{path}"]) as edited:
        edited.add_class("g", features[:2])
    assert Classifier.load(tmp_path / "own.pg").space_.relations["told"].known[-1] == "g"
    for relations, reason in (
        (["wordnet:elsewhere"], "relation wordnet:.*elsewhere would be ignored, since the model names no such file"),
        ([f"embeddings:{tmp_path / 'others.csv'}"], "would be ignored"),
        ("wordnet", "relations must be a list"),
    ):
        with pytest.raises(InputError, match=reason):
            Classifier.load(tmp_path / "own.pg", relations=relations)
