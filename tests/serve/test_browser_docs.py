"""What docs/serve.md shows of the API runs as it stands there."""

import re
import subprocess
from pathlib import Path

import httpx
import pytest
from browser import Server
from drawings import drawing

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"
WRITTEN = "http://127.0.0.1:8000"


def block(kind: str) -> str:
    (code,) = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.mark.slow
def test_the_examples_of_the_api_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("apple", "pear", "banana"):
        drawing(name, 9, 120).save(f"{name}.jpg")
    Path("banana.jpg").rename("quince.jpg")
    server = Server(tmp_path / "fruit.pg", size=64)
    server.start()
    try:
        for name in ("apple", "pear"):
            images = [tmp_path / f"{name}-{seed}.jpg" for seed in range(3)]
            for seed, image in enumerate(images):
                drawing(name, seed, 120).save(image)
            server.teach(name, images)
        address = server.address.rstrip("/")
        commands = f"set -eu\nTOKEN={server.token}\n{block('shell')}".replace(WRITTEN, address)
        subprocess.run(["bash", "-c", commands.replace("curl ", "curl --silent --fail ")], check=True)
        answered = capfd.readouterr().out
        assert '"apple"' in answered
        assert "added 'quince' from 1 image" in answered
        exec(compile(block("py").replace(WRITTEN, address), str(PAGE), "exec"), {"token": server.token, "httpx": httpx})
        assert capfd.readouterr().out.splitlines() == ["apple", "undone: added 1 image to 'pear'"]
    finally:
        server.stop()
