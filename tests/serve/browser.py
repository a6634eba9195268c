"""A served classifier and a real browser: Debian's chromium, driven by playwright."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from protograph import Classifier
from protograph._internal.files import write_atomically
from protograph.classifier.history import history_folder
from protograph.encoders.efficientnet_lite import open_efficientnet_lite

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
TOKEN, OTHER_TOKEN = "a-token-of-the-tests", "another-token-of-the-tests"
SOURCE = Path(__file__).parents[2] / "src"


class Server:
    """`protograph serve` as a process, at one port for as long as it is needed.

    Args:
        path: The model file, which is begun here without a class.
        size: The edge of the images that the network takes; small ones are answered sooner.

    """

    def __init__(self, path: Path, size: int = 96) -> None:
        self.path = path
        Classifier.empty(open_efficientnet_lite("efficientnet-lite0", size), thumbnails=True).save(path)
        self.token, self.port = TOKEN, 0
        self.process: subprocess.Popen[str] | None = None

    def start(self, token: str = TOKEN) -> None:
        """Start it, at the port that it had before."""
        self.token = token
        command = [sys.executable, "-m", "protograph", "serve", str(self.path), "--port", str(self.port)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PROTOGRAPH_TOKEN": token, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        printed = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", printed)
        assert found, printed
        self.port = int(found[1])

    def stop(self) -> None:
        """Stop it, and wait until it has stopped."""
        if self.process is not None:
            self.process.terminate()
            self.process.communicate(timeout=60)
            assert self.process.returncode == 0
            self.process = None

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def link(self) -> str:
        """The printed link."""
        return f"{self.address}?token={self.token}"

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Return what a request answers."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.request(method, self.address + path, headers=headers, timeout=60, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def teach(self, name: str, images: Sequence[Path], alike: Mapping[str, float] | None = None) -> None:
        """Teach a class, which may be like others."""
        files = [("images", (image.name, image.read_bytes(), "image/jpeg")) for image in images]
        relations = {"relations": json.dumps(alike)} if alike else {}
        self.ask("POST", "api/classes", data={"name": name, **relations}, files=files)

    def contents(self) -> bytes:
        """Return the contents of the model file."""
        return self.path.read_bytes()

    def show(self, contents: bytes) -> None:
        """Put other contents in the place of the model file, without a history."""
        shutil.rmtree(history_folder(self.path), ignore_errors=True)
        write_atomically(self.path, contents)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start the browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


def goto(page: Any, route: str) -> None:
    """Show a view of an open page."""
    page.evaluate("route => { location.hash = route }", route)
    page.locator("main > section:not([hidden]) h1").wait_for()


def shown(page: Any) -> Any:
    """Return the view that is shown."""
    return page.locator("main > section:not([hidden])")


def choose(page: Any, *files: Path) -> None:
    """Choose images in the view that is shown."""
    shown(page).locator("input[type=file]").first.set_input_files(list(files))


def teach(page: Any, name: str, *files: Path) -> None:
    """Teach a class by the page."""
    goto(page, "#/teach")
    page.get_by_label("Name of the class").fill(name)
    choose(page, *files)
    page.get_by_role("button", name=f"Teach '{name}' from").click()
    page.get_by_role("heading", name=f"'{name}' from").wait_for()


def ask(page: Any, file: Path) -> str:
    """Ask the page about an image, and return the answer."""
    goto(page, "#/ask")
    with page.expect_response("**/api/explain"):
        choose(page, file)
    page.locator(".answer:not([aria-busy])").wait_for()
    return str(page.locator(".verdict").inner_text())
