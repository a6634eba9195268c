"""The documents name files that exist, and the tree in docs/architecture.md names every module."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "protograph"
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def tree_paths() -> list[str]:
    """The files of the tree, as paths below src/protograph."""
    (block,) = re.findall(r"```\nsrc/protograph/\n(.*?)```", TEXT, re.DOTALL)
    folders: list[str] = []
    paths = []
    for line in block.splitlines():
        name = line.split()[0]
        folders = folders[: (len(line) - len(line.lstrip())) // 2 - 1]
        if name.endswith("/"):
            folders.append(name)
            assert (SOURCE / "".join(folders)).is_dir()
        else:
            paths.append("".join(folders) + name)
    return paths


def test_the_tree_is_the_source_folder() -> None:
    modules = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.parent == SOURCE or path.stem != "__init__"
    }
    paths = tree_paths()
    assert len(paths) == len(set(paths))
    assert {path for path in paths if path.endswith(".py")} == modules
    assert all((SOURCE / path).is_file() for path in paths)


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md", "examples/README.md"])
def test_every_path_in_a_document_exists(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [(ROOT / document).parent / link for link in re.findall(r"\]\(((?!https?:)[^)#]+)", text)]
    paths = [ROOT / path for path in re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]*)`", text)]
    modules = [SOURCE / path for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text) if not path.startswith(("src/", "tests/"))]
    missing = [str(path) for path in (*links, *paths, *modules) if not path.exists()]
    assert links
    assert not missing
