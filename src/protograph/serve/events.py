"""Changes of the model file, announced to the pages that are open (server-sent events)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import msgspec

from protograph.serve.refusals import Refusal

HEARTBEAT = 10.0  # seconds between lines that say nothing, by which a lost connection is noticed


class Announcer:
    """What tells every listening page of a change.

    Args:
        most: How many pages may listen.

    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._listeners)

    def announce(self, version: str, what: str | None) -> None:
        """Tell every page of a new version, and of the change that made it, if it is known."""
        for listener in self._listeners:
            _put(listener, version_event(version, what))

    def close(self) -> None:
        """End the streams of all pages."""
        self._closed = True
        for listener in self._listeners:
            _put(listener, None)

    def listen(self, version: Callable[[], str]) -> AsyncIterator[bytes]:
        """Return the stream of one page, which begins with the present version.

        Raises:
            Refusal: Too many pages listen.

        """
        if self._closed or len(self._listeners) >= self.most:
            raise Refusal(503, f"{len(self._listeners)} pages listen already: close some", {"retry-after": "10"})
        listener: asyncio.Queue[bytes | None] = asyncio.Queue(16)
        self._listeners.add(listener)
        return self._stream(listener, version())

    async def _stream(self, listener: asyncio.Queue[bytes | None], version: str) -> AsyncIterator[bytes]:
        try:
            yield version_event(version, None)
            while True:
                try:
                    event = await asyncio.wait_for(listener.get(), HEARTBEAT)
                except TimeoutError:
                    event = b": alive\n\n"
                if event is None:
                    return
                yield event
        finally:
            self._listeners.discard(listener)


def _put(listener: asyncio.Queue[Any], event: bytes | None) -> None:
    """Leave an event to a page; of one that takes none, the oldest is dropped, since it asks anew after any."""
    if listener.full():
        with suppress(asyncio.QueueEmpty):
            listener.get_nowait()
    listener.put_nowait(event)


def version_event(version: str, what: str | None) -> bytes:
    """Return the event that says which version the file has now."""
    return b"event: version\ndata: " + msgspec.json.encode({"version": version, "what": what}) + b"\n\n"
