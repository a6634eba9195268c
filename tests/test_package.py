"""The package as users get it: the built wheel, the bare source folder, the README's example."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import protograph

ROOT = Path(__file__).parents[1]
SOURCE = {"PYTHONPATH": str(ROOT / "src")}


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the dependencies and not Protograph."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    # Names in a .pth file are searched, but their own .pth files (such as an editable install's) are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    missing = subprocess.run([python, "-c", "import protograph"], capture_output=True, text=True, cwd=folder)
    assert "No module named 'protograph'" in missing.stderr
    return python


def run(*command: object, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, **variables}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


TINY = ("--set", "epochs=1", "--set", "steps=2", "--set", "episodes=1", "--set", "validation_episodes=2")


@pytest.mark.slow
def test_runs_from_its_source_folder_uninstalled(clean_python: Path, tmp_path: Path) -> None:
    assert "gcgpn-aux-split" in run(clean_python, "-m", "protograph", "variants", cwd=tmp_path, **SOURCE)


@pytest.mark.slow
def test_the_wheel_runs_the_command_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    site = next(clean_python.parents[1].glob("lib/python*/site-packages"))
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    assert (site / "protograph" / "py.typed").exists()
    assert (site / "protograph" / "__init__.pyi").exists()
    assert (site / "protograph" / "paper" / "gfsl.csv").exists()
    assert (site / "protograph" / "report" / "templates" / "style.css").exists()
    page = "from protograph.report.document import Heading, as_html; print(as_html('Page', [Heading(1, 'Title')]))"
    assert "<h1>Title</h1>" in run(clean_python, "-c", page, cwd=tmp_path)
    out = run(clean_python, "-m", "protograph", "train", *TINY, "--out", tmp_path / "run", "--json", cwd=tmp_path)
    assert '"h_mean"' in out
    assert (tmp_path / "run" / "operator.png").exists()


@pytest.mark.slow
def test_public_names_are_imported_once_one_is_asked_for(tmp_path: Path) -> None:
    loaded = "print([name for name in ('torch', 'sklearn') if name in sys.modules])"
    asked = f"import sys, protograph; {loaded}; protograph.train; {loaded}; protograph.Classifier; {loaded}"
    said = run(sys.executable, "-c", asked, cwd=tmp_path, **SOURCE)
    assert said.splitlines() == ["[]", "['torch']", "['torch', 'sklearn']"]


def test_public_names_are_listed_and_no_others_answered() -> None:
    everything: dict[str, object] = {}
    exec("from protograph import *", everything)
    assert {*protograph.__all__} == everything.keys() - {"__builtins__"} <= {*dir(protograph)}
    for name in ("Clasifier", "import_items", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"'protograph' has no attribute '{name}'"):
            getattr(protograph, name)


@pytest.mark.parametrize("name", protograph.__all__)
def test_public_names_can_be_imported(name: str) -> None:
    assert getattr(protograph, name) is not None


def test_the_readme_names_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make (\w+)`|^make (\w+)", text, re.MULTILINE))
    assert targets
    for target in (first or second for first, second in targets):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.slow
def test_wheel_and_source_distribution_can_be_rebuilt_bit_for_bit(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "rebuild.py"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    built = subprocess.run([sys.executable, script, tmp_path], env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz", ".whl"]
