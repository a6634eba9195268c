"""What one client may ask of the server, and for how long."""

from dataclasses import dataclass, fields

from protograph._internal.errors import InputError
from protograph.data.decode import MAX_PIXELS

LONGEST_CLASS_NAME = 200  # characters of a class name
MOST_SHOWN = 120  # characters of a file name in an answer


@dataclass(frozen=True)
class Limits:
    """What the server takes before it refuses.

    Attributes:
        bytes: Bytes of one request.
        pixels: Pixels of one image.
        files: Images of one request.
        classes: Classes of the model.
        requests: Requests at a time; further ones are refused at once.
        memory: Bytes of all requests at a time.
        pages: Pages at a time that listen for changes.
        pause: Seconds without a byte from a client, or to a client, after which it is given up.
        rate: Bytes per second that a client must send in the mean, once the first pause is over.
        stop: Seconds that requests in flight have to finish when the server stops.

    """

    bytes: int = 128_000_000
    pixels: int = MAX_PIXELS
    files: int = 200
    classes: int = 2000
    requests: int = 256
    memory: int = 1_024_000_000
    pages: int = 64
    pause: float = 10.0
    rate: float = 10_000.0
    stop: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InputError(f"the limit on {field.name} must be a positive number, not {getattr(self, field.name)!r}")
        if self.pixels > MAX_PIXELS:
            raise InputError(f"an image may have {MAX_PIXELS:,} pixels at most: give a lower limit than {self.pixels:,}")

    @property
    def connections(self) -> int:
        """How many connections may be open, also those that ask for nothing."""
        return 2 * (self.requests + self.pages)
