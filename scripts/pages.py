"""Run the code of README.md and of the documentation, and write what it prints below it: `python scripts/pages.py`.

Measured numbers are written, too, by `scripts/measured.py`.

A block of `python` or of `sh` runs. A block of `text` right below it is what it prints. All blocks of a page share a folder and
their Python names. A page other than the quick start may use the images that the first block of the quick start writes, and any
page may read the ledger. The lines of `sh` are commands of Protograph, which run in this process. A block of `bash` does not
run: tests check its options.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured import with_measured
from typer.testing import CliRunner

from protograph.cli import app

ROOT = Path(__file__).parents[1]
QUICK_START = ROOT / "docs" / "index.md"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(?P<kind>python|sh)\n(?P<code>.*?)^```\n(?P<gap>\n```text\n(?P<output>.*?)^```\n)?", re.M | re.S)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
SPACE = re.compile(r"[ ─━]+")  # tables are as wide as their contents


@dataclass(frozen=True)
class Output:
    """What a block prints, beside what its page shows; None where the page shows nothing."""

    code: str
    printed: str
    shown: str | None

    @property
    def agrees(self) -> bool:
        """Whether page and output have the same words, and numbers that differ by rounding alone, as between two CPUs."""
        if self.shown is None:
            return True
        words = [SPACE.sub(" ", NUMBER.sub("#", text)).strip() for text in (self.shown, self.printed)]
        pairs = zip(*([float(number) for number in NUMBER.findall(text)] for text in (self.shown, self.printed)), strict=False)
        return words[0] == words[1] and all(abs(a - b) <= max(0.05, 0.1 * abs(a)) for a, b in pairs)


def blocks(text: str) -> Iterator[re.Match[str]]:
    """Yield the blocks of a page that run; a block that includes a file is tested where that file is."""
    return (block for block in BLOCK.finditer(text) if "--8<--" not in block["code"])


def run_page(path: Path) -> list[Output]:
    """Run the blocks of a page in a folder of their own, and return what each prints."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if path != QUICK_START and "digits" in text:
            run_block(next(blocks(QUICK_START.read_text(encoding="utf-8"))), {"__name__": "__main__"})
        if 'open("results/' in text:
            Path("results").symlink_to(ROOT / "results")
        return [Output(block["code"], run_block(block, names), block["output"]) for block in blocks(text)]


def run_block(block: re.Match[str], names: dict[str, Any]) -> str:
    """Run a block in the current folder, with the names of its page, and return what it prints."""
    if block["kind"] == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block["code"], "page", "exec"), names)
        return printed.getvalue()
    return "".join(command(words) for line in block["code"].splitlines() if (words := shlex.split(line, comments=True)))


def command(words: list[str]) -> str:
    """Run a command of Protograph in this process and return what it prints."""
    if words[0] != "protograph":
        raise SystemExit(f"'{shlex.join(words)}' is no command of Protograph: mark its block as `bash`")
    result = CliRunner(env={"COLUMNS": "100", "PROTOGRAPH_DATA": None}).invoke(app, words[1:])
    if result.exit_code:
        raise SystemExit(f"{shlex.join(words)} ends with {result.exit_code}: {result.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())


def with_outputs(text: str, outputs: list[Output]) -> str:
    """Return a page that shows what its blocks print, where it shows anything."""
    following = iter(outputs)

    def replaced(block: re.Match[str]) -> str:
        if "--8<--" in block["code"]:
            return block[0]
        output = next(following)
        return block[0] if output.shown is None else block[0].replace(block["gap"], f"\n```text\n{output.printed}```\n")

    return BLOCK.sub(replaced, text)


def main() -> None:
    """Run every page, or those that are named, and write the outputs into them."""
    for path in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        text = path.read_text(encoding="utf-8")
        written = with_measured(with_outputs(text, run_page(path)))
        path.write_text(written, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'changed' if written != text else 'as it was'}\n")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
