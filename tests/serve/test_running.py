"""The server as a process: TLS, graceful stop, kills, two writers, the stream of changes."""

import asyncio
import json
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served import HEADERS, TOKEN, Running, files, listening, photograph, photographs, running

from protograph import Classifier, InputError
from protograph.serve.access import Access
from protograph.serve.running import Place

pytestmark = pytest.mark.slow


def test_a_place_says_its_link_and_refuses_what_cannot_be() -> None:
    assert Place().link(8000, "t") == "http://127.0.0.1:8000/?token=t"
    assert Place("::1", certificate=Path("c"), key=Path("k")).link(1, "t") == "https://[::1]:1/?token=t"
    assert Place("0.0.0.0").link(1, "t").startswith("http://")
    assert "0.0.0.0" not in Place("0.0.0.0").link(1, "t")
    assert Place("localhost").loopback
    assert not Place("0.0.0.0").loopback
    with Place(port=0).bind() as bound:
        port = bound.getsockname()[1]
        with pytest.raises(InputError, match=f"cannot listen at 127.0.0.1, port {port} .*: choose another --port"):
            Place(port=port).bind()
    with pytest.raises(InputError, match=r"cannot listen at 203.0.113.1"):
        Place("203.0.113.1").bind()


def test_pages_are_told_of_each_change_at_once(model: Path) -> None:
    with listening(model) as port, httpx.stream("GET", f"http://127.0.0.1:{port}/api/events", timeout=20) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        first = json.loads(next(lines)[6:])
        remove = f"http://127.0.0.1:{port}/api/classes/remove"
        changed = httpx.post(remove, headers=HEADERS, json={"class": "red"}, timeout=20).json()
        assert json.loads(next(lines)[6:]) == {"version": changed["version"], "what": "removed 'red'"}
        Classifier.undo(model)
        assert json.loads(next(lines)[6:]) == {"version": first["version"], "what": "undone: removed 'red'"}


def slow_body(content: bytes, wait: float) -> Iterator[bytes]:
    """A form with an image whose last part comes late."""
    body = (
        b'--frame\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n' + content + b"\r\n--frame--\r\n"
    )
    yield body[:2000]
    time.sleep(wait)
    yield body[2000:]


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_requests_in_flight_are_answered_before_the_server_ends(model: Path, kind: int) -> None:
    with running(model) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as asking:
        assert server.link == f"http://127.0.0.1:{server.port}/?token={TOKEN}"
        with httpx.stream("GET", f"http://127.0.0.1:{server.port}/api/events", timeout=20) as page:
            events = page.iter_lines()
            assert next(events) == "event: version"
            threading.Timer(0.3, server.process.send_signal, [kind]).start()
            answer = asking.post(
                "/api/predict",
                content=slow_body(photograph("red", 1, (200, 200)), 1.0),
                headers={"content-type": "multipart/form-data; boundary=frame"},
            )
            assert answer.json()["results"][0]["class"] == "red"
            assert [line for line in events if line.startswith("event")] == []  # the stream of the page has ended
        assert server.process.wait(20) == 0
        output, errors = server.process.communicate()
        assert output == "stopped\n"
        assert errors == ""


def test_the_log_names_neither_files_nor_classes_nor_tokens(model: Path) -> None:
    with running(model, "--log") as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as asking:
        asking.get("/", params={"token": TOKEN})
        asking.get("/api/classes/examples", params={"class": "secret-class"})
        asking.get("/secret-path")
        asking.post("/api/predict", files={"images": ("secret-file.jpg", photograph("red", 1))})
        asking.post("/api/classes", headers=HEADERS, files=files([b"x"]), data={"name": "secret-class"})
        asking.post("/api/predict", content=b"secret", headers={"content-type": "multipart/form-data; boundary=x"})
        server.stop()
        _, log = server.process.communicate()
    lines = log.splitlines()
    assert len(lines) == 6
    assert lines[3].split(" ", 2)[2].startswith("POST /api/predict 200 ")
    assert "secret" not in log
    assert TOKEN not in log


def test_a_certificate_makes_it_https(model: Path, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    with running(model, "--tls-cert", str(certificate), "--tls-key", str(key)) as server:
        assert server.link.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(certificate))
        with httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=trusting, timeout=20) as asking:
            assert asking.get("/healthz").json() == {"status": "ok"}
            headers = {"origin": f"https://127.0.0.1:{server.port}"}
            assert asking.post("/api/predict", files=files(photographs("red", 1)), headers=headers).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{server.port}/healthz")
        assert server.stop() == 0


def test_the_command_and_the_server_change_the_file_at_once(model: Path, tmp_path: Path) -> None:
    image = tmp_path / "blue.jpg"
    image.write_bytes(photograph("blue", 1))
    with listening(model) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=HEADERS) as asking:
        verb = [sys.executable, "-m", "protograph", "add-class", str(model), "by-command", str(image)]
        command = subprocess.Popen(verb, stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(sys.path)})
        added = 0
        while command.poll() is None or added < 3:
            answer = asking.post("/api/classes", files=files(photographs("blue", 1)), data={"name": f"by-server-{added}"})
            assert answer.status_code == 200
            added += 1
        assert command.wait() == 0
        command.communicate()
        known = {row["class"] for row in asking.get("/api/classes").json()["classes"]}
    assert known == {"red", "green", "by-command", *(f"by-server-{index}" for index in range(added))}
    assert {*Classifier.load(model).classes_.tolist()} == known


def test_off_loopback_the_own_address_is_answered_with_the_token_alone(model: Path) -> None:
    with listening(model, Access(TOKEN, loopback=False)) as port:
        address = f"http://127.0.0.1:{port}"
        assert httpx.get(f"{address}/api/model").status_code == 401
        assert httpx.get(f"{address}/api/model", headers=HEADERS).status_code == 200
        assert httpx.get(f"{address}/api/model", headers={**HEADERS, "host": "evil.example"}).status_code == 421


def teach_and_kill(model: Path, count: int, delay: float) -> set[str]:
    """Teach classes until the server is killed, a moment after so many were confirmed; return all that were."""
    confirmed: set[str] = set()
    enough = threading.Event()

    def kill(server: Running) -> None:
        enough.wait(60)
        time.sleep(delay)
        server.process.kill()

    with running(model) as server:
        killer = threading.Thread(target=kill, args=(server,))
        killer.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20, headers=HEADERS) as asking:
                while True:
                    name = f"class-{random.getrandbits(64):x}"
                    answer = asking.post("/api/classes", files=files(photographs("blue", 1)), data={"name": name})
                    assert answer.status_code == 200
                    confirmed.add(name)
                    if len(confirmed) >= count:
                        enough.set()
        except httpx.TransportError:
            pass
        killer.join()
    return confirmed


def test_a_kill_leaves_the_file_whole_with_all_that_was_confirmed(model: Path) -> None:
    confirmed: set[str] = set()
    for count, delay in ((1, 0.01), (3, 0.08)):
        taught = teach_and_kill(model, count, delay)
        assert len(taught) >= count
        confirmed |= taught
        known = {*Classifier.load(model).classes_.tolist()}
        assert {"red", "green"} | confirmed <= known
        assert len(known - confirmed) <= 4  # one at most whose answer was on its way, for each kill


def test_answers_do_not_wait_for_the_client_between_head_and_body() -> None:
    seen = []

    class Recording(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()

    async def connect() -> None:
        with Place(port=0).bind() as bound:
            server = await asyncio.get_running_loop().create_server(Recording, sock=bound)
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            assert await reader.read() == b""
            writer.close()
            server.close()

    asyncio.run(connect())
    assert seen == [1]
