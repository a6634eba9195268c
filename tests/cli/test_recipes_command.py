import json
from typing import Any

from typer.testing import CliRunner

from protograph.cli import app
from protograph.training.recipes import PAPER, RECIPES, resolve_recipe
from protograph.variants import find_variant


def shown(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["recipes", *words, "--json"])
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_recipes_are_listed_with_a_line_each() -> None:
    listed = shown()
    assert list(listed) == list(RECIPES)
    assert all(listed[name] == {"summary": RECIPES[name].summary} for name in listed)


def test_a_recipe_is_shown_as_a_run_would_follow_it_beside_the_paper_s() -> None:
    answer = shown("pn+", "cub", "--recipe", "strong")
    settings = answer["settings"]
    resolved = resolve_recipe(find_variant("pn+"), "cub", "strong")
    assert settings["episodes"] == {"value": resolved.episodes, "paper": PAPER.episodes}
    assert settings["backbone"] == {"value": "conv4-128-mirror", "paper": "conv4-64-128"}
    assert "batch_size" not in settings, "of no use to it"
    differs = answer["differs"]
    assert {"backbone", "episodes", "training_ways", "zoom"} <= set(differs)
    assert "momentum" not in differs


def test_recipes_of_an_unknown_variant_or_recipe_are_refused() -> None:
    for words, name in ((["gcgpn-axu"], "gcgpn-aux"), (["gcgpn-aux", "letters", "--recipe=fats"], "fast")):
        result = CliRunner().invoke(app, ["recipes", *words])
        assert result.exit_code == 2
        assert name in result.stderr
