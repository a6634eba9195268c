"""What stands before every route: who may ask, how much, how slowly; and what every answer says, counts and logs."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from traceback import extract_tb
from typing import Any

from protograph.serve.access import HEADERS, Access
from protograph.serve.limits import Limits
from protograph.serve.metrics import Metrics
from protograph.serve.refusals import GoneError, Refusal

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

STREAMS = frozenset(("/api/events",))  # they last as long as a page is open
UNCOUNTED = frozenset(("/healthz", "/metrics"))  # answered at once, also when there is too much to do
LONGEST_DRAIN = 1.0  # seconds in which the rest of a refused request is taken, so that its client can read the answer
DEFECT = "this is a defect of the server, not of your request: look at its log"
logger = logging.getLogger("protograph.serve")


class Guard:
    """An application behind the checks that every request passes.

    Args:
        app: The application.
        access: Who may ask what.
        limits: What the server takes.
        metrics: What counts requests.

    """

    def __init__(self, app: App, access: Access, limits: Limits, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.metrics = app, access, limits, metrics
        self.memory = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        exchange = Exchange(self, scope, receive, send)
        began = time.monotonic()
        try:
            await exchange.answer()
        finally:
            self.memory -= exchange.held
            seconds = time.monotonic() - began
            route = "/page" if scope["path"].startswith("/page/") else getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "other"
            self.metrics.answered(method, route, exchange.status, seconds)
            logger.info("%s %s %d %.0f ms", method, route, exchange.status, 1000 * seconds)


class Exchange:
    """One request and its answer."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard, self.limits, self.scope = guard, guard.limits, scope
        self._receive, self._send = receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.status = 499  # as when nobody waits for the answer any more
        self.held = self.received = 0
        self.gone = False
        self.began: float | None = None
        has_body = b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"
        self.unread = has_body

    async def answer(self) -> None:
        """Answer the request."""
        counted = self.scope["path"] not in STREAMS | UNCOUNTED
        self.guard.metrics.in_flight += counted
        try:
            self._check(counted)
            await self.guard.app(self.scope, self.receive, self.send)
        except Refusal as refusal:
            await self._refuse(refusal)
        except GoneError:
            pass
        except TimeoutError:  # of a client that does not take its answer
            self.status = 499
        except Exception as error:
            # The message may hold names of a user's, so the log has where it happened alone.
            frames = [f"{frame.filename}:{frame.lineno}" for frame in extract_tb(error.__traceback__)[-6:]]
            logger.error("%s at %s", type(error).__name__, " < ".join(reversed(frames)))
            if self.status == 499:
                await self._refuse(Refusal(500, DEFECT))
        finally:
            self.guard.metrics.in_flight -= counted

    def _check(self, counted: bool) -> None:
        """Raise a `Refusal` unless the request may go on."""
        server = self.scope.get("server")
        address = server[0] if server else None
        self.guard.access.check(self.scope["method"], self.scope["path"], self.headers, address)
        if counted and self.guard.metrics.in_flight > self.limits.requests:
            raise Refusal(503, "the server has too much to do: ask again in a moment", {"retry-after": "1"})
        length = self.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.limits.bytes:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal(413, f"a request may have {self.limits.bytes:,} bytes at most: send fewer or smaller images at a time")

    async def receive(self) -> Message:
        """Return the next portion of the body, counted; a client that sends nothing, or hardly anything, is given up."""
        if not self.unread:
            return await self._receive()
        self.began = self.began or time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), self.limits.pause)
        except TimeoutError:
            raise self._too_slow() from None
        if message["type"] != "http.request":
            self.unread, self.gone = False, True
            raise GoneError
        size = len(message.get("body", b""))
        self.received += size
        self.held += size
        self.guard.memory += size
        self.unread = message.get("more_body", False)
        if self.received > self.limits.bytes:
            raise self._too_large()
        if self.guard.memory > self.limits.memory:
            raise Refusal(503, "the server holds too many images: send them again in a moment", {"retry-after": "1"})
        over = time.monotonic() - self.began - self.limits.pause
        if self.unread and over > 0 and self.received < self.limits.rate * over:
            raise self._too_slow()
        return message

    def _too_slow(self) -> Refusal:
        return Refusal(408, "the request came too slowly: send it again")

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {name.lower() for name, _ in message["headers"]}
            headers = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in names)]
            if b"cache-control" not in names:
                headers.append((b"cache-control", b"no-store"))
            if self.unread:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif self.unread and not message.get("more_body", False):
            await self._send_within({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send_within(message)

    async def _send_within(self, message: Message) -> None:
        await asyncio.wait_for(self._send(message), self.limits.pause)

    async def _drain(self) -> None:
        """Take the rest of a request for a moment: a connection closed at once could take the answer with it."""
        self.unread = False
        if b"expect" in self.headers:  # the client waits for the answer before it sends anything
            return
        end = time.monotonic() + LONGEST_DRAIN
        while (rest := end - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), rest)
            except TimeoutError:
                return
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    async def _refuse(self, refusal: Refusal) -> None:
        try:
            await refusal.answer()(self.scope, self.receive, self.send)
        except TimeoutError:
            self.status = 499
