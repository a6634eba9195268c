"""The start and the graceful stop of the server."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from protograph._internal.errors import InputError
from protograph.serve.access import Access, is_loopback
from protograph.serve.app import guarded_app
from protograph.serve.application import Application

HEADERS_SIZE = 32_768  # bytes of the head of a request
IDLE = 15  # seconds that a connection stays open between requests


@dataclass(frozen=True)
class Place:
    """Where a server listens.

    Attributes:
        host: The address.
        port: The port; 0 takes any that is free.
        certificate: The file of the certificate, for TLS.
        key: The file of its key.

    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    def bind(self) -> socket.socket:
        """Return a socket that listens there.

        Raises:
            InputError: The port is taken, or there is no such address here.

        """
        host = self.host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sends the body of an answer without waiting 40 ms for its head only where the socket names its protocol.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, self.port))
            bound.listen(1024)
        except (OSError, OverflowError) as error:
            bound.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"cannot listen at {self.host}, port {self.port} ({reason}): choose another --port, or another --host"
            ) from error
        return bound

    def link(self, port: int, token: str) -> str:
        """Return the address of the page, with the token; the page takes it out of the address at once."""
        scheme = "https" if self.certificate else "http"
        host = self.host if self.host not in ("0.0.0.0", "::", "[::]") else own_address()
        host = f"[{host.strip('[]')}]" if ":" in host else host
        return f"{scheme}://{host}:{port}/?token={token}"


def own_address() -> str:
    """Return the address under which others in the network find this machine, as well as can be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing; it only chooses the way out
        return str(probe.getsockname()[0])
    return "127.0.0.1"


class Connection(H11Protocol):
    """A connection whose client must send the head of a request in time."""

    longest: float = 10.0  # seconds
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take a portion, and stop waiting once the head of a request is there."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(self.longest, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


class Server(uvicorn.Server):
    """A server that ends quietly at Ctrl-C or SIGTERM, once requests in flight are answered."""

    def __init__(self, config: uvicorn.Config, application: Application, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.application, self._announce_start = application, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self._announce_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams of open pages, which would never end by themselves, then wait for all other requests."""
        self.application.announcer.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals that mean stop, and do not raise them again once the server has stopped."""
        main = threading.current_thread() is threading.main_thread()  # no other may take signals
        kinds = (signal.SIGINT, signal.SIGTERM) if main else ()
        usual = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in usual.items():
                signal.signal(kind, handler)


def run_server(
    application: Application, access: Access, place: Place, bound: socket.socket, started: Callable[[], None]
) -> None:
    """Answer requests until a signal says stop.

    Args:
        application: What answers them.
        access: Who may ask what.
        place: Where the server listens.
        bound: The socket that listens there.
        started: What is called once requests are answered.

    """
    new_server(application, access, place, started).run([bound])


def new_server(application: Application, access: Access, place: Place, started: Callable[[], None]) -> Server:
    """Return a server that is not started yet; the arguments are those of `run_server`."""
    limits = application.limits
    connection: Any = type("TimedConnection", (Connection,), {"longest": limits.pause})
    config = uvicorn.Config(
        guarded_app(application, access),
        http=connection,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=int(limits.stop),
        h11_max_incomplete_event_size=HEADERS_SIZE,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    return Server(config, application, started)
