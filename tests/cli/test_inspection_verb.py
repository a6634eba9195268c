"""The verb inspect."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from protograph.cli import app

MODEL = Path(__file__).parents[1] / "classifier" / "data_files" / "v0.1.pg"


def inspect(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}).invoke(app, ["inspect", *map(str, arguments)])


def test_a_file_is_shown() -> None:
    shown = inspect(MODEL)
    assert shown.exit_code == 0
    for text in (
        "4,832 bytes",
        "gcgpn-aux",
        "letter, look, by hand",
        "relation.1.table",
        "beside the file, nothing would be opened",
    ):
        assert text in shown.stdout


def test_as_json() -> None:
    result = json.loads(inspect(MODEL, "--json").stdout)
    assert result["metadata"]["version"] == "1"
    assert result["parts"]["classes"] == 7
    assert {"name": "support", "dtype": "F32", "shape": [3, 5], "size": 60} in result["tensors"]


@pytest.mark.parametrize("content", [b"", b"\x1b[31m"])
def test_anything_else_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.pg").write_bytes(content)
    shown = inspect(tmp_path / "own.pg")
    assert (shown.exit_code, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
