"""What the routes share: the model, the batches, the limits, the announcements."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request

from protograph.serve.batching import Batcher
from protograph.serve.events import Announcer
from protograph.serve.limits import Limits
from protograph.serve.metrics import Metrics
from protograph.serve.model_host import ModelHost, Opening
from protograph.serve.uploads import Form, read_form


@dataclass
class Application:
    """All that a running server has.

    Attributes:
        host: The model file.
        batcher: What encodes images.
        limits: What is taken of one client.
        metrics: What is counted.
        announcer: What tells pages of changes.

    """

    host: ModelHost
    batcher: Batcher
    limits: Limits
    metrics: Metrics
    announcer: Announcer

    @classmethod
    def of(cls, opening: Opening, limits: Limits) -> "Application":
        """Return the application that serves a model file.

        Raises:
            InputError: It cannot be read, or takes no images.

        """
        metrics, announcer = Metrics(), Announcer(limits.pages)
        host = ModelHost(opening, announcer.announce)

        def count(images: int, unreadable: int) -> None:
            if images:
                metrics.batches.add(images)
            metrics.unreadable += unreadable

        batcher = Batcher(count, limits.pixels)
        metrics.gauge("classes", "Classes of the model.", lambda: len(host.served.classifier.classes_))
        metrics.gauge("requests_in_flight", "Requests that are being answered.", lambda: metrics.in_flight)
        metrics.gauge("images_waiting", "Images that wait for a batch.", lambda: len(batcher))
        metrics.gauge("pages_listening", "Pages that listen for changes.", lambda: len(announcer))
        return cls(host, batcher, limits, metrics, announcer)

    async def form(self, request: Request, files: str) -> Form:
        """Return the form of a request, whose files are in the field of that name."""
        return await read_form(request.headers.get("content-type", "").encode("latin-1"), _body(request), self.limits, files)

    def close(self) -> None:
        """Finish what waits, and end the workers."""
        self.batcher.close()
        self.host.close()


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for portion in request.stream():
        if portion:
            yield portion


def application_of(request: Request) -> Application:
    """Return the application that a request belongs to."""
    application: Application = request.app.state.application
    return application
