"""Attacks: none of them takes the server down, its memory, or the file."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import HEADERS, TOKEN, Asking, client, files, listening, photograph, photographs

from protograph.serve.access import Access
from protograph.serve.guard import Guard
from protograph.serve.limits import Limits
from protograph.serve.metrics import Metrics

FRAME = {"content-type": "multipart/form-data; boundary=frame"}
PART = b'--frame\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'


def test_two_gigabytes_without_a_length_are_refused_while_they_come(asking: Asking) -> None:
    held = [0]

    async def endless() -> AsyncIterator[bytes]:
        yield PART
        for _ in range(2000):
            held.append(asking.app.memory)
            yield bytes(1_000_000)

    answer = asking.post("/api/predict", content=endless(), headers=FRAME)
    assert answer.status_code == 413
    assert answer.json() == {"error": "a request may have 128,000,000 bytes at most: send fewer or smaller images at a time"}
    assert answer.headers["connection"] == "close"
    assert 100_000_000 < max(held) <= 129_000_000
    assert asking.app.memory == 0
    assert asking.get("/healthz").status_code == 200


def test_a_length_that_is_too_large_is_refused_at_once(asking: Asking) -> None:
    answer = asking.post("/api/predict", content=b"x", headers={**FRAME, "content-length": "2000000000"})
    assert answer.status_code == 413


def test_a_length_that_lies_changes_nothing(model: Path) -> None:
    with client(model, bytes=10_000) as asking:
        answer = asking.post("/api/predict", content=bytes(20_000), headers={**FRAME, "content-length": "10"})
        assert answer.status_code == 413


def test_all_requests_together_have_a_limit(model: Path) -> None:
    with client(model, memory=50_000) as asking:
        answer = asking.post("/api/predict", files=files([bytes(60_000)]))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert asking.post("/api/predict", files=files(photographs("red", 1))).status_code == 200


def test_ten_thousand_files_are_refused_at_the_first_too_many(asking: Asking) -> None:
    answer = asking.post("/api/predict", files=files([b"x"] * 10_000))
    assert answer.status_code == 413
    assert answer.json() == {"error": "a request may have 200 images at most: send further requests"}


def test_requests_at_a_time_have_a_limit(model: Path) -> None:
    with client(model, requests=2) as asking:

        async def many() -> list[int]:
            requests = [asking.http.post("/api/predict", files=files(photographs("red", 1))) for _ in range(12)]
            return [answer.status_code for answer in await asyncio.gather(*requests)]

        statuses = asking.call(many())
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        assert 503 in statuses
        assert asking.app.metrics.in_flight == 0
        assert asking.post("/api/predict", files=files(photographs("red", 1))).status_code == 200


def test_changes_need_the_token_whoever_asks(model: Path, asking: Asking) -> None:
    before = model.read_bytes()
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"cookie": f"token={TOKEN}"},
        {"origin": "https://evil.example"},
        {**HEADERS, "origin": "https://evil.example"},
        {**HEADERS, "host": "evil.example"},
    ):
        for route in ("classes", "classes/remove", "classes/rename", "classes/examples", "classes/relations", "history/undo"):
            answer = asking.post(f"/api/{route}?token={TOKEN}", json={"class": "red"}, headers=headers)
            assert answer.status_code in (401, 403, 421)
    assert model.read_bytes() == before
    assert (
        asking.post("/api/predict", files=files([photograph("red", 1)]), headers={"origin": "http://evil"}).status_code == 403
    )


def test_off_loopback_everything_but_the_page_needs_the_token(model: Path) -> None:
    with client(model, loopback=False) as asking:
        for path in ("/api/model", "/api/classes", "/metrics", "/api", "/api/openapi.json", "/api/events"):
            assert asking.get(path).status_code == 401
        assert asking.get("/api/model", headers=HEADERS).status_code == 200
        assert asking.post("/api/predict", files=files(photographs("red", 1))).status_code == 401
        assert asking.post("/api/predict", files=files(photographs("red", 1)), headers=HEADERS).status_code == 200
        assert [asking.get(path).status_code for path in ("/", "/healthz")] == [200, 200]


def asgi(guard: Guard, messages: list[dict[str, Any]], wait: float) -> list[dict[str, Any]]:
    """What the guard sends to a client that waits before each of its messages."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(wait)
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/predict",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")],
        "server": ("127.0.0.1", 80),
    }
    asyncio.run(guard(scope, receive, send))
    return sent


