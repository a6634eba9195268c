import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from wordnet_files import SYNSETS, write_wordnet

from protograph._internal.errors import InputError
from protograph.relations import WordNetRelation, mini_imagenet_classes, mini_imagenet_names, mini_imagenet_relation, wordnet
from protograph.relations.wordnet import find_wordnet

installed = pytest.mark.skipif(
    not (Path("/usr/share/wordnet") / "data.noun").is_file(), reason="needs WordNet: apt install wordnet-base"
)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch):
    """Variables of the machine do not count."""
    for name in ("WNSEARCHDIR", "WNHOME", "NLTK_DATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_system(monkeypatch, tmp_path):
    """A machine without WordNet."""
    monkeypatch.setattr(wordnet, "SYSTEM", ())
    monkeypatch.setattr(wordnet, "NLTK", ())
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))


@pytest.fixture
def ids(tmp_path):
    return write_wordnet(tmp_path / "wn")


@pytest.fixture
def tiny(tmp_path, ids):
    return WordNetRelation(tmp_path / "wn")


def naive_steps(number):
    """Steps from a synset up to each kind it belongs to, by trying all ways."""
    best = {number: 0}
    for _, kind in SYNSETS[number][1]:
        for above, steps in naive_steps(kind).items():
            best[above] = min(best.get(above, 99), steps + 1)
    return best


def naive_similarity(first, second):
    one, two = naive_steps(first), naive_steps(second)
    common = one.keys() & two.keys()
    return 1 / (1 + min(one[kind] + two[kind] for kind in common)) if common else 0.0


def test_similarity_is_that_of_the_shortest_way_over_a_common_kind(tiny, ids):
    answer = tiny.similarities(ids)
    assert answer.dtype == torch.float32
    for m in range(len(SYNSETS)):
        for n in range(len(SYNSETS)):
            assert answer[m, n].item() == pytest.approx(naive_similarity(m, n), abs=1e-7)


@pytest.mark.parametrize(
    ("name", "number", "by"),
    [
        ("house_finch", 7, "name"),
        ("House Finch", 7, "name"),
        ("house-finch", 7, "name"),
        ("012.House_Finch", 7, "name"),
        ("house finches", 7, "name"),
        ("carpodacus mexicanus", 7, "name"),
        ("beasts", 1, "name"),
        ("boxes", 13, "name"),
        ("geese", 10, "name"),
        ("men", 14, "name"),
        ("crane", 4, "name"),
        ("crane.n.02", 5, "name"),
        ("crane#2", 5, "name"),
        ("crane#1", 4, "name"),
        ("010.Red_winged_Blackbird", 8, "name"),
        ("Brewer_Sparrow", 9, "name"),
        ("Zebra_Finch", 6, "last words"),
        ("034.Gray_crowned_Rosy_Finch", 6, "last words"),
        ("wild red winged blackbirds", 8, "last words"),
    ],
)
def test_name_is_taken_as_the_noun_it_means(tiny, ids, name, number, by):
    (sense,) = tiny.senses([name])
    assert (sense.id, sense.by, sense.name) == (ids[number], by, name)
    assert (sense.words, sense.gloss) == (tuple(SYNSETS[number][0]), SYNSETS[number][2])
    torch.testing.assert_close(tiny.similarities([name, "island"])[0], torch.tensor([1.0, 0.0]))


def test_id_is_taken_as_it_is_whatever_words_follow(tiny, ids):
    for name in (ids[5], f"{ids[5]}-crane", f"{ids[5]}_heavy_crane", f"{ids[5]} crane"):
        (sense,) = tiny.senses([name])
        assert (sense.id, sense.by, sense.sense) == (ids[5], "id", "crane.n.02")


def test_sense_is_named_by_first_word_and_number(tiny, ids):
    assert [sense.sense for sense in tiny.senses(["Carpodacus mexicanus", ids[5]])] == ["house_finch.n.01", "crane.n.02"]


