"""Forms with images: read from the stream into memory, part by part, never into a file that a client named."""

import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from protograph._internal.errors import InputError
from protograph.serve.limits import LONGEST_CLASS_NAME, MOST_SHOWN, Limits
from protograph.serve.refusals import Refusal

MOST_FIELDS = 20
MOST_TEXT = 1_000_000  # bytes of all fields that are no images
FORM = b"multipart/form-data"
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control characters, marks of direction, halves of characters


@dataclass(frozen=True)
class Upload:
    """An uploaded file.

    Attributes:
        name: What the client calls it, for answers alone.
        content: Its contents.

    """

    name: str
    content: bytes


@dataclass
class Form:
    """What a client sent.

    Attributes:
        texts: The fields by name.
        files: The files, in their order.

    """

    texts: dict[str, str] = field(default_factory=dict)
    files: list[Upload] = field(default_factory=list)

    def text(self, name: str) -> str:
        """Return a field that must be there.

        Raises:
            InputError: It is not.

        """
        if name not in self.texts:
            raise InputError(f"the field '{name}' is missing: send it")
        return self.texts[name]

    def only(self, texts: tuple[str, ...], files: tuple[str, ...]) -> "Form":
        """Return the form if it has no fields but these.

        Raises:
            InputError: It has others, which would be ignored.

        """
        if others := sorted({*self.texts} - {*texts}):
            raise InputError(f"the field '{shown(others[0])}' is not known here: send {' or '.join((*texts, *files))}")
        return self


async def read_form(content_type: bytes, body: AsyncIterator[bytes], limits: Limits, files: str) -> Form:
    """Return the form in the body of a request.

    Args:
        content_type: The header of that name.
        body: The body, in portions.
        limits: What the server takes.
        files: The name of the field that holds files.

    Raises:
        Refusal: It is no form, or more than the limits allow.

    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != FORM or not boundary:
        raise Refusal(415, f"images are sent as multipart/form-data, in the field '{files}' (curl --form)")
    try:
        reader = _Reader(boundary, limits, files)
        async for portion in body:
            reader.write(portion)
        return reader.close()
    except (FormParserError, UnicodeDecodeError) as error:
        raise Refusal(400, "the form cannot be read: send it as multipart/form-data") from error


class _Reader:
    """The parts of a form, as they come."""

    def __init__(self, boundary: bytes, limits: Limits, files: str) -> None:
        self.form, self.limits, self.files = Form(), limits, files
        self.parts = self.text_bytes = 0
        self.ended = False
        self.begin_part()
        callbacks = {
            "on_part_begin": self.begin_part,
            "on_part_data": self.add_data,
            "on_part_end": self.end_part,
            "on_header_field": self.add_header_name,
            "on_header_value": self.add_header_value,
            "on_header_end": self.end_header,
            "on_headers_finished": self.end_headers,
            "on_end": self.end,
        }
        self.parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    def write(self, portion: bytes) -> None:
        self.parser.write(portion)

    def close(self) -> Form:
        if not self.ended:
            raise Refusal(400, "the form is incomplete: send it again")
        return self.form

    def begin_part(self) -> None:
        self.portions: list[bytes] = []
        self.header_name = self.header_value = b""
        self.disposition = b""
        self.name = ""
        self.file_name: str | None = None

    def add_header_name(self, data: bytes, start: int, end: int) -> None:
        self.header_name += data[start:end]

    def add_header_value(self, data: bytes, start: int, end: int) -> None:
        self.header_value += data[start:end]

    def end_header(self) -> None:
        if self.header_name.lower() == b"content-disposition":
            self.disposition = self.header_value
        self.header_name = self.header_value = b""

    def end_headers(self) -> None:
        _, options = parse_options_header(self.disposition)
        self.name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self.file_name = shown_file(options[b"filename"].decode("utf-8", "replace"))
            if self.name != self.files:
                raise InputError(f"files belong to the field '{self.files}', not '{shown(self.name)}'")
            if len(self.form.files) >= self.limits.files:
                raise Refusal(413, f"a request may have {self.limits.files} images at most: send further requests")
        elif self.name == self.files:
            raise InputError(f"the field '{self.files}' holds no file: send images (--form '{self.files}=@photo.jpg')")
        else:
            self.parts += 1
            if self.parts > MOST_FIELDS:
                raise Refusal(413, f"a form may have {MOST_FIELDS} fields at most")

    def add_data(self, data: bytes, start: int, end: int) -> None:
        if self.file_name is None:
            self.text_bytes += end - start
            if self.text_bytes > MOST_TEXT:
                raise Refusal(413, f"the fields of a form may have {MOST_TEXT:,} bytes at most")
        self.portions.append(data[start:end])

    def end_part(self) -> None:
        content = b"".join(self.portions)
        if self.file_name is not None:
            self.form.files.append(Upload(self.file_name, content))
        elif self.name in self.form.texts:
            raise InputError(f"the field '{shown(self.name)}' is there twice: send it once")
        else:
            self.form.texts[self.name] = content.decode("utf-8")

    def end(self) -> None:
        self.ended = True


def shown(text: str) -> str:
    """Return a text of a client without what a reader would not see, and not too long."""
    visible = "".join(letter for letter in text if unicodedata.category(letter) not in HIDDEN)
    return visible if len(visible) <= MOST_SHOWN else f"{visible[: MOST_SHOWN - 1]}…"


def shown_file(name: str) -> str:
    """Return the name of an uploaded file without the folders before it."""
    return shown(name.replace("\\", "/").rpartition("/")[2]) or "image"


def class_name(text: str) -> str:
    """Return the name of a new class.

    Raises:
        InputError: It is too long, or holds what a reader would not see.

    """
    name = unicodedata.normalize("NFC", text).strip()
    if len(name) > LONGEST_CLASS_NAME:
        raise InputError(f"a class name may have {LONGEST_CLASS_NAME} characters, not {len(name)}: give a shorter one")
    if any(unicodedata.category(letter) in HIDDEN and letter != "\u200d" for letter in name):
        raise InputError("the class name has characters that cannot be seen, such as a line break: leave them out")
    return name
