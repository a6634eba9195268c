"""What the tests of the server share: a small model file, photographs of three colours, a server in this process or another."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI
from PIL import Image

from protograph import Classifier, open_encoder
from protograph.encoders import ImageEncoder
from protograph.serve.access import Access
from protograph.serve.app import guarded_app
from protograph.serve.application import Application
from protograph.serve.guard import Guard
from protograph.serve.limits import Limits
from protograph.serve.model_host import Opening
from protograph.serve.running import Place, new_server

TOKEN = "token-of-the-tests"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}
HOST = "http://127.0.0.1:8000"


def photograph(colour: str, seed: int, size: tuple[int, int] = (100, 80), kind: str = "JPEG") -> bytes:
    """An image that is mostly of one colour."""
    noise = np.random.default_rng(seed).random((size[1], size[0], 3)) * 60
    pixels = (noise + 190 * np.array(COLOURS[colour])).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def photographs(colour: str, count: int, first: int = 0) -> list[bytes]:
    return [photograph(colour, first + index) for index in range(count)]


def files(images: list[bytes], field: str = "images") -> list[tuple[str, tuple[str, bytes]]]:
    """Images as httpx sends them."""
    return [(field, (f"{index}.jpg", image)) for index, image in enumerate(images)]


@cache
def encoder() -> ImageEncoder:
    return open_encoder("conv4")


@cache
def model_bytes() -> bytes:
    """A model file of two fitted classes, red and green, which can be taught."""
    images = [*photographs("red", 6), *photographs("green", 6)]
    path = Path(os.environ["PROTOGRAPH_CACHE"]) / "served.pg"
    Classifier(encoder(), keep_features=True).fit(images, ["red"] * 6 + ["green"] * 6).save(path)
    return path.read_bytes()


def write_model(folder: Path) -> Path:
    path = folder / "birds.pg"
    path.write_bytes(model_bytes())
    return path


class Asking:
    """A client of an application without sockets, whose event loop has a thread of its own."""

    def __init__(self, application: Application, access: Access) -> None:
        self.application = application
        self.app = guarded_app(application, access)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url=HOST)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer: httpx.Response = self.call(self.http.request(method, path, **options))
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def __enter__(self) -> "Asking":
        assert isinstance(self.app, Guard)
        assert isinstance(self.app.app, FastAPI)
        self.thread.start()
        self.lifespan = self.app.app.router.lifespan_context(self.app.app)
        self.call(self.lifespan.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self.call(self.http.aclose())
        self.call(self.lifespan.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def client(path: Path, loopback: bool = True, **limits: Any) -> Asking:
    """A client of the application that serves a model file."""
    return Asking(Application.of(Opening(path), Limits(**limits)), Access(TOKEN, loopback))


@contextmanager
def listening(path: Path, access: Access | None = None, **limits: Any) -> Iterator[int]:
    """The port of a server in a thread."""
    place, ready = Place(port=0), threading.Event()
    bound = place.bind()
    application = Application.of(Opening(path), Limits(**limits))
    server = new_server(application, access or Access(TOKEN), place, ready.set)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        assert ready.wait(30)
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int
    link: str

    def stop(self, kind: int = signal.SIGTERM) -> int:
        """Stop it, and return its exit code."""
        self.process.send_signal(kind)
        return self.process.wait(30)


@contextmanager
def running(path: Path, *options: str, token: str = TOKEN) -> Iterator[Running]:
    """A server as the command starts it."""
    command = [sys.executable, "-m", "protograph", "serve", str(path), "--port", "0", *options]
    environment = {**os.environ, "PROTOGRAPH_TOKEN": token, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    assert process.stderr
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.stderr.read())
        (port,) = re.findall(r":(\d+)/", line)
        yield Running(process, int(port), line.split(" at ")[1].strip())
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
