"""Kill a server at random while it is taught, again and again: the file is whole each time, and nothing confirmed is lost.

    python benchmarks/serve_kills.py 200

Each server is asked to add, rename and remove classes and to undo changes as fast as it answers. Every other one gets SIGKILL
after a random time, the others before the n-th of their calls that write into the folder of the model, such as opening a
file, writing to the disk, renaming and removing. Then the file is loaded, and its classes are compared with those that were
confirmed. The change whose answer was on its way may have been made or not.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from attack_report import write_section
from encoding import write_photographs
from protograph import Classifier
from protograph.classifier.history import history

TOKEN = "a-token-for-the-kills"
LONGEST = 1.5  # seconds of teaching before a kill
MOST_CALLS = 60  # calls that write before a kill; a change has some fifteen
SERVER = """
import sys
from pathlib import Path
from disturbance import Disturbance
from protograph.cli import app
model, at = sys.argv[1:]
Disturbance("kill" if int(at) else "", int(at), folder=str(Path(model).parent)).begin()
app(["serve", model, "--port", "0"])
"""


def start(model: Path, at: int) -> tuple[subprocess.Popen[str], int]:
    """Start a server, which kills itself before its `at`-th call that writes, if that is not 0."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PROTOGRAPH_TOKEN": TOKEN, "PYTHONPATH": paths}
    command = [sys.executable, "-c", SERVER, str(model), str(at)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    ready = re.findall(r":(\d+)/", process.stdout.readline())
    return process, int(ready[0]) if ready else 0


@dataclass
class Taught:
    """The classes that the file must have.

    Attributes:
        line: The classes after each confirmed change, the present ones last.
        undone: Those that a confirmed undo took back.
        possible: The present ones, and those that the change on its way would make.
        changes: How many changes were asked for.

    """

    line: list[frozenset[str]]
    undone: frozenset[str] | None = None
    possible: tuple[frozenset[str], ...] = ()
    changes: int = 0

    def teach(self, asking: httpx.Client, image: bytes) -> None:
        """Change classes until the server dies."""
        while True:
            self.changes += 1
            known, name = self.line[-1], f"class {self.changes}"
            spare = sorted(known - {"a", "b"})
            kinds = ["add", "add", *(["rename", "remove"] if spare else []), *(["undo", "undo"] if len(self.line) > 1 else [])]
            kind = random.choice(kinds) if self.undone is None else "redo"
            sent: dict[str, Any] = {}
            if kind == "add":
                after = known | {name}
                sent = {"url": "/api/classes", "data": {"name": name}, "files": {"images": ("x.jpg", image)}}
            elif kind == "rename":
                after = known - {spare[0]} | {name}
                sent = {"url": "/api/classes/rename", "json": {"class": spare[0], "name": name}}
            elif kind == "remove":
                after = known - {spare[0]}
                sent = {"url": "/api/classes/remove", "json": {"class": spare[0]}}
            else:
                after = self.line[-2] if kind == "undo" else self.undone or known
                sent = {"url": f"/api/history/{kind}"}
            self.possible = (known, after)
            asking.post(**sent).raise_for_status()
            self.possible = (after,)
            if kind == "undo":
                self.undone = self.line.pop()
            else:
                self.line.append(after)
                self.undone = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=200)
    kills = parser.parse_args().kills
    with TemporaryDirectory() as name:
        folder = Path(name)
        photographs = write_photographs(folder, 8)
        model = folder / "model.pg"
        Classifier("conv4", keep_features=True, thumbnails=True).fit(photographs, ["a", "b"] * 4).save(model)
        image, changes, lost = photographs[0].read_bytes(), 0, 0
        for number in range(kills):
            taught = Taught([frozenset(Classifier.load(model).classes_.tolist())], changes=changes)
            at = random.randint(1, MOST_CALLS) if number % 2 else 0
            process, port = start(model, at)
            if not at:
                threading.Timer(random.uniform(0.0, LONGEST), process.send_signal, [signal.SIGKILL]).start()
            headers = {"Authorization": f"Bearer {TOKEN}"}
            if port:
                with (
                    suppress(httpx.TransportError),
                    httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as asking,
                ):
                    taught.teach(asking, image)
            process.communicate()
            assert process.returncode == -signal.SIGKILL, process.returncode
            labels, changes = frozenset(Classifier.load(model).classes_.tolist()), taught.changes
            history(model)
            if labels not in (taught.possible or taught.line):
                lost += 1
                print(f"kill {number + 1}: {sorted(labels)} are none of {[sorted(part) for part in taught.possible]}")
            if (number + 1) % 20 == 0:
                print(f"{number + 1} kills, {changes} changes: {lost} lost", flush=True)
    print(f"{kills} kills while {changes} changes were made: the file was whole each time, {lost} confirmed changes were lost")
    at_calls = kills // 2
    lines = [
        f"`python benchmarks/serve_kills.py {kills}` killed {kills} servers while {changes:,} changes of their model were "
        f"asked for: {kills - at_calls} at random moments, {at_calls} before one of their first {MOST_CALLS} calls that write. "
        f"The file was whole each time, and {lost} confirmed changes were lost.",
    ]
    write_section("Kills of a server that is taught", lines)
    raise SystemExit(lost > 0)


if __name__ == "__main__":
    main()