async def read_all(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.mark.parametrize(
    ("limits", "wait", "size", "status"),
    [
        ({"pause": 0.02}, 0.1, 10**6, 408),  # nothing comes
        ({"pause": 0.05, "rate": 1e6}, 0.01, 1, 408),  # hardly anything comes
        ({"pause": 0.2, "rate": 1}, 0.001, 10, 200),
        ({"bytes": 50}, 0.0, 30, 413),
    ],
)
def test_a_slow_client_is_given_up(limits: dict[str, Any], wait: float, size: int, status: int) -> None:
    guard = Guard(read_all, Access(TOKEN), Limits(**limits), Metrics())
    messages = [{"type": "http.request", "body": bytes(size), "more_body": index < 19} for index in range(20)]
    sent = asgi(guard, messages, wait)
    assert sent[0]["status"] == status
    assert guard.memory == 0
    assert guard.metrics.requests["POST", "other", status] == 1


def test_nobody_answers_a_client_that_has_gone() -> None:
    guard = Guard(read_all, Access(TOKEN), Limits(), Metrics())
    assert asgi(guard, [{"type": "http.request", "body": b"x", "more_body": True}], 0.0) == []
    assert guard.metrics.requests["POST", "other", 499] == 1


def test_a_client_that_takes_no_answer_is_given_up() -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": True})

    async def stuck(message: Any) -> None:
        await asyncio.sleep(60)

    guard = Guard(endless, Access(TOKEN), Limits(pause=0.02), Metrics())
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"localhost")]}
    asyncio.run(guard(scope, lambda: asyncio.sleep(60), stuck))  # type: ignore[arg-type]
    assert guard.metrics.in_flight == 0


def test_slow_and_broken_connections_are_closed_and_others_are_answered(model: Path) -> None:
    with listening(model, pause=0.3, bytes=5_000_000) as port:
        opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
        opened[0].sendall(b"GET /healthz HT")  # a head that never ends
        kind = b"Content-Type: multipart/form-data; boundary=frame"
        opened[1].sendall(b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n" + kind + b"\r\n\r\n--fr")
        opened[2].sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        opened[3].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        for connection in opened:
            connection.settimeout(10)
        answers = []
        for index, connection in enumerate(opened):
            with connection, suppress(ConnectionResetError):
                answer = connection.recv(65536)
                answers.append(answer.split(b"\r\n")[0])
                while index in (0, 1, 2) and connection.recv(65536):  # closed by the server
                    pass
        assert answers[0] == b""
        assert b" 408 " in answers[1]
        assert b" 400 " in answers[2]
        assert b" 200 " in answers[3]
        assert set(answers[4:]) == {b""}


def test_a_client_reads_why_its_body_was_too_large(model: Path) -> None:
    """The answer arrives, though the body was still on its way when it was refused."""
    with listening(model, bytes=1_000_000) as port:

        def body() -> Any:
            yield PART
            for _ in range(40):
                yield bytes(100_000)

        answer = httpx.post(f"http://127.0.0.1:{port}/api/predict", content=body(), headers=FRAME)
        assert answer.status_code == 413
        assert "1,000,000 bytes at most" in answer.json()["error"]


NO_JSON = "the body is no JSON object: send one, as application/json"


@pytest.mark.parametrize(
    ("route", "body", "sentence"),
    [
        ("classes/remove", b"[" * 200_000, NO_JSON),
        ("classes/remove", b'{"class": ' + b"9" * 5000 + b"}", NO_JSON),
        ("classes/remove", b"\xff\xfe", NO_JSON),
        ("classes/remove", b"null", NO_JSON),
        ("classes/remove", b'{"class": "\\ud800"}', "is not UTF-8: choose another"),
        ("classes/remove", b'{"class": "\\u0000"}', "the character NUL"),
        ("classes/remove", b'{"class": 1e400}', "there is no class 'inf'"),
        ("classes/rename", b'{"class": "red", "name": "\\ud800"}', "cannot be seen"),
        ("classes/examples/remove", b'{"class": "red", "indices": [-1]}', "no example -1"),
        ("classes/examples/remove", b'{"class": "red", "indices": [' + b"9" * 400 + b"]}", "no example 999"),
        ("classes/relations", b'{"class": "red", "similarities": {"green": NaN}}', "green is given nan"),
        ("classes/relations", b'{"class": "red", "similarities": {"\\ud800": 0.5}}', "\ud800"),
    ],
)
def test_any_body_is_answered_by_a_sentence(model: Path, asking: Asking, route: str, body: bytes, sentence: str) -> None:
    before = model.read_bytes()
    answer = asking.post(f"/api/{route}", content=body, headers={**HEADERS, "content-type": "application/json"})
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert model.read_bytes() == before
