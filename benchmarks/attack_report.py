"""What the commands that attack leave behind: their states in build/attack, and a section of each in benchmarks/ATTACK.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPORT = Path(__file__).with_name("ATTACK.md")
STATES = Path(__file__).parents[1] / "build" / "attack"
TITLE = "# Attacks"


def read_state(name: str, empty: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the last run of a command ended, or the empty state."""
    path = STATES / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8")) if path.is_file() else empty)


def write_state(name: str, state: Mapping[str, Any]) -> None:
    """Keep where a run of a command is."""
    STATES.mkdir(parents=True, exist_ok=True)
    path = STATES / f"{name}.json.part"
    path.write_text(json.dumps(state, indent=1), encoding="utf-8")
    path.replace(STATES / f"{name}.json")


def write_section(heading: str, lines: Sequence[str]) -> None:
    """Replace a section of the report, or add it; the others stay."""
    text = REPORT.read_text(encoding="utf-8") if REPORT.exists() else ""
    sections = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in f"\n{text}".split("\n## ")[1:]}
    sections[heading] = "\n".join(lines)
    written = [TITLE, *(f"## {name}\n\n{body}" for name, body in sections.items())]
    REPORT.write_text("\n\n".join(written) + "\n", encoding="utf-8")
    print(f"wrote {REPORT}")
