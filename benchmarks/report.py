"""Tables of measurements, printed and written into a Markdown file, each section with where, when and how it was measured."""

import argparse
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph.data import DATASETS
from protograph.training.run_folder import environment

Subject = TypeVar("Subject")


@dataclass(frozen=True)
class Section:
    """A table with a title, what it shows, and what to know when reading it."""

    title: str
    about: str
    rows: Sequence[dict[str, object]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The section as it is printed and written."""
        notes = "\n".join(f"* {note}" for note in self.notes)
        parts = (f"## {self.title}", self.about, table(self.rows), notes, measured())
        return "\n\n".join(part for part in parts if part) + "\n"


def table(rows: Sequence[dict[str, object]]) -> str:
    """Rows that share their columns, aligned so that they can be read as they are."""
    cells = [list(rows[0]), *([shown(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def shown(value: object) -> str:
    """Numbers with as many digits as mean something; a dash for what was not measured."""
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def measured() -> str:
    """Where, when and how."""
    versions = environment()
    machine = f"{versions['gpu'] or 'no GPU'}, {os.cpu_count()} cores of {processor()}, {platform.system()}"
    libraries = [f"protograph {versions['protograph']}", f"Python {versions['python']}", f"torch {versions['torch']}"]
    if find_spec("triton"):
        import triton

        libraries.append(f"triton {triton.__version__}")
    if torch.cuda.is_available():
        libraries.append(f"cuDNN {torch.backends.cudnn.version()}")
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    command = f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".strip()
    return f"Measured on {machine}; {', '.join(libraries)}; {now}:\n`{command}`"


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    listed = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", listed.read_text(), re.MULTILINE) if listed.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def options(about: str, sections: Iterable[str], file: str, runs: str) -> argparse.ArgumentParser:
    """What all benchmarks of several sections can be told; they keep their tables in `file` and their runs in `runs`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="mini-imagenet", choices=DATASETS)
    parser.add_argument("--root", type=Path, help="where the dataset's files are")
    parser.add_argument("--only", nargs="+", metavar="SECTION", choices=sections, default=list(sections))
    parser.add_argument("--quick", action="store_true", help="measure next to nothing, to see that everything works")
    parser.add_argument("--runs", type=Path, help=f"where runs are kept; finished ones are not trained again (default: {runs})")
    parser.add_argument("--out", type=Path, help=f"the file to keep the tables in (default: {file} beside this script)")
    parser.set_defaults(file=file, kept_runs=Path(runs))
    return parser


def measure_sections(
    parser: argparse.ArgumentParser,
    sections: Mapping[str, Callable[[Subject], Iterable[Section]]],
    subject: Callable[[argparse.Namespace, Path], Subject],
    head: str,
) -> None:
    """Measure the sections that the command line asks for, of what `subject` makes of it and of a folder for runs.

    With --quick runs are thrown away, and tables not written unless --out says where.
    """
    given = parser.parse_args()
    out = given.out or (None if given.quick else Path(__file__).with_name(given.file))
    with TemporaryDirectory() as scratch:
        try:
            own = subject(given, given.runs or (Path(scratch) if given.quick else given.kept_runs))
            for name in given.only:
                keep(sections[name](own), out, list(sections), head)
        except InputError as error:
            parser.error(str(error))
    if out:
        print(f"written into {out}")


def keep(sections: Iterable[Section], path: Path | None, order: Sequence[str], head: str) -> None:
    """Print sections as they are measured and, where there is a file for them, write each into it."""
    for section in sections:
        print(f"\n{section.markdown()}", flush=True)
        if path:
            write(section, path, order, head)


def write(section: Section, path: Path, order: Sequence[str], head: str) -> None:
    """Put a section in the place of the one with its title, below the `head`; `order` has the first words of titles."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}
    parts[section.title] = section.markdown().removeprefix("## ")
    placed = sorted(parts, key=lambda title: order.index(title.partition(":")[0]))  # stable: within one, as they came
    body = "".join(f"\n## {parts[title].strip()}\n" for title in placed)
    write_atomically(path, (head + body).encode())
