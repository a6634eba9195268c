"""Relational generalized few-shot learning: new classes from a few pictures, placed among the old ones by what relates them."""

__version__ = "0.1.0"

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protograph.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A module or a public name, imported once it is asked for: PyTorch takes a second, which --help can do without."""
        if find_spec(f"protograph.{name}"):  # first, since modules ask for one another before all public names are there
            return import_module(f"protograph.{name}")
        if name == "__all__" or not name.startswith("__"):  # not for what Python looks for in any module
            public = import_module("protograph.public")
            if name in ("__all__", *public.__all__):
                globals()[name] = getattr(public, name)
                return globals()[name]
        raise AttributeError(f"module 'protograph' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module("protograph.public").__all__})