def test_names_of_one_meaning_are_alike(tiny):
    assert torch.equal(tiny.similarities(["Zebra_Finch", "Purple_Finch"]), torch.ones(2, 2))


def test_name_is_answered_alike_whatever_stands_beside_it(tiny):
    alone, among = tiny.similarities(["goose", "finch"]), tiny.similarities(["island", "finch", "machine", "goose"])
    torch.testing.assert_close(alone, among[[3, 1]][:, [3, 1]])
    assert tiny.similarities([]).shape == (0, 0)


@pytest.mark.parametrize(
    "name", ["dragon", "fire dragon", "", "012.", "crane.n.03", "crane#0", "n00000001", "n99999999", "Zebra_Finch#1"]
)
def test_name_that_is_not_found_is_an_error_that_names_it_and_the_way_out(tiny, name):
    with pytest.raises(InputError, match=re.escape(f"relation 'wordnet' lacks class '{name}': give its WordNet 3.0 id")):
        tiny.similarities(["crane", name])
    with pytest.raises(InputError, match="and 1 more"):
        tiny.senses([name, "crane", "wyvern"])


def test_without_irregular_plurals_the_regular_ones_are_still_known(tmp_path):
    ids = write_wordnet(tmp_path)
    (tmp_path / "noun.exc").unlink()
    relation = WordNetRelation(tmp_path)
    assert relation.senses(["men"])[0].id == ids[14]
    with pytest.raises(InputError, match="'geese'"):
        relation.senses(["geese"])


def test_damaged_files_are_an_error_that_names_them(tmp_path):
    ids = write_wordnet(tmp_path)
    content = (tmp_path / "data.noun").read_text("latin-1")
    (tmp_path / "data.noun").write_text(content.replace(f"\n{ids[1][1:]} 05 n 02", f"\n{ids[1][1:]} 05 n zz"), "latin-1")
    with pytest.raises(InputError, match=f"WordNet in {re.escape(str(tmp_path))} is damaged: it has no noun {ids[1]}"):
        WordNetRelation(tmp_path).similarities(["goose"])


def test_version_is_the_release_or_else_a_digest(tmp_path):
    write_wordnet(tmp_path / "one")
    write_wordnet(tmp_path / "two", licence="")
    assert WordNetRelation(tmp_path / "one").version == "WordNet 3.0"
    assert re.fullmatch("[0-9a-f]{16}", WordNetRelation(tmp_path / "two").version)


@pytest.mark.usefixtures("no_system")
@pytest.mark.parametrize(
    ("variable", "value", "place"),
    [
        ("WNSEARCHDIR", "a", "a"),
        ("WNHOME", "a", "a/dict"),
        ("NLTK_DATA", "a", "a/corpora/wordnet"),
        ("HOME", "a", "a/nltk_data/corpora/wordnet"),
    ],
)
def test_wordnet_is_found_in_the_usual_places(tmp_path, monkeypatch, variable, value, place):
    write_wordnet(tmp_path / place)
    monkeypatch.setenv(variable, str(tmp_path / value))
    if variable == "HOME":
        monkeypatch.setenv("USERPROFILE", str(tmp_path / value))
    assert find_wordnet() == tmp_path / place


def test_given_folder_may_hold_the_files_or_a_folder_that_does(tmp_path):
    write_wordnet(tmp_path / "dict")
    assert find_wordnet(tmp_path) == find_wordnet(tmp_path / "dict") == tmp_path / "dict"


