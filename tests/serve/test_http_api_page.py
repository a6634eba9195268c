"""The examples of docs/http-api.md run against a server, and print what the page shows."""

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import TOKEN, encoder, listening, photograph, photographs

from protograph import Classifier

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(curl|py)\n(.*?)^```\n\n```(?:json|text)\n(.*?)^```", re.M | re.S)
EXAMPLES = {kind: (code, shown) for kind, code, shown in BLOCK.findall(PAGE)}
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server of two birds, in a folder with the images that the page names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROTOGRAPH_TOKEN", TOKEN)
    images = [*photographs("red", 5), *photographs("green", 5)]
    Classifier(encoder()).fit(images, ["Cardinal"] * 5 + ["Finch"] * 5).save("birds.pg")
    Path("photo.jpg").write_bytes(photograph("red", 60))
    Path("jay.jpg").write_bytes(photograph("blue", 61))
    Path("jays").mkdir()
    for index, image in enumerate(photographs("blue", 3, 70)):
        Path(f"jays/{index}.jpg").write_bytes(image)
    with listening(Path("birds.pg")) as opened:
        yield opened


def test_the_example_with_curl_answers_what_the_page_shows(port: int) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    code, shown = EXAMPLES["curl"]
    command = shlex.split(code.replace(ADDRESS, f"http://127.0.0.1:{port}"))
    answer, wanted = json.loads(subprocess.run(command, check=True, capture_output=True).stdout), json.loads(shown)
    assert answer.keys() == wanted.keys()
    assert len(answer["version"]) == len(wanted["version"])
    (result,), (expected,) = answer["results"], wanted["results"]
    assert result["likeness"] == pytest.approx(expected["likeness"], rel=0.1)
    for nearest, other in zip(result["nearest"], expected["nearest"], strict=True):
        assert nearest == {"class": other["class"], "probability": pytest.approx(other["probability"], abs=0.01)}
    assert {name: result[name] for name in ("file", "class", "unknown")} == {
        name: expected[name] for name in ("file", "class", "unknown")
    }
    assert result.keys() == expected.keys()


def test_the_example_with_httpx_prints_what_the_page_shows(port: int) -> None:
    code, shown = EXAMPLES["py"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code.replace(ADDRESS, f"http://127.0.0.1:{port}"), "http-api.md", "exec"), {})
    assert printed.getvalue() == shown


def test_the_page_lists_every_route(port: int) -> None:
    import httpx

    described = httpx.get(f"http://127.0.0.1:{port}/api/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    table = PAGE.replace("undo`, `/api", "undo`, `POST /api")
    assert routes == set(re.findall(r"`((?:GET|POST) [\w/]+)`", table))
