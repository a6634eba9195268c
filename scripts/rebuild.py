"""Build the wheel and the source distribution twice, at two places, and compare them byte by byte: `make rebuild`.

The time in the archives is that of the last commit, or SOURCE_DATE_EPOCH. The files are left in dist/, or in the folder
that is named.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def source_date() -> str:
    """Return the time that archives state."""
    if chosen := os.environ.get("SOURCE_DATE_EPOCH"):
        return chosen
    return subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def build(place: Path) -> dict[str, bytes]:
    """Build a copy of the tree at a place, with the tools that are installed, and return the files by name."""
    tree = place / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site", "runs"))
    shutil.copy(ROOT / ".gitignore", tree)
    for file in tree.rglob("*"):  # other times and permissions than in another copy
        os.utime(file, (len(place.name), len(str(file))))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place / "dist"), str(tree)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": source_date(), "PYTHONHASHSEED": str(len(place.name))}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {file.name: file.read_bytes() for file in sorted((place / "dist").iterdir())}


def main(out: Path) -> int:
    """Build twice, compare, keep the files, and return 1 if the builds differ."""
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory(prefix="another-") as other:
        first, second = build(Path(one)), build(Path(other))
    differing = [name for name in first if first[name] != second.get(name)]
    if differing or first.keys() != second.keys() or len(first) != 2:
        print(f"the builds differ: {', '.join(differing) or sorted({*first, *second})}")
        return 1
    out.mkdir(exist_ok=True)
    for name, content in first.items():
        (out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {out / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2] or [ROOT / "dist"])))
