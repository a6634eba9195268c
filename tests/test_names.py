"""No two modules give one name of their top level two meanings; `benchmarks/structure.py` counts more."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "protograph"
# A router of each group of routes; bounds of numbers, as wide as each schema needs them.
REPEATED = {"router", "Count", "Finite", "NotNegative"}


def top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):  # routes are asynchronous, and called as what they answer with
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_two_top_level_names_are_alike() -> None:
    modules = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for name in top_level_names(ast.parse(path.read_text(encoding="utf-8"))):
            if not name.startswith("_"):
                modules[name].add(str(path.relative_to(SOURCE)))
    alike = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1 and name not in REPEATED}
    assert not alike, "give each of these a name that says which it is"
