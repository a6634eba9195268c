"""Names of classes and files with control characters, through every verb of a model file: shown, and sent by `--json` alone."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from kept import blobs
from protograph.cli import app

HOSTILE = "\x1b[31mred\x1b]0;title\x07\u202e\x9b"
FEATURES, LABELS = blobs()


def protograph(*arguments: Any) -> Result:
    result = CliRunner(env={"TERM": "xterm-256color", "COLUMNS": "120"}).invoke(app, [*map(str, arguments)])
    assert result.exit_code in (0, 2), result.exception
    return result


def is_sent(letter: str) -> bool:
    return letter == "\u202e" or (unicodedata.category(letter) == "Cc" and letter not in "\n\t")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of a class, and files of features, that have such names."""
    monkeypatch.chdir(tmp_path)
    labels = [f"a{HOSTILE}" if label == "a" else label for label in LABELS]
    np.savez(f"all{HOSTILE}.npz", vectors=FEATURES.astype(np.float32), labels=np.array(labels))
    np.savez(f"one{HOSTILE}.npz", vectors=FEATURES[:1].astype(np.float32))
    fitted = protograph("fit", f"all{HOSTILE}.npz", "--out", f"own{HOSTILE}.pg", "--keep-features")
    assert fitted.exit_code == 0, fitted.stderr
    return tmp_path


VERBS: dict[str, tuple[str, ...]] = {
    "classes": ("{model}",),
    "predict": ("{model}", "{one}"),
    "explain": ("{model}", "{one}"),
    "inspect": ("{model}",),
    "check": ("{model}",),
    "evaluate": ("{model}", "{all}"),
    "add-class": ("{model}", "new{name}", "{one}"),
    "add-examples": ("{model}", "a{name}", "{one}"),
    "correct": ("{model}", "{one}", "a{name}"),
    "rename-class": ("{model}", "b", "b{name}"),
    "remove-class": ("{model}", "a{name}"),
    "remove-examples": ("{model}", "a{name}", "1"),
    "relate": ("{model}", "a{name}", "--like", "b=0.5"),
    "history": ("{model}",),
    "export": ("{model}", "--out", "net{name}.onnx"),
}
MISTAKES: dict[str, tuple[str, ...]] = {
    "undo": ("{model}",),
    "classes": ("gone{name}.pg",),
    "inspect": ("{one}",),
    "predict": ("{model}", "gone{name}.npz"),
    "add-class": ("{model}", "a{name}", "{one}"),
    "remove-class": ("{model}", "gone{name}"),
    "compare": ("gone{name}",),
    "fit": ("gone{name}.npz", "--out", "x.pg"),
    "embed": ("gone{name}", "--out", "features"),
    "figures": ("shots", "--results", "gone{name}"),
}


def filled(arguments: tuple[str, ...]) -> list[str]:
    names = {"name": HOSTILE, "model": f"own{HOSTILE}.pg", "one": f"one{HOSTILE}.npz", "all": f"all{HOSTILE}.npz"}
    return [argument.format(**names) for argument in arguments]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "arguments", "code"),
    [*((*item, 0) for item in VERBS.items()), *((*item, 2) for item in MISTAKES.items())],
)
def test_control_characters_are_shown(folder: Path, verb: str, arguments: tuple[str, ...], code: int) -> None:
    result = protograph(verb, *filled(arguments))
    assert result.exit_code == code, result.output
    assert not [letter for letter in result.output if is_sent(letter)], result.output.encode()


@pytest.mark.slow
def test_json_has_the_names_themselves(folder: Path) -> None:
    values = json.loads(protograph("classes", *filled(("{model}",)), "--json").stdout)
    assert f"a{HOSTILE}" in [known["class"] for known in values["classes"]]
