"""Numbers about the server in the text format of Prometheus. They name routes, never files, classes or clients."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """How often values fell below each of some bounds.

    Args:
        bounds: The bounds, in ascending order.

    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str = "") -> Iterator[str]:
        """Yield the lines of the histogram."""
        total, comma = 0, f"{labels}," if labels else ""
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{comma}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum!r}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """What the server counts: requests in the event loop alone, batches in one worker at a time."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.seconds: dict[str, Histogram] = {}
        self.batches = Histogram(BATCH_SIZES)
        self.unreadable = 0
        self.in_flight = 0
        self.changes = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def gauge(self, name: str, title: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for when the metrics are."""
        self.gauges[name] = (title, value)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self.requests[method, route, status] += 1
        self.seconds.setdefault(route, Histogram(SECONDS)).add(seconds)

    def text(self) -> str:
        """Return all metrics as text."""
        lines = [*_head("requests_total", "counter", "Requests by route and status.")]
        for (method, route, status), count in sorted(self.requests.items()):
            lines.append(f'protograph_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        lines += _head("request_seconds", "histogram", "Seconds from a request's headers to the end of its answer.")
        for route, histogram in sorted(self.seconds.items()):
            lines += histogram.lines("protograph_request_seconds", f'route="{route}"')
        lines += _head("batch_images", "histogram", "Images that went through the encoder together.")
        lines += self.batches.lines("protograph_batch_images")
        counters = (
            ("images_total", "Images that went through the encoder.", int(self.batches.sum)),
            ("unreadable_images_total", "Images that could not be read.", self.unreadable),
            ("changes_total", "Changes of the model file by this server.", self.changes),
        )
        for name, title, count in counters:
            lines += [*_head(name, "counter", title), f"protograph_{name} {count}"]
        for name, (title, value) in self.gauges.items():
            lines += [*_head(name, "gauge", title), f"protograph_{name} {value():g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, title: str) -> list[str]:
    return [f"# HELP protograph_{name} {title}", f"# TYPE protograph_{name} {kind}"]
