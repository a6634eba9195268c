"""The golden table: every recipe of (dataset, recipe, variant), written before recipes moved into one file.

A row stands for all the variants that share its settings. `changes` are those a user makes by --set.
"""

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from protograph._internal.errors import InputError
from protograph.data import DATASETS
from protograph.paper.published import published
from protograph.training.recipes import RECIPES, default_backbone, register_recipe, resolve_recipe
from protograph.variants import VARIANTS, find_variant

ROWS = list(csv.DictReader((Path(__file__).parent / "data_files" / "recipes.csv").read_text().splitlines()))


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, tuple | bool) else str(value)


def test_the_golden_table_has_every_variant_and_recipe_and_every_published_cell() -> None:
    resolved = {(row["dataset"], row["recipe"], name) for row in ROWS if not row["changes"] for name in row["variants"].split()}
    datasets = {*DATASETS, "items"}
    assert resolved == {(dataset, recipe, name) for dataset in datasets for recipe in RECIPES for name in VARIANTS}
    assert {(cell.dataset, "fast", cell.variant) for cell in published()} <= resolved


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['dataset']}-{row['recipe']}-{row['variants'].split()[0]}")
def test_a_resolved_recipe_equals_the_golden_one(row: dict[str, str]) -> None:
    changes = dict(change.split("=") for change in row["changes"].split())
    assert default_backbone(row["dataset"], row["recipe"]) == row["backbone"]
    for name in row["variants"].split():
        settings = asdict(resolve_recipe(find_variant(name), row["dataset"], row["recipe"], changes))
        assert settings.pop("name") == row["recipe"]
        assert {key: as_text(value) for key, value in settings.items()} == {key: row[key] for key in settings}
        assert settings.keys() == row.keys() - {"dataset", "recipe", "changes", "backbone", "variants"}


def test_what_is_no_recipe_is_refused_when_it_is_registered() -> None:
    with pytest.raises(InputError, match="recipe 'mine' is a dict: give a Recipe"):
        register_recipe("mine", {"epochs": 3})  # type: ignore[arg-type]
