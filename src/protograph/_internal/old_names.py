"""The names that files of older versions use, and today's names for them. They are applied when such a file is read."""

from collections.abc import Mapping
from typing import Any

CLASSIFIER_PARAMETERS = {"rate": "learning_rate"}
EPOCH_KEYS = {"rate": "learning_rate"}  # of a line of epochs.jsonl
RECIPE_SETTINGS = {
    "rate": "learning_rate",
    "drops": "learning_rate_drops",
    "batch": "batch_size",
    "scheme": "query_scheme",
    "warmup": "warmup_steps",
    "scalar_rate": "scalar_learning_rate_factor",
    "sharpness": "relation_temperature",
}


def renamed(values: Mapping[str, Any], table: Mapping[str, str]) -> dict[str, Any]:
    """Return values under today's names, in the same order.

    Args:
        values: Values by name, as an older file has them.
        table: Today's name by old name. Names it does not list stay as they are.

    """
    return {table.get(name, name): value for name, value in values.items()}
