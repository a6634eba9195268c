"""Write constraints.lock: constraints.txt with the digests of all files of each version, for `pip install --require-hashes`.

PyTorch and what its build brings are left out, since their files differ from machine to machine: install them first.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).parents[1]
OF_TORCH = ("torch", "nvidia-", "cuda-", "triton")
FILE = re.compile(r'<a [^>]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')  # of a page of the index


def index() -> str:
    """Return the package index that pip uses."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    return (os.environ.get("PIP_INDEX_URL") or asked.stdout.strip() or "https://pypi.org/simple").rstrip("/")


INDEX = index()


def pins() -> Iterator[tuple[str, str]]:
    """Yield names and versions, without those of PyTorch's build."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if version and not name.startswith(OF_TORCH):
            yield name, version


def digests(pin: tuple[str, str]) -> str:
    """Return the lines of a package with the digests of its files."""
    name, version = pin
    project = re.sub(r"[-_.]+", "-", name).lower()
    with urlopen(Request(f"{INDEX}/{project}/", headers={"Accept": "text/html"}), timeout=60) as page:
        files = FILE.findall(page.read().decode())
    start = re.compile(rf"{project.replace('-', '[-_.]+')}-{re.escape(version)}(-|\.tar\.gz$|\.zip$)", re.IGNORECASE)
    found = sorted({digest for digest, file in files if start.match(file)})
    if not found:
        raise SystemExit(f"the index has no files of {name} {version}")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in found)])


if __name__ == "__main__":
    with ThreadPoolExecutor(8) as threads:
        blocks = list(threads.map(digests, pins()))
    header = "# Written by scripts/lock.py. Install PyTorch, then: pip install --no-deps --require-hashes -r constraints.lock"
    (ROOT / "constraints.lock").write_text("\n".join([header, *blocks]) + "\n", encoding="utf-8")
