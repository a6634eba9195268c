import builtins
import re
import sys
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import protograph.serve
from protograph import Classifier
from protograph.cli import app
from protograph.cli.serve import begin


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "birds.pg"
    Classifier.empty("conv4").save(path)
    return path


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--new",), "birds.pg is there already: leave out --new to serve it, or name another file"),
        (("--backbone", "conv4"), "--backbone conv4 would be ignored without --new: leave it out"),
        (("--relations", "wordnet"), "relation wordnet would be ignored, since the model names no such file: leave it out"),
        (("--unknown", "0.1"), "--unknown 0.1 would be ignored without --new: leave it out"),
        (("--backbone-weights", "x.pth", "--new"), "--backbone-weights would be ignored with --new"),
        (("--tls-cert", "x.pem"), "a certificate and its key belong together: give both --tls-cert and --tls-key"),
        (("--tls-cert", "x.pem", "--tls-key", "y.pem"), "there is no file x.pem: give a certificate and its key in PEM format"),
        (("--token", "short"), "a token needs at least 16 characters: leave it out to have one made"),
        (("--max-pixels", "65000000"), "an image may have 64,000,000 pixels at most"),
        (("--host", "203.0.113.1"), "cannot listen at 203.0.113.1, port 0"),
    ],
)
def test_mistakes_are_named_before_anything_begins(model: Path, options: tuple[str, ...], sentence: str) -> None:
    before = model.read_bytes()
    assert sentence in refused(str(model), "--port", "0", *options)
    assert model.read_bytes() == before


def test_a_file_that_is_not_there_is_named_with_what_begins_one(tmp_path: Path) -> None:
    assert "there is no model file at" in refused(str(tmp_path / "none.pg"), "--port", "0")


def test_a_missing_extra_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] in ("uvicorn", "fastapi", "starlette"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return usual(name, *arguments, **options)

    monkeypatch.setattr(protograph, "serve", protograph.serve)  # an import that fails half way replaces it
    for name in [name for name in sys.modules if name.startswith("protograph.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert 'serve needs packages that are not installed: pip install "protograph[serve]"' in refused(str(model))


def test_a_new_file_keeps_features_and_thumbnails(tmp_path: Path) -> None:
    begin(tmp_path / "new.pg", "conv4", None, 0.05)
    new = Classifier.load(tmp_path / "new.pg")
    assert (new.keep_features, new.thumbnails, new.unknown, len(new.classes_)) == (True, True, 0.05, 0)
    assert new.encoder_ is not None
    assert new.encoder_.description()["name"] == "conv4-64-128"


@pytest.mark.parametrize("asked", [True, False])
def test_the_link_is_printed_and_opened_only_if_asked(model: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr("protograph.serve.running.run_server", lambda *arguments: arguments[-1]())
    result = CliRunner().invoke(app, ["serve", str(model), "--port", "0", *(["--open"] if asked else [])])
    (link,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", result.stdout)
    assert opened == ([link] if asked else [])
