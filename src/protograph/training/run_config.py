"""The configuration of a run: frozen, complete, and stored with the run."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.files import read_text_file
from protograph._internal.old_names import RECIPE_SETTINGS, renamed
from protograph.data import Dataset
from protograph.device import PRECISIONS
from protograph.relations import RelationSpec, canonical_name
from protograph.training.parsing import typed
from protograph.training.recipes import Recipe, default_backbone, default_recipe_name, resolve_recipe, uses_setting
from protograph.variants import find_variant

FORMAT = 3  # of a stored configuration; format 2 has paths of plugins, one without a number also old names of settings
MAX_TOML_BYTES = 1_000_000  # of a user's configuration file
PLUGIN_DIGEST = " sha256:"  # between the name and the digest of a plugin


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers: two runs with the same configuration end alike.

    Attributes:
        dataset: Name of the dataset.
        variant: Name of the variant.
        shots: K, the examples of each novel class.
        seed: Seed of weights and training episodes.
        backbone: Name of the backbone.
        relations: Names or specifications of the relations.
        recipe: The complete recipe.
        fingerprint: Digest of the dataset's contents.
        plugins: Name and digest of each plugin file that was loaded.
        relation_digests: Digest of each relation's contents; empty for a relation of the dataset.
        start: Digest of the first stage's weights; empty without one, or before it is trained.
        teacher: Digest of the teacher's weights; empty without one.
        precision: Precision of the backbone in training and selection, "float32" or "bfloat16".

    """

    dataset: str
    variant: str
    shots: int
    seed: int
    backbone: str
    relations: tuple[str, ...]
    recipe: Recipe
    fingerprint: str = ""
    plugins: tuple[str, ...] = ()
    relation_digests: tuple[str, ...] = ()
    start: str = ""
    teacher: str = ""
    precision: str = "float32"

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values, with the number of its format."""
        values: dict[str, Any] = _plain(asdict(self))
        return {"format": FORMAT, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Return the configuration that `to_dict` of this or an earlier version gave.

        Raises:
            InputError: If a later version wrote it, or a setting is unknown or has the wrong type.

        """
        if values.get("format", 1) > FORMAT:
            raise InputError(f"it has format {values['format']}, and this version reads up to {FORMAT}: install a newer one")
        recipe = typed(Recipe("unnamed"), renamed(values["recipe"], RECIPE_SETTINGS), "recipe")
        rest = {name: value for name, value in values.items() if name not in ("recipe", "format")}
        if values.get("format", 1) < 3:
            rest["plugins"] = [Path(path).name for path in rest.get("plugins", ())]
        return typed(cls("", "", 1, 0, "", (), recipe), rest, "configuration")


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a user's configuration file says: options of `train` at the top, changes to the recipe under [recipe]."""
    try:
        return tomllib.loads(read_text_file(path, "configuration file", MAX_TOML_BYTES))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def configure(
    dataset: Dataset,
    variant: str,
    shots: int = 1,
    seed: int = 0,
    recipe: str | None = None,
    backbone: str | None = None,
    relations: Sequence[str] | None = None,
    changes: Mapping[str, Any] | None = None,
    plugins: Sequence[str] = (),
    precision: str = "float32",
) -> RunConfig:
    """Return the complete configuration of a run.

    Args:
        dataset: The opened dataset.
        variant: Name of the variant.
        shots: K, the examples of each novel class.
        seed: Seed of weights and training episodes.
        recipe: Name of the recipe; by default the dataset's.
        backbone: Name of the backbone; by default the dataset's for the recipe.
        relations: Names or specifications of relations; by default the dataset's.
        changes: Settings of the recipe to change, by name.
        plugins: Name and digest of each plugin file that was loaded.
        precision: Precision of the backbone, "float32" or "bfloat16".

    Raises:
        InputError: A name is unknown, or something given would be ignored.

    """
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    model, recipe, changes = find_variant(variant), recipe or default_recipe_name(dataset.name), changes or {}
    if model.objective == "classify" and shots != 1:
        raise InputError(f"variant '{variant}' is trained without examples, once for every K: give the shots to `evaluate`")
    resolved = resolve_recipe(model, dataset.name, recipe, changes)
    for setting in changes:
        if not uses_setting(model, resolved, setting):
            raise InputError(f"variant '{variant}' has no use for the recipe's setting '{setting}': leave it out")
    if relations and not model.needs_relation:
        raise InputError(f"variant '{variant}' uses no side information: leave out the relation '{relations[0]}'")
    if relations is None:
        relations = dataset.default_relations or ()
    if not model.needs_relation:
        relations = ()
    return RunConfig(
        dataset=dataset.name,
        variant=variant,
        shots=shots,
        seed=seed,
        backbone=backbone or default_backbone(dataset.name, recipe),
        relations=tuple(canonical_name(name, dataset.relations) for name in relations),
        recipe=resolved,
        fingerprint=dataset.fingerprint,
        plugins=tuple(plugins),
        relation_digests=tuple(_relation_digest(name, dataset) for name in relations),
        precision=precision,
    )


def _relation_digest(name: str, dataset: Dataset) -> str:
    return "" if name in dataset.relations else RelationSpec.parse(name, dataset.relations).digest


def differences(config: RunConfig, stored: RunConfig) -> list[str]:
    """Return the settings in which a stored configuration differs from `config`, as 'NAME is A there, not B'."""
    lines = []
    for prefix, left, right in (("", config, stored), ("recipe.", config.recipe, stored.recipe)):
        for field in fields(left):
            ours, theirs = getattr(left, field.name), getattr(right, field.name)
            if field.name == "plugins" and not any(PLUGIN_DIGEST in plugin for plugin in theirs):  # format 2 has names alone
                ours = tuple(plugin.partition(PLUGIN_DIGEST)[0] for plugin in ours)
            if ours != theirs and field.name != "recipe":
                lines.append(f"{prefix}{field.name} is {theirs!r} there, not {ours!r}")
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