@pytest.mark.usefixtures("no_system")
def test_wordnet_that_is_not_there_is_an_error_with_instructions(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"apt install wordnet-base.*nltk\.downloader wordnet.*wordnet:PATH"):
        WordNetRelation()
    with pytest.raises(InputError, match=f"no WordNet in {re.escape(str(tmp_path))}: give the folder"):
        WordNetRelation(tmp_path)
    packed = tmp_path / "home" / "nltk_data" / "corpora" / "wordnet.zip"
    packed.parent.mkdir(parents=True)
    packed.touch()
    with pytest.raises(InputError, match=f"packed in {re.escape(str(packed))}: unzip"):
        WordNetRelation()
    monkeypatch.setenv("WNHOME", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone \(WNHOME\)"):
        WordNetRelation()


def test_shipped_classes_are_those_of_the_split():
    classes = mini_imagenet_classes()
    assert len(classes) == 100
    assert all(re.fullmatch(r"n\d{8}", known.id) and known.id == key for key, known in classes.items())
    counts = {split: sum(known.split == split for known in classes.values()) for split in ("train", "val", "test")}
    assert counts == {"train": 64, "val": 16, "test": 20}


@pytest.mark.parametrize("relation", [mini_imagenet_relation, mini_imagenet_names])
def test_shipped_similarities_are_symmetric_and_one_on_the_diagonal(relation):
    ids = list(mini_imagenet_classes())
    answer = relation().similarities(ids[::-1])
    torch.testing.assert_close(answer, answer.T)
    assert torch.equal(answer.diag(), torch.ones(100))
    off_diagonal = answer[~torch.eye(100, dtype=torch.bool)]
    assert -0.1 < off_diagonal.min() < off_diagonal.max() < 1


@installed
def test_shipped_similarities_and_names_are_those_of_wordnet():
    ids = list(mini_imagenet_classes())
    relation = WordNetRelation(Path("/usr/share/wordnet"))
    assert torch.equal(relation.similarities(ids), mini_imagenet_relation().similarities(ids))
    assert [sense.words[0] for sense in relation.senses(ids)] == [known.name for known in mini_imagenet_classes().values()]


@pytest.mark.slow
@installed
@pytest.mark.filterwarnings("ignore:The multilingual functions")
def test_similarity_and_names_are_those_of_nltk(tmp_path, monkeypatch):
    nltk = pytest.importorskip("nltk")
    from nltk.corpus.reader import WordNetCorpusReader

    folder = tmp_path / "nltk_data" / "corpora" / "wordnet"
    folder.mkdir(parents=True)
    for path in Path("/usr/share/wordnet").iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    (folder / "lexnames").write_text("".join(f"{number:02d}\tnoun.any\t1\n" for number in range(45)))
    (folder / "index.sense").touch()  # Debian has neither
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "nltk_data")])  # it reads from such folders only
    reader = WordNetCorpusReader(str(folder), None)

    relation = WordNetRelation(folder)
    drawn = random.Random(0)
    offsets = [int(line[:8]) for line in (folder / "data.noun").read_text("latin-1").splitlines() if line[:1] != " "]
    pairs = [drawn.sample(offsets, 2) for _ in range(200)]
    for first, second in pairs:
        one, two = (reader.synset_from_pos_and_offset("n", offset) for offset in (first, second))
        answer = relation.similarities([f"n{first:08d}", f"n{second:08d}"])
        assert answer[0, 1].item() == pytest.approx(one.path_similarity(two), abs=1e-7)
        assert relation.senses([f"n{first:08d}"])[0].sense == one.name()


@pytest.mark.parametrize("line", ["a", "a n 1 x", "a n x 1 0 1 0 5", "a n 1 0 1 0 five", "crane n 1 0 1 0 " + "9" * 5000])
def test_a_damaged_index_is_named(tmp_path, line):
    write_wordnet(tmp_path)
    with (tmp_path / "index.noun").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=r"the WordNet in .* is damaged: .*; install it again"):
        WordNetRelation(tmp_path).similarities(["crane", "finch"])


@pytest.mark.parametrize("offset", ["99999999", "9" * 30, "-5"])
def test_a_position_that_no_file_has_is_named(tmp_path, offset):
    write_wordnet(tmp_path)
    text = (tmp_path / "data.noun").read_text(encoding="latin-1")
    (tmp_path / "data.noun").write_text(re.sub(r"@ \d{8}", f"@ {offset}", text), encoding="latin-1")
    with pytest.raises(InputError, match=r"the WordNet in .* is damaged: it has no noun|lacks class"):
        WordNetRelation(tmp_path).similarities(["crane", "finch"])
