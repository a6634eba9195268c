import math

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.relations import UnicodeRelation
from protograph.relations.unicode import traits

LETTERS = "eéêôøÊЁйжΩάßi"
WEIGHTS = {"base": 2.0, "accent": 1.5, "case": 1.0, "script": 0.5}


@pytest.mark.parametrize(
    ("letter", "base", "accents", "case", "script"),
    [
        ("ê", "LATIN E", ["CIRCUMFLEX"], "SMALL", "LATIN"),
        ("ø", "LATIN O", ["STROKE"], "SMALL", "LATIN"),
        ("Ё", "CYRILLIC IE", ["DIAERESIS"], "CAPITAL", "CYRILLIC"),
        ("й", "CYRILLIC I", ["BREVE"], "SMALL", "CYRILLIC"),
        ("ǿ", "LATIN O", ["ACUTE", "STROKE"], "SMALL", "LATIN"),
        ("ế", "LATIN E", ["ACUTE", "CIRCUMFLEX"], "SMALL", "LATIN"),
        ("Ω", "GREEK OMEGA", ["NONE"], "CAPITAL", "GREEK"),
        ("e", "LATIN E", ["NONE"], "SMALL", "LATIN"),
    ],
)
def test_traits_are_base_accents_case_and_script(letter, base, accents, case, script):
    expected = {("base", base), ("case", case), ("script", script)} | {("accent", accent) for accent in accents}
    assert traits(letter) == expected


def naive_cosine(first, second):
    dot = sum(WEIGHTS[kind] ** 2 for kind, _ in first & second)
    return dot / math.prod(math.sqrt(sum(WEIGHTS[kind] ** 2 for kind, _ in letter)) for letter in (first, second))


def test_similarity_is_the_cosine_of_weighted_traits():
    answer = UnicodeRelation(WEIGHTS).similarities(list(LETTERS))
    for m, row in enumerate(LETTERS):
        for n, column in enumerate(LETTERS):
            assert answer[m, n].item() == pytest.approx(naive_cosine(traits(row), traits(column)), abs=1e-6)


def test_similarity_is_symmetric_and_one_on_the_diagonal():
    answer = UnicodeRelation(WEIGHTS).similarities(list(LETTERS))
    torch.testing.assert_close(answer, answer.T)
    torch.testing.assert_close(answer.diag(), torch.ones(len(LETTERS)))
    assert answer.dtype == torch.float32
    assert answer.min() >= 0


def test_accented_letter_is_nearest_to_those_that_share_its_base_or_accent():
    row = UnicodeRelation(WEIGHTS).similarities(["ê", "é", "ô", "e", "ж"])[0]
    assert row[1:4].min() > row[4]


def test_letter_is_answered_alike_whatever_stands_beside_it():
    relation = UnicodeRelation(WEIGHTS)
    alone, among = relation.similarities(["ê", "ж"]), relation.similarities(["ő", "ж", "ê", "Ψ"])
    torch.testing.assert_close(alone, among[[2, 1]][:, [2, 1]])


def test_merged_class_has_the_traits_of_all_letters_that_look_like_it():
    relation = UnicodeRelation(WEIGHTS, {"A": "ΑА"})
    answer = relation.similarities(["A", "Б", "B"])
    merged = traits("A") | traits("Α") | traits("А")
    assert answer[0, 1].item() == pytest.approx(naive_cosine(merged, traits("Б")), abs=1e-6)
    assert answer[0, 0].item() == pytest.approx(1, abs=1e-6)


def test_trait_without_a_weight_does_not_count():
    answer = UnicodeRelation({"base": 1.0, "accent": 1.0}).similarities(["ê", "Ê", "ô", "ж"])
    torch.testing.assert_close(answer[0], torch.tensor([1, 1, 0.5, 0]))


@pytest.mark.parametrize("name", ["", "ab", "cat", "\n", "7", "!", " ", "\u0301", "→"])
def test_what_is_not_a_letter_is_an_error_that_names_it(name):
    with pytest.raises(InputError, match="not a single letter") as error:
        UnicodeRelation(WEIGHTS).similarities(["a", name])
    shown = name.replace("\n", "\\n")
    assert f"'{shown}'" in str(error.value)
