"""The names that files of older versions use, and today's names for them. They are applied when such a file is read."""

from collections.abc import Mapping
from typing import Any

CLASSIFIER_PARAMETERS = {"rate": "learning_rate"}


def renamed(values: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """Return values under today's names, in the same order.

    Args:
        values: Values by name, as an older file has them.
        table: Today's name by old name. Names it does not list stay as they are.

    """
    return {table.get(name, name): value for name, value in values.items()}
