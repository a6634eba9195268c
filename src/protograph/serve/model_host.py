"""The model file, held in memory: loaded once, loaded anew when another process changed it, and changed through its lock."""

import asyncio
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.classifier.checking import ExampleCheck
from protograph.classifier.estimator import Classifier
from protograph.classifier.history import Change, history
from protograph.classifier.model_file import read_header
from protograph.encoders.base import ImageEncoder, KeptEncoder

Stamp = tuple[int, int, int]
Returned = TypeVar("Returned")

MOST_SCORES = 10_000  # of examples by classes, up to which a change also says how accuracy changed: in half a second
PILLOW = "PIL"  # whose warnings about images may come from a worker meanwhile
DIGEST_LETTERS = 12  # letters of the digest


@dataclass(frozen=True)
class Opening:
    """A model file, and the paths that the user names, so that it may open them.

    Attributes:
        path: The file.
        backbone_weights: The weights of its encoder, if the file only names them.
        relations: Relations of the file that read a file of their own.

    """

    path: Path
    backbone_weights: Path | None = None
    relations: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Served:
    """One whole state of the model file. Nothing in it changes.

    Attributes:
        classifier: The classifier, with the encoder.
        encoder: The encoder, opened.
        version: A short digest of the file.
        stamp: What tells this file from one that took its place.

    """

    classifier: Classifier
    encoder: ImageEncoder
    version: str
    stamp: Stamp

    @cached_property
    def check(self) -> ExampleCheck:
        """Whether it was taught enough, computed when it is first asked for."""
        return self.classifier.check_examples()

    def quick_accuracy(self) -> float | None:
        """Return the share of examples that are right when left out; None where there are too many to tell at once."""
        space, kept = self.classifier.space_, self.classifier.kept_
        examples = sum(map(len, kept.values())) or sum(map(len, space.support))
        return self.check.accuracy if len(space.names) > 1 and examples * len(space.names) <= MOST_SCORES else None


class ModelHost:
    """A model file that is served.

    Args:
        opening: The file, and what it may open.
        announce: What tells open pages of a new version, and of the change that made it.

    """

    def __init__(self, opening: Opening, announce: Callable[[str, str | None], None]) -> None:
        self.opening, self.path, self.announce = opening, opening.path, announce
        self._checks = threading.Lock()
        self._changing, self._loading = asyncio.Lock(), asyncio.Lock()
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(4, "model", initializer=lambda: torch.set_num_threads(threads))
        self._refused: Stamp | None = None
        self.served = self._load(None)

    async def run(self, function: Callable[..., Returned], *arguments: Any) -> Returned:
        """Return the result of a function, computed beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def current(self, what: str | None = None) -> Served:
        """Return the state of the file as it is now. If it cannot be read any more, the last state stays.

        Args:
            what: What changed it, for the announcement; by default what its history says.

        """
        if not self._is_new(stamp_of(self.path)):
            return self.served
        async with self._loading:
            stamp = stamp_of(self.path)
            if self._is_new(stamp):
                try:
                    served = await self.run(self._load, self.served)
                except (InputError, OSError):
                    self._refused = stamp
                    return self.served
                told = served.version != self.served.version
                self.served = served
                if told:
                    self.announce(served.version, what or await self.run(self._last_change))
        return self.served

    def _is_new(self, stamp: Stamp | None) -> bool:
        return stamp is not None and stamp not in (self.served.stamp, self._refused)

    async def change(
        self, what: str, make: Callable[[Classifier], object], encoder: ImageEncoder | None = None
    ) -> tuple[Served, Served, list[str]]:
        """Change the file, and return the state before, the state after, and notes.

        Other processes that change it wait, and so do other changes of this one. Who reads goes on with the old state.

        Args:
            what: What the change does, as history tells it.
            make: What changes a classifier.
            encoder: What made features that are passed in; the file must not have got another one since.

        Raises:
            InputError: The change is not possible, or another process holds the file for too long.

        """

        def edit() -> list[str]:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", UserWarning)
                with Classifier.edit(self.path, what, self.opening.backbone_weights, self.opening.relations) as classifier:
                    if encoder is not None and not same_encoder(classifier.encoder_, encoder):
                        raise InputError(f"{self.path.name} has another encoder now: send the images again")
                    make(classifier)
            own = [
                warning for warning in caught if warning.category is UserWarning and PILLOW not in Path(warning.filename).parts
            ]
            return [*dict.fromkeys(str(warning.message) for warning in own)]

        async with self._changing:
            before = await self.current()
            notes = await self.run(edit)
            return before, await self.current(what), notes

    async def step(self, move: Callable[[Path], Change], verb: str) -> tuple[Served, Served, str]:
        """Go back or forth in the history of the file; return the states before and after, and what was done.

        Args:
            move: What goes one step, and returns the change in question.
            verb: What is put before the words of that change.

        """
        async with self._changing:
            before = await self.current()
            change = await self.run(move, self.path)
            what = f"{verb}: {change.what}"
            return before, await self.current(what), what

    async def check(self, served: Served) -> ExampleCheck:
        """Return whether a state was taught enough; one check at a time is computed."""

        def check() -> ExampleCheck:
            with self._checks:
                return served.check

        return await self.run(check)

    async def held_out(self, before: Served, after: Served) -> dict[str, float | None]:
        """Return the accuracy on examples left out, before and after a change, where it can be told quickly."""

        def accuracies() -> dict[str, float | None]:
            with self._checks:
                return {"before": before.quick_accuracy(), "after": after.quick_accuracy()}

        return await self.run(accuracies)

    def close(self) -> None:
        """Finish what is being computed."""
        self._pool.shutdown()

    def _load(self, earlier: Served | None) -> Served:
        """Return the present state of the file, with the encoder of an earlier state where it is the same."""
        while True:
            stamp = stamp_of(self.path)
            classifier = Classifier.load(self.path, self.opening.backbone_weights, self.opening.relations)
            version = version_of(self.path)
            if stamp is not None and stamp == stamp_of(self.path):  # none took its place in between
                break
        if earlier is not None and same_encoder(classifier.encoder_, earlier.encoder):
            encoder = earlier.encoder
        else:
            encoder = self._opened(classifier)
        classifier.encoder_ = encoder
        return Served(classifier, encoder, version, stamp)

    def _opened(self, classifier: Classifier) -> ImageEncoder:
        kept = classifier.encoder_
        if not isinstance(kept, KeptEncoder):
            raise InputError(f"{self.path} was fitted on features, so it cannot be shown images: fit on images")
        encoder = kept.opened()
        assert isinstance(encoder, ImageEncoder)
        _, height, width = encoder.preparation.shape
        encoder.encode_pixels(torch.zeros(1, encoder.preparation.shape[0], height, width, dtype=torch.uint8))
        return encoder

    def _last_change(self) -> str | None:
        try:
            changes = history(self.path)
        except (InputError, OSError):  # the file has gone again
            return None
        undone = [change.what for change in changes if change.undone]
        return f"undone: {undone[-1]}" if undone else next((change.what for change in changes), None)


def same_encoder(kept: Any, opened: ImageEncoder) -> bool:
    """Return whether the encoder of a file is one that is open already."""
    return (
        kept is not None
        and _plain(kept.description()) == _plain(opened.description())
        and _same(kept.tensors(), opened.tensors())
    )


def _plain(value: Any) -> Any:
    """Return JSON values with lists for tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stamp_of(path: Path) -> Stamp | None:
    """Return what tells a file from one that takes its place; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - for every request
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def version_of(path: Path) -> str:
    """Return a short digest of a model file."""
    return read_header(path)["digest"][:DIGEST_LETTERS]
