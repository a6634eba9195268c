import json
import threading
from pathlib import Path

import pytest
from served import HEADERS, Asking, client, files, photographs

from protograph import Classifier
from protograph.serve.model_host import ModelHost

ROUTES = (
    ("GET", "/"),
    ("GET", "/api"),
    ("GET", "/api/style.css"),
    ("GET", "/api/openapi.json"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
    ("GET", "/api/model"),
    ("GET", "/api/classes"),
    ("GET", "/api/check"),
    ("GET", "/api/history"),
    ("GET", "/nowhere"),
    ("POST", "/api/predict"),
    ("POST", "/api/classes/remove"),
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_answer_has_the_security_headers(asking: Asking, method: str, path: str) -> None:
    for headers in ({}, HEADERS):
        answer = asking.request(method, path, headers=headers)
        assert answer.status_code < 500
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert "server" not in answer.headers
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_no_page_has_inline_script_or_style(asking: Asking) -> None:
    for path in ("/", "/api"):
        text = asking.get(path).text.lower()
        assert "<style" not in text
        assert " style=" not in text
        assert " onclick" not in text
        assert "javascript:" not in text
        for script in text.split("<script")[1:]:
            assert "src=" in script.split(">")[0]
            assert script.split(">", 1)[1].startswith("</script>")


def test_files_of_the_page_are_served_and_no_others(asking: Asking) -> None:
    page = asking.get("/")
    assert page.headers["content-type"].startswith("text/html")
    again = asking.get("/", headers={"if-none-match": page.headers["etag"]})
    assert page.headers["etag"] == again.headers["etag"]
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page//etc/passwd", "/page/", "/page/views"):
        assert asking.get(path).status_code == 404


def test_the_description_names_every_route(asking: Asking) -> None:
    described = asking.get("/api/openapi.json").json()
    assert {"/api/predict", "/api/explain", "/api/classes", "/api/check", "/api/history/undo", "/healthz", "/metrics"} <= {
        *described["paths"]
    }
    page = asking.get("/api").text
    for path, methods in described["paths"].items():
        assert f"<code>{path}</code>" in page
        for route in methods.values():
            assert route["description"]
    body = described["paths"]["/api/predict"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert body["required"] == ["images"]


def test_mistakes_at_an_address_are_json(asking: Asking) -> None:
    assert asking.get("/nowhere").json() == {"error": "there is nothing at this address: see /api"}
    assert asking.get("/api/predict").json() == {"error": "this route takes another method: see /api"}
    assert asking.get("/healthz").json() == {"status": "ok"}


def test_metrics_count_what_was_asked(asking: Asking) -> None:
    asking.post("/api/predict", files=files([*photographs("red", 3), b"no image"]))
    asking.get("/a-private-name")
    lines = asking.get("/metrics").text.splitlines()
    assert 'protograph_requests_total{method="POST",route="/api/predict",status="200"} 1' in lines
    assert "protograph_images_total 3" in lines
    assert "protograph_unreadable_images_total 1" in lines
    assert "protograph_classes 2" in lines
    assert "private" not in "".join(lines)


def test_a_defect_is_answered_and_logged_without_what_users_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: ModelHost) -> None:
        raise RuntimeError("secret-name.jpg")

    with client(model) as asking:
        monkeypatch.setattr(ModelHost, "current", broken)
        answer = asking.get("/api/classes", params={"secret": "secret-name"})
        monkeypatch.undo()
    assert answer.status_code == 500
    assert "defect" in answer.json()["error"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "RuntimeError at" in caplog.text
    assert "secret" not in caplog.text


def test_pages_hear_of_changes_by_the_command(model: Path, asking: Asking) -> None:
    """The stream itself is read over a socket (test_running.py): the test client would wait for its end."""
    host = asking.application.host
    heard: list[tuple[str, str | None]] = []
    changed = threading.Event()

    def hear(version: str, what: str | None) -> None:
        heard.append((version, what))
        changed.set()

    host.announce = hear
    with Classifier.edit(model) as classifier:
        classifier.rename_class("red", "scarlet")
    assert changed.wait(10)
    ((version, what),) = heard
    assert what == "renamed 'red' to 'scarlet'"
    assert asking.get("/api/model").json()["version"] == version
    assert json.loads(asking.get("/api/classes").text)["classes"][1]["class"] == "scarlet"
