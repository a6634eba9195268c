"""Relational generalized few-shot learning: new classes from a few images, placed by how they relate to the known ones."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_MODULES = {alias.name: f".{node.module}" for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, since PyTorch takes a second to import."""
    if name not in _MODULES:
        raise AttributeError(f"module 'protograph' has no attribute '{name}'")
    globals()[name] = getattr(import_module(_MODULES[name], "protograph"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
