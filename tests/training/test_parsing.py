from dataclasses import replace
from typing import Any

import pytest

from protograph._internal.errors import InputError
from protograph.training.parsing import typed
from protograph.training.recipes import (
    PAPER,
)


def test_command_line_values_are_read_by_the_setting_s_type() -> None:
    changed = typed(PAPER, {"epochs": "4", "learning_rate": "0.5", "nesterov": "False", "query_scheme": "per-class"}, "recipe")
    assert changed == replace(PAPER, epochs=4, learning_rate=0.5, nesterov=False, query_scheme="per-class")


@pytest.mark.parametrize(
    ("wrong", "nearest"), [("epoch", "epochs"), ("weightdecay", "weight_decay"), ("Learning_rate", "learning_rate")]
)
def test_an_unknown_setting_shows_the_nearest_names(wrong: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"'{wrong}'.*did you mean .*{nearest}"):
        typed(PAPER, {wrong: 3}, "recipe")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", "three"), ("epochs", 2.5), ("epochs", "2.5"), ("epochs", True),
        ("learning_rate", "fast"), ("learning_rate", True),
        ("anneal", "maybe"), ("anneal", 1), ("learning_rate_drops", 3), ("learning_rate_drops", "20"),
        ("query_scheme", 3), ("name", 3),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"'{name}'"):
        typed(PAPER, {name: value}, "recipe")


def test_drops_come_from_the_command_line_too() -> None:
    assert typed(PAPER, {"learning_rate_drops": "[[5, 0.01], [8, 1e-3]]"}, "recipe").learning_rate_drops == (
        (5, 0.01),
        (8, 0.001),
    )
    for wrong in ("5:0.01", "7", "[5]"):
        with pytest.raises(InputError, match="learning_rate_drops"):
            typed(PAPER, {"learning_rate_drops": wrong}, "recipe")
