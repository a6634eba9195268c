"""The documentation: generated pages are up to date, what they show runs, and no measured number is typed by hand."""

import json
import re
import shlex
import sys
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

import protograph
from protograph.cli import find_verb
from protograph.paper.published import Cell, published

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_README = [ROOT / "README.md", *PAGES]
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A measured number: with decimals, as a percentage, in points, or as a count of a count.
MEASURED = re.compile(r"\d+\.\d+|\d+ (?:%|points?\b|of (?:its |the )?\d+)")
# Numbers of definitions and settings, which nothing measures.
DEFINED = {
    "README.md": {"3.11", "2.0", "95 %", "5 %"},
    "index.md": {"3.11"},
    "few-shot.md": {"95 %"},
    "measures.md": {"1.96"},
    "results.md": {"95 %"},
    "unknowns.md": {"5 %", "0.5"},
    "architecture.md": {"95 %"},
}


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module scripts/pages.py."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import pages

    return pages


def test_the_command_line_page_is_what_help_says() -> None:
    written = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert run_path(str(ROOT / "scripts" / "command_line.py"))["page"]() == written, "run `make pictures`"


def test_the_python_reference_has_every_public_name() -> None:
    listed = re.findall(r"^::: protograph\.(\w+)$", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted({*protograph.__all__} - {"__version__"})


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == [path.name for path in PAGES]


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_README, ids=lambda path: path.stem)
def test_code_on_the_pages_runs_and_prints_what_they_show(path: Path, pages: Any) -> None:
    for output in pages.run_page(path):
        assert output.agrees, f"run `make pictures`:\n{output.code}\n{output.printed}"
        assert output.shown != "", f"run `make pictures`:\n{output.code}"


def test_outputs_agree_up_to_rounding(pages: Any) -> None:
    for shown, printed, agree in (
        ("cow 50 %, owl 0.82", "cow 52 %, owl 0.79", True),
        ("cow 50 %", "owl 50 %", False),
        ("cow 50 %", "cow 61 %", False),
        ("┃ cow ━━━┃", "┃ cow   ━┃", True),
        ("a 1", "a 1 2", False),
        (None, "anything", True),
    ):
        assert pages.Output("", printed, shown).agrees == agree, (shown, printed)


@pytest.mark.parametrize("path", WITH_README, ids=lambda path: path.stem)
def test_commands_on_the_pages_that_do_not_run_have_these_options(path: Path) -> None:
    fenced = re.findall(r"^```bash\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for line in (line for block in fenced for line in block.splitlines() if line.startswith("protograph ")):
        _, verb, *words = shlex.split(line, comments=True)
        command = find_verb(verb)
        if words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        command.make_context(verb, words)


@pytest.mark.parametrize("path", WITH_README, ids=lambda path: path.stem)
def test_measured_numbers_are_computed(path: Path, pages: Any) -> None:
    text = path.read_text(encoding="utf-8")
    assert pages.with_measured(text) == text, "run `make pictures`"
    if path.name in ("command-line.md", "experiments.md"):
        return  # the first is generated; people write the other
    prose = FENCED.sub("", sys.modules["measured"].PART.sub("", text))
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    assert {*MEASURED.findall(prose)} <= DEFINED.get(path.name, set())


def test_measured_numbers_are_those_of_the_ledgers_files() -> None:
    def mean(*paths: str) -> str:
        files = [json.loads((ROOT / "results" / path).read_text(encoding="utf-8")) for path in paths]
        return f"{sum(file['measures']['h_mean']['mean'] for file in files) / len(files):.2f}"

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    letters = "letters/letters/1-shot/{}/demo-0.json"
    assert f"| {mean(letters.format('aux-only'))} ± " in readme
    assert f"| {mean(letters.format('gcgpn-aux'))} ± " in readme
    cells = [
        ("mini-imagenet/1-shot/gcgpn-aux-split", "mini-imagenet/5-shot/gcgpn-aux-split"),
        ("cub/1-shot/gcgpn-aux-fc", "cub/5-shot/gcgpn-aux"),
    ]
    fast, strong = (
        " | ".join(mean(*(f"{cell}/{recipe}-{seed}.json" for seed in range(seeds))) for pair in cells for cell in pair)
        for recipe, seeds in (("fast", 3), ("strong", 1))
    )
    assert f"(like for like) | 3 | {fast} |" in readme
    assert f"(our best) | 1 | {strong} |" in readme


def test_dead_links_are_found(tmp_path: Path) -> None:
    dead_links = run_path(str(ROOT / "scripts" / "build_docs.py"))["dead_links"]
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "other.html").write_text('<h2 id="part">Part</h2>')
    fine = ["other.html", "other.html#part", "#top", "a.png", "https://example.org/x", "mailto:a@b.c"]
    dead = ["none.html", "other.html#none", "#none", "none.png", "../other.html"]
    links = "".join(f'<a href="{link}">x</a>' for link in [*fine, *dead])
    (tmp_path / "page.html").write_text(f'<h1 id="top">Page</h1>{links}')
    assert dead_links(tmp_path) == [f"page.html -> {link}" for link in dead]


def test_the_readme_names_the_wheel_of_this_version() -> None:
    assert f"protograph-{protograph.__version__}-py3-none-any.whl" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_prototypical_networks_fail_in_the_joint_label_space_as_the_page_says() -> None:
    assert published()[Cell("mini-imagenet", 1, "pn+")]["h_mean"].mean < 0.5


def test_the_texts_are_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
    assert len((ROOT / "RESULTS.md").read_text(encoding="utf-8").splitlines()) <= 150
