"""Images of many requests, gathered into batches, from file contents to answers.

As many workers as the encoder likes take batches side by side, each by its share of the cores: a worker decodes its images and
passes them through the network, so no core waits for another, and the event loop for none.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.memory import keep_freed_memory
from protograph.classifier.answering import Predictions
from protograph.encoders.base import ImageEncoder
from protograph.encoders.workers import cpu_workers
from protograph.serve.model_host import Served
from protograph.serve.refusals import Refusal
from protograph.serve.uploads import Upload

MOST = 32  # images of a batch
NEARLY_FULL = 0.75  # share of a batch from which filling it up pays
BATCH_SECONDS = 0.002  # seconds that the first image of a batch waits for others


@dataclass(frozen=True)
class Encoded:
    """What became of an image.

    Attributes:
        features: Its features [D]; None where it cannot be read.
        predictions: What the classifier says of the images of its batch, if that was asked for.
        row: Its row among these.
        error: Why it cannot be read.

    """

    features: Tensor | None = None
    predictions: Predictions | None = None
    row: int = 0
    error: str | None = None


@dataclass(eq=False)
class _Job:
    """An image that waits."""

    upload: Upload
    served: Served
    predict: bool
    done: Callable[[Encoded | BaseException], None]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """The workers that encode images.

    Args:
        count: What counts the images of each batch, and those that cannot be read; by one worker at a time.
        most_pixels: The most pixels of an image.

    """

    def __init__(self, count: Callable[[int, int], None], most_pixels: int) -> None:
        self.count, self.most_pixels = count, most_pixels
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False
        keep_freed_memory()  # a batch takes and frees the same large tensors as the last one
        workers, threads = cpu_workers()
        self._threads = [
            threading.Thread(target=self._work, args=(threads,), name=f"encode-{index}", daemon=True)
            for index in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    async def encode(self, uploads: Sequence[Upload], served: Served, predict: bool = False) -> list[Encoded]:
        """Return what became of images; with `predict`, also what the classifier of this state says of them."""
        loop = asyncio.get_running_loop()
        results: list[Encoded | None] = [None] * len(uploads)
        missing, finished = len(uploads), loop.create_future()

        def take(index: int, result: Encoded | BaseException) -> None:
            nonlocal missing
            missing -= 1
            if finished.done():
                return
            if isinstance(result, BaseException):
                finished.set_exception(result)
                return
            results[index] = result
            if not missing:
                finished.set_result(None)

        def deliver(index: int) -> Callable[[Encoded | BaseException], None]:
            return lambda result: _call(loop, take, index, result)

        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is stopping: ask again when it has been started anew")
            self._waiting.extend(_Job(upload, served, predict, deliver(index)) for index, upload in enumerate(uploads))
            self._changed.notify_all()
        if uploads:
            await finished
        return [result for result in results if result is not None]

    def close(self) -> None:
        """Let the workers end once nothing waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        while jobs := self._take():
            try:
                for job, result in zip(jobs, self._encoded(jobs), strict=True):
                    job.done(result)
            except BaseException as error:
                for job in jobs:
                    job.done(error)

    def _take(self) -> list[_Job]:
        """Return the next batch: a fair share of what waits, once its first image has waited for others; none at the end."""
        with self._changed:
            self._idle += 1
            while not self._closed or self._waiting:
                if not self._waiting:
                    self._changed.wait()
                    continue
                rest = self._waiting[0].arrived + BATCH_SECONDS - time.monotonic()
                if rest > 0 and len(self._waiting) < MOST and not self._closed:
                    self._changed.wait(rest)
                    continue
                size = batch_size(len(self._waiting), self._idle, self._waiting[0].served.encoder.batch_size())
                self._idle -= 1
                return [self._waiting.popleft() for _ in range(size)]
            return []

    def _encoded(self, jobs: Sequence[_Job]) -> list[Encoded]:
        """Return what became of the images of a batch, which may belong to several states of the model."""
        results: list[Encoded] = [Encoded()] * len(jobs)
        pixels: dict[int, Tensor] = {}
        for row, job in enumerate(jobs):
            try:
                pixels[row] = prepare(job.served.encoder, job.upload, self.most_pixels)
            except InputError as error:
                results[row] = Encoded(error=str(error))
        for rows in _grouped(pixels, lambda row: jobs[row].served.encoder):
            encoder = jobs[rows[0]].served.encoder
            for row, features in zip(rows, encode_pixels(encoder, [pixels[row] for row in rows]), strict=True):
                results[row] = Encoded(features)
        asked = [row for row in pixels if jobs[row].predict]
        for rows in _grouped(asked, lambda row: jobs[row].served):
            features = torch.stack([_features(results[row]) for row in rows])
            predictions = jobs[rows[0]].served.classifier.predictions(features)
            for index, row in enumerate(rows):
                results[row] = Encoded(features[index], predictions, index)
        with self._changed:
            self.count(len(pixels), len(jobs) - len(pixels))
        return results


def prepare(encoder: ImageEncoder, upload: Upload, most_pixels: int) -> Tensor:
    """Return an uploaded image as the network sees it.

    Raises:
        InputError: It cannot be read, or has too many pixels.

    """
    if not upload.content:
        raise InputError(f"image {upload.name} is an empty file: fetch it again or leave it out")
    return encoder.preparation.read_content(upload.content, f"image {upload.name}", most_pixels)


def batch_size(waiting: int, idle: int, full: int) -> int:
    """Return how many of the waiting images one of the idle workers takes: a fair share, but full batches where there are any.

    On a CPU, an image in a batch that is not full takes half as long again.
    """
    share = math.ceil(waiting / idle)
    if waiting >= full:
        share = full * max(1, waiting // idle // full)
    return max(1, min(MOST, share, waiting))


def encode_pixels(encoder: ImageEncoder, pixels: Sequence[Tensor]) -> Tensor:
    """Return the features [n, D] of prepared images. A batch that is nearly full is filled up, which takes less time."""
    size, parts = encoder.batch_size(), []
    for start in range(0, len(pixels), size):
        part = list(pixels[start : start + size])
        missing = size - len(part) if NEARLY_FULL * size <= len(part) else 0
        parts.append(encoder.encode_pixels(torch.stack(part + [part[0]] * missing))[: len(part)])
    return torch.cat(parts)


def _features(result: Encoded) -> Tensor:
    assert result.features is not None
    return result.features


def _grouped(rows: Any, key: Callable[[int], object]) -> list[list[int]]:
    """Return rows by the object that they belong to."""
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(id(key(row)), []).append(row)
    return list(groups.values())


def _call(loop: asyncio.AbstractEventLoop, take: Callable[..., None], *arguments: object) -> None:
    """Call a function in the event loop, unless it has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(take, *arguments)
