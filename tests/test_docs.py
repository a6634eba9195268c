"""The documentation: generated pages are up to date, and what they show runs."""

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

import protograph

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_the_command_line_page_is_what_help_says() -> None:
    written = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert run_path(str(ROOT / "scripts" / "command_line.py"))["page"]() == written, "run `make docs`"


def test_the_python_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: protograph\.(\w+)$", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted({*protograph.__all__} - {"__version__"})


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [path.name for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_on_the_pages_runs(path: Path, tmp_path: Path) -> None:
    blocks = [
        code for code in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL) if "--8<--" not in code
    ]
    if not blocks:
        return
    done = subprocess.run([sys.executable, "-c", "\n".join(blocks)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
