"""A recipe, a variant and an operator from outside the package."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from protograph.cli import app
from protograph.data import Dataset
from protograph.training.recipes import FAST, RECIPES, Recipe, register_recipe, resolve_recipe
from protograph.training.run_config import configure
from protograph.training.run_folder import Run
from protograph.training.stages import train
from protograph.variants import OPERATORS, VARIANTS, Variant, find_variant

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_recipe_and_variant.py"


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Let every test leave the registries as they were."""
    with patch.dict(RECIPES), patch.dict(VARIANTS), patch.dict(OPERATORS):
        yield


def test_a_registered_recipe_is_followed_as_it_stands() -> None:
    register_recipe("brief", Recipe("other name", epochs=2, pretrain="cosine"))
    assert resolve_recipe(find_variant("gcgpn-aux"), "cub", "brief") == Recipe("brief", epochs=2, pretrain="cosine")
    assert resolve_recipe(find_variant("gcgpn-aux"), "cub", "brief", {"pretrain": ""}).pretrain == ""
    assert resolve_recipe(find_variant("pn+"), "cub", "brief") == Recipe("brief", epochs=2)


def test_a_registered_function_makes_a_recipe_of_variant_and_dataset() -> None:
    def make(variant: Variant, dataset: str, pretrain: str | None) -> Recipe:
        return replace(FAST, epochs=3 if dataset == "cub" else 4, pretrain="cosine" if pretrain is None else pretrain)

    register_recipe("own", make)
    assert resolve_recipe(find_variant("gcgpn-aux"), "cub", "own") == replace(FAST, name="own", epochs=3, pretrain="cosine")
    assert resolve_recipe(find_variant("pn+"), "letters", "own", {"epochs": "7"}) == replace(FAST, name="own", epochs=7)


def test_the_example_s_variant_trains_by_its_recipe(toy: Dataset, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["recipes", "--json", "--plugin", str(EXAMPLE)])
    assert json.loads(result.stdout)["brief"] == {"summary": "five steps, to try a model"}
    changes = {"steps": 2, "ways": 3, "seen_queries": 6, "validation_episodes": 2, "test_queries": 6}
    config = configure(toy, "gcgpn-uniform", recipe="brief", changes=changes, backbone="conv4-32")
    measured = train(config, toy, tmp_path / "run")
    assert (measured["variant"], measured["recipe"]) == ("gcgpn-uniform", "brief")
    assert len(Run.open(tmp_path / "run").history) == 1
