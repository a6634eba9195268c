"""Settings from JSON, TOML or the command line, checked against the fields of a dataclass."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_type_hints

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.old_names import RECIPE_SETTINGS

Config = TypeVar("Config")


def typed(base: Config, changes: Mapping[str, Any], owner: str) -> Config:
    """Return a copy of `base` with `changes`, each checked for name and type.

    Args:
        base: A dataclass instance.
        changes: Values by field name. Texts, as from the command line, are read as the field's type.
        owner: What the settings belong to, "recipe" or "configuration", for messages.

    Raises:
        InputError: A setting is unknown, or its value has the wrong type.

    """
    hints = get_type_hints(type(base))
    checked = {}
    for name, value in changes.items():
        if name not in hints:
            if owner == "recipe" and name in RECIPE_SETTINGS:
                raise InputError(f"recipe setting '{name}' is now '{RECIPE_SETTINGS[name]}'")
            raise unknown_name(f"{owner} setting", name, hints)
        checked[name] = _coerced(value, type(getattr(base, name)), f"{owner} setting '{name}'")
        if hints[name] == tuple[str, ...] and not all(isinstance(item, str) for item in checked[name]):
            raise InputError(f"{owner} setting '{name}' must be a list of texts, not {value!r}")
    return replace(base, **checked)  # type: ignore[type-var]


_DESCRIPTIONS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
    tuple: "a list, of drops such as [[20, 0.006], [40, 0.001]]",
}  # fmt: skip
# How texts from the command line are read
_READERS: dict[type, Callable[[str], Any]] = {
    int: int, float: float, bool: lambda text: {"true": True, "false": False}[text.lower()], tuple: json.loads,
}  # fmt: skip


def _coerced(value: Any, wanted: type, setting: str) -> Any:
    wrong = InputError(f"{setting} must be {_DESCRIPTIONS.get(wanted, wanted.__name__)}, not {value!r}")
    if isinstance(value, str) and wanted in _READERS:  # from the command line
        try:
            value = _READERS[wanted](value)
        except (KeyError, ValueError):
            raise wrong from None
    if wanted is tuple and isinstance(value, list | tuple):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted:
        raise wrong
    return value
