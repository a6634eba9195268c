"""Imports go downward only: from a package to those that stand before it in `LAYERS`, and never in a circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "protograph"
LAYERS = (
    *(
        "_version",
        "_internal",
        "device",
        "kernels",
        "relations",
        "data",
        "episodes",
        "nn",
        "variants",
        "evaluation",
        "training",
    ),
    *("encoders", "classifier", "report", "serve", "paper", "cli", "__main__"),
)
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
    if path != SOURCE / "__init__.py"  # it names all others, and imports them when a name is first used
}


def layer(module: str) -> int:
    """The position of a module's layer, counted from the lowest."""
    return LAYERS.index(module.split(".")[1])


def type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(tree: ast.AST, functions: bool) -> Iterator[str]:
    """Modules of the package that a module imports, with or without those that its functions import when they are called."""
    for node in ast.iter_child_nodes(tree):
        if type_checking(node) or (isinstance(node, ast.FunctionDef | ast.Lambda) and not functions):
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else str(node.module) for name in parts]
        else:
            yield from imported(node, functions)
            continue
        yield from (name for name in names if name in MODULES)


def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_every_module_stands_in_a_layer() -> None:
    assert {module.split(".")[1] for module in MODULES} == {*LAYERS}


@pytest.mark.slow
@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_downward(module: str) -> None:
    upward = {name for name in imported(tree_of(module), functions=True) if layer(name) > layer(module)}
    assert not upward, f"{module} imports {', '.join(sorted(upward))} from a higher layer: move what it needs down"


def test_imports_close_no_cycle() -> None:
    graph = {module: {*imported(tree_of(module), functions=False)} - {module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import one another: {' -> '.join(error.args[1])}")


def test_an_upward_import_is_seen_wherever_it_stands() -> None:
    source = "def read():\n    from protograph.cli import app\n    import protograph.training.loop\n"
    assert [*imported(ast.parse(source), functions=True)] == ["protograph.cli", "protograph.training.loop"]
    assert not [*imported(ast.parse(source), functions=False)]
    assert [*imported(ast.parse("from protograph.relations import base"), functions=False)] == ["protograph.relations.base"]
