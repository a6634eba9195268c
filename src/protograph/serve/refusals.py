"""Answers of the server that are not what was asked for: one sentence as JSON, the same as the command's."""

import json
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response


class Json(Response):
    """An answer as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the JSON of plain values."""
        try:
            return msgspec.json.encode(content)
        except UnicodeEncodeError:  # halves of characters, which a client may send as \\ud800
            return json.dumps(content).encode()


class Refusal(HTTPException):
    """A request that is refused.

    Args:
        status: The status of the answer.
        sentence: What is wrong, and the way out.
        headers: Further headers of the answer.

    """

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)

    def answer(self) -> Response:
        """Return the answer."""
        return Json({"error": self.detail}, self.status_code, self.headers)


class GoneError(Exception):
    """The client closed its connection; nobody waits for an answer."""
