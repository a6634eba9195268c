"""constraints.txt names every package that the development environment, and each extra that is installed, brings along."""

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OF_TORCH = ("nvidia-", "cuda-", "triton", "torch")  # of its build, which differs from machine to machine


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for texts in (project["dependencies"], *project["optional-dependencies"].values()):
        yield from map(Requirement, texts)


def needed() -> dict[str, str]:
    """The versions of all installed packages that a requirement of the project, or of one of these, names."""
    found: dict[str, str] = {}
    queue = [requirement for requirement in requirements() if requirement.name != "protograph"]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed, or of another system
            continue
        for text in metadata.requires(name) or ():
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                queue.append(inner)
    return found


def test_every_package_is_named_with_its_version() -> None:
    names, installed = pinned(), needed()
    assert len(installed) > 30
    missing = {name for name in installed if name not in names and not name.startswith(OF_TORCH)}
    assert not missing, f"constraints.txt lacks {', '.join(sorted(missing))}"


def test_every_line_pins_one_version() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.!+-]*( ; .*)?", line), line
    assert len(pinned()) == len(set(pinned()))


def test_the_lock_file_has_the_same_versions_with_digests() -> None:
    blocks = re.split(r"\n(?=\S)", (ROOT / "constraints.lock").read_text(encoding="utf-8").strip())[1:]
    locked = {}
    for block in blocks:
        first, *hashes = block.split(" \\\n")
        name, _, version = first.partition("==")
        locked[canonicalize_name(name)] = version
        assert hashes, name
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in hashes), name
    expected = {name: version for name, version in pinned().items() if not name.startswith(OF_TORCH)}
    assert locked == expected, "run scripts/lock.py"
