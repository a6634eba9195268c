"""Count what makes the code hard to read: `python benchmarks/structure.py [SOURCE]` prints a table.

SOURCE is the folder of the package, by default src/protograph of this checkout.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Words that say nothing about the value they name.
VAGUE = {
    *("able", "apart", "asked", "both", "each", "found", "given", "made", "more", "one", "other", "others", "own", "place"),
    *("places", "said", "some", "taken", "takes", "there", "thing", "things", "told", "took", "wanted", "way", "what"),
    *("which", "whole"),
}
RELATIONS = "AttributeRelation EdgeRelation EmbeddingRelation KeptRelation MatrixRelation SentenceRelation UnicodeRelation"
RELATION_CLASSES = frozenset([*RELATIONS.split(), "WordNetRelation", "Named"])


def modules(source: Path) -> dict[str, Path]:
    """Every module below the folder of a package, by its dotted name."""
    return {
        ".".join([source.name, *path.relative_to(source).with_suffix("").parts]).removesuffix(".__init__"): path
        for path in sorted(source.rglob("*.py"))
    }


def assigned_names(tree: ast.AST) -> Iterator[str]:
    """Names that are bound: variables, loop variables and arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def code_lines(path: Path) -> int:
    """Lines without comments, docstrings and blank lines."""
    text = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - docstrings)


def top_level_imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a module imports when it is itself imported."""
    imported: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            imported |= submodules or {node.module}
    return imported & known.keys() - {name}


def cycles(source: Path) -> list[list[str]]:
    """Groups of modules that import one another, by Tarjan's strongly connected components."""
    known = modules(source)
    graph = {name: sorted(top_level_imports(name, path, known)) for name, path in known.items()}
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                lowest[name] = min(lowest[name], lowest[target])
            elif target in stack:
                lowest[name] = min(lowest[name], index[target])
        if lowest[name] == index[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                groups.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return groups


def names_of(test: ast.expr) -> set[str]:
    """The classes that an `isinstance` test names."""
    return {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(test)
        if isinstance(node, ast.Name | ast.Attribute)
    }


def relation_tests(source: Path) -> int:
    """`isinstance` tests on relation classes, and comparisons of `kind` with one, outside `relations/`."""
    count = 0
    for path in source.rglob("*.py"):
        if "relations" in path.relative_to(source).parts[:1]:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                count += bool(names_of(node.args[1]) & RELATION_CLASSES)
    return count


def report(source: Path) -> dict[str, str]:
    """All counts, by what they count."""
    paths = [*modules(source).values()]
    functions: list[tuple[int, str]] = []
    names: Counter[str] = Counter()
    definitions: Counter[str] = Counter()
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.stem}.{node.name}"))
        names.update(assigned_names(tree))
        top = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        top |= {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        definitions.update(name for name in top if not name.startswith("_"))
    vague = {name: names[name] for name in VAGUE if names[name]}
    longest, largest = max(functions), max(((sum(1 for _ in path.open(encoding="utf-8"))), path) for path in paths)
    repeated = sorted(f"{name} x{count}" for name, count in definitions.items() if count > 1)
    groups = cycles(source)
    return {
        "modules": str(len(paths)),
        "flat modules in the root": str(len([path for path in paths if path.parent == source])),
        "lines of code": str(sum(code_lines(path) for path in paths)),
        "longest function": f"{longest[0]} lines ({longest[1]})",
        "largest module": f"{largest[0]} lines ({largest[1].relative_to(source)})",
        "assigned names that say nothing": f"{sum(vague.values())} of {sum(names.values())}",
        "isinstance tests on relation classes outside relations/": str(relation_tests(source)),
        "import cycles": str(len(groups)) + "".join(f"; {' <-> '.join(group)}" for group in groups),
        "public top-level names defined more than once": f"{len(repeated)} ({', '.join(repeated)})",
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "src" / "protograph"
    for label, value in report(folder).items():
        print(f"{label:58} {value}")
