"""protograph recipes"""

from typing import Annotated, Any

import typer
from rich.table import Table

from protograph.cli.display import escape, reported, show
from protograph.cli.options import AsJson, Plugins, load_plugins
from protograph.data import find_source
from protograph.training.recipes import (
    RECIPES,
    SETTINGS,
    default_backbone,
    default_recipe_name,
    resolve_recipe,
    unused_settings,
)
from protograph.variants import find_variant


@reported
def recipes_command(
    variant: Annotated[str | None, typer.Argument(help="Model, see `protograph variants`.", show_default=False)] = None,
    dataset: Annotated[str, typer.Argument(help="Dataset, see `protograph datasets`.")] = "letters",
    recipe: Annotated[
        str | None, typer.Option(help="Name of the recipe. (default: the dataset's own)", show_default=False)
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes, or show the settings that a run would use.

    With a variant, the settings that its training uses are shown beside those of the paper's recipe.

    Examples:
        protograph recipes
        protograph recipes gcgpn-aux cub --recipe fast
    """
    load_plugins(plugin)
    if variant is None:
        table = Table("recipe", "summary")
        for name, source in RECIPES.items():
            table.add_row(escape(name), escape(source.summary))
        show({name: {"summary": source.summary} for name, source in RECIPES.items()}, table, as_json)
        return
    find_source(dataset)
    name = recipe or default_recipe_name(dataset)
    rows = recipe_rows(variant, dataset, name)
    differing = [setting for setting, row in rows.items() if row["value"] != row["paper"]]
    table = Table("setting", f"recipe {name}", "paper", title=f"{variant} on {dataset}", title_justify="left")
    for setting, row in rows.items():
        paper = escape(str(row["paper"])) if setting in differing else ""
        table.add_row(setting, escape(str(row["value"])), paper)
    show({"variant": variant, "dataset": dataset, "recipe": name, "settings": rows, "differs": differing}, table, as_json)


def recipe_rows(variant: str, dataset: str, name: str) -> dict[str, dict[str, Any]]:
    """Return, by setting, the value that a run would use and the one of the paper's recipe."""
    model = find_variant(variant)
    resolved, paper = (resolve_recipe(model, dataset, recipe) for recipe in (name, "paper"))
    unused = unused_settings(model, resolved)
    backbones = {"value": default_backbone(dataset, name), "paper": default_backbone(dataset, "paper")}
    settings = {
        setting: {"value": getattr(resolved, setting), "paper": getattr(paper, setting)}
        for setting in SETTINGS
        if setting not in unused
    }
    return {"backbone": backbones, **settings}
