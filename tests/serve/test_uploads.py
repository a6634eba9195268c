import asyncio
from collections.abc import AsyncIterator

import pytest

from protograph._internal.errors import InputError
from protograph.serve.limits import Limits
from protograph.serve.refusals import Refusal
from protograph.serve.uploads import Form, class_name, read_form, shown, shown_file

BOUNDARY = "frame"
KIND = f"multipart/form-data; boundary={BOUNDARY}".encode()


def part(name: str, content: bytes, file: str | None = None) -> bytes:
    named = f'; filename="{file}"' if file is not None else ""
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def read(body: bytes, size: int = 1000, kind: bytes = KIND, **limits: int) -> Form:
    async def portions() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return asyncio.run(read_form(kind, portions(), Limits(**limits), "images"))


@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
def test_a_form_is_the_same_however_it_is_cut(size: int) -> None:
    content = bytes(range(256)) * 3 + b"\r\n--fram\r\n--"
    form = read(part("name", "Eule ü".encode()) + part("images", content, "a.jpg") + part("images", b"", "b.png") + END, size)
    assert form.texts == {"name": "Eule ü"}
    assert [(file.name, file.content) for file in form.files] == [("a.jpg", content), ("b.png", b"")]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", b"application/json", 415),
        (b"", b"", 415),
        (END, b"multipart/form-data", 415),
        (part("name", b"x"), KIND, 400),
        (b"", KIND, 400),
        (b"nonsense", KIND, 400),
        (part("name", b"\xff\xfe") + END, KIND, 400),
        (part("name", b"x" * 1_000_001) + END, KIND, 413),
        (b"".join(part(f"field{index}", b"") for index in range(21)) + END, KIND, 413),
        (b"".join(part("images", b"", "a.jpg") for _ in range(5)) + END, KIND, 413),
    ],
)
def test_what_is_no_form_or_too_much_is_refused(body: bytes, kind: bytes, status: int) -> None:
    with pytest.raises(Refusal) as refused:
        read(body, kind=kind, files=4)
    assert refused.value.status_code == status


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (part("pictures", b"x", "a.jpg"), "files belong to the field 'images', not 'pictures'"),
        (part("images", b"x"), "the field 'images' holds no file"),
        (part("name", b"a") + part("name", b"b"), "the field 'name' is there twice"),
    ],
)
def test_a_form_that_would_be_misread_is_an_error(body: bytes, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(body + END)


def test_fields_are_needed_or_unknown() -> None:
    form = read(part("name", b"owl") + END)
    assert form.only(("name",), ("images",)).text("name") == "owl"
    with pytest.raises(InputError, match="the field 'class' is missing"):
        form.text("class")
    with pytest.raises(InputError, match="the field 'name' is not known here: send class or images"):
        form.only(("class",), ("images",))


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\photos\\owl.jpg", "owl.jpg"),
        ("a\x00b\n\u202ec.jpg", "abc.jpg"),
        ("<img src=x>.jpg", "<img src=x>.jpg"),
        ("/", "image"),
        ("", "image"),
        ("x" * 500, "x" * 119 + "…"),
    ],
)
def test_names_of_files_are_shown_without_folders_and_what_is_hidden(name: str, seen: str) -> None:
    assert shown_file(name) == seen
    assert shown(shown_file(name)) == seen


def test_names_of_classes_are_what_they_look_like() -> None:
    assert class_name("  Owl ") == "Owl"
    assert class_name("u\u0308") == "ü"
    assert class_name("../<b>&\"'") == "../<b>&\"'"  # harmless: it is neither a path nor markup anywhere
    assert class_name("👩\u200d🌾") == "👩\u200d🌾"
    for hidden in ("a\nb", "a\x00", "a\u202eb", "\x1b[31m", "a\u200bb"):
        with pytest.raises(InputError, match="cannot be seen"):
            class_name(hidden)
    with pytest.raises(InputError, match="200 characters, not 201"):
        class_name("x" * 201)
