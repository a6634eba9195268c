import csv
import errno
import functools
import gc
import hashlib
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from protograph import cli
from protograph.cli import app, demo
from protograph.cli.jobs import JOB
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.report import figures
from protograph.training import loop as training
from protograph.training import recipes
from protograph.training.run_folder import Run
from protograph.variants import OPERATORS, VARIANTS

SHORT = {
    "epochs": 1, "steps": 2, "episodes": 2, "ways": 3, "novel_queries": 2, "seen_queries": 6, "validation_episodes": 3,
    "test_queries": 6,
}  # fmt: skip
SETS = [f"--set={name}={value}" for name, value in SHORT.items()]
VERBS = {
    "train": [
        "--dataset",
        "--root",
        "--variant",
        "--shots",
        "--recipe",
        "--seed",
        "--relations",
        "--out",
        "--start",
        "--set",
        "--json",
    ],
    "evaluate": ["--root", "--shots", "--episodes", "--split", "--epoch", "--device", "--json"],
    "demo": ["--all", "--out", "--seed", "--device", "--json"],
    "reproduce": [
        "--dataset",
        "--shots",
        "--variant",
        "--table",
        "--recipe",
        "--seeds",
        "--jobs",
        "--list",
        "--engine",
        "--set",
    ],
    "variants": ["--plugin", "--json"],
    "datasets": ["--plugin", "--json"],
}


def protograph(*arguments: str | Path) -> Result:
    environment = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PROTOGRAPH_DATA": None}
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], prog_name="protograph")


def train(*arguments: str | Path) -> Result:
    return protograph("train", "--dataset=toy", "--device=cpu", *SETS, *arguments)


def die(*_: Any) -> None:
    raise KeyboardInterrupt


def check_refused(result: Result, *named: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that names all of these."""
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for words in named:
        assert words in result.stderr


@pytest.fixture(autouse=True)
def toy_source(toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """`toy` known by its name to the command."""
    monkeypatch.setitem(
        DATASETS,
        "toy",
        DatasetSource(lambda root, progress, skip_bad: toy, "conv4-32", "noisy patterns", built_in=True),
    )


@pytest.fixture
def registry() -> Iterator[Callable[[], None]]:
    """Forgets, when called and at the end, what a plugin registered."""
    known = dict(VARIANTS), dict(OPERATORS)

    def restore() -> None:
        for registered, before in zip((VARIANTS, OPERATORS), known, strict=True):
            registered.clear()
            registered.update(before)

    yield restore
    restore()


def imported(*arguments: str | Path) -> set[str]:
    """The modules that the command imports in a process of its own."""
    command = [sys.executable, "-X", "importtime", "-m", "protograph", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    said = subprocess.run(command, capture_output=True, text=True, env=environment).stderr
    return {line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")}


@pytest.fixture(scope="module")
def finished(toy: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be read and not changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            DATASETS,
            "toy",
            DatasetSource(lambda root, progress, skip_bad: toy, "conv4-32", "noisy patterns", built_in=True),
        )
        result = train("--out", folder, "--variant=aux-only", "--set=epochs=2", "--set=steps=8")
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run killed when its training was done and its test was not."""
    with monkeypatch.context() as patch:
        patch.setattr(training, "conclude", die)
        assert train("--out", tmp_path / "run").exit_code == 130
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    return tmp_path / "run"


@pytest.mark.parametrize("verb", VERBS)
def test_help_mentions_every_option(verb: str) -> None:
    result = protograph(verb, "--help")
    assert result.exit_code == 0
    for option in VERBS[verb]:
        assert option in result.stdout


def test_help_lists_every_verb() -> None:
    result = protograph("--help")
    assert result.exit_code == 0
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_examples_in_the_help_are_commands_that_it_describes(verb: str) -> None:
    command = cli.find_verb(verb)
    for described, prefix in (
        (command, [verb]),
        *((sub, [verb, name]) for name, sub in getattr(command, "commands", {}).items()),
    ):
        examples = [shlex.split(line) for line in described.help.partition("Examples:\n")[2].splitlines()]
        assert examples
        for words in examples:
            assert words[0] == "protograph"
            assert len(shlex.join(words)) <= 78, "fits a narrow terminal"
            assert words[1 : 1 + len(prefix)] == prefix
            described.make_context(" ".join(words[: 1 + len(prefix)]), words[1 + len(prefix) :], parent=None)


def test_the_overview_begins_with_fit() -> None:
    shown = protograph("--help").stdout
    assert shown.index(" fit ") < shown.index(" demo ") < shown.index(" reproduce ")
    assert next(iter(cli.VERBS)) == "fit"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_the_overview_has_the_first_line_of_every_verbs_help(verb: str) -> None:
    assert cli.find_verb(verb).help.splitlines()[0] == cli.VERBS[verb][1]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"], ["trian"], ["--nosuch"]], ids=" ".join)
def test_what_names_no_verb_imports_none(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert "protograph.cli" in modules
    assert not modules & {"torch", "matplotlib", "numpy"}


@pytest.mark.slow
def test_what_draws_nothing_imports_nothing_to_draw_with() -> None:
    for arguments in (
        ["variants"],
        ["train", "--dataset=nosuch"],
        ["fit", "--help"],
        ["predict", "--help"],
        ["relations", "--help"],
    ):
        modules = imported(*arguments)
        assert "torch" in modules
        assert not modules & {"matplotlib", "sklearn"}, arguments


def test_garbage_is_collected_again_once_a_verb_is_imported_or_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    cli.find_verb("variants")
    assert gc.isenabled()
    monkeypatch.setitem(cli.VERBS, "absent", ("absent:absent_command", ""))
    with pytest.raises(ModuleNotFoundError):
        cli.find_verb("absent")
    assert gc.isenabled()


@pytest.mark.slow
def test_variants_and_datasets_are_listed_for_people_and_machines() -> None:
    for verb, known in (("variants", VARIANTS), ("datasets", DATASETS)):
        listed = protograph(verb, "--json")
        assert json.loads(listed.stdout).keys() == known.keys()
        assert all(name in protograph(verb).stdout for name in known)


@pytest.mark.parametrize(
    ("option", "wrong", "nearest"),
    [
        ("--variant", "gcgpn-axu", "gcgpn-aux"),
        ("--dataset", "leters", "letters"),
        ("--recipe", "papr", "paper"),
        ("--backbone", "conv4-23", "conv4-32"),
        ("--relations", "kinshop", "kinship"),
        ("--relations", "zzz", "kinship"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(tmp_path: Path, option: str, wrong: str, nearest: str) -> None:
    check_refused(train("--out", tmp_path / "run", option, wrong), f"'{wrong}'", nearest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--shots=11"], ["11 shots", "2 queries", "13", "12", "fewer"]),
        (["--shots=0"], ["shots", "at least 1"]),
        (["--set=ways=7"], ["7 ways", "6 novel", "fewer"]),
        (["--set=test_queries=12"], ["12 queries", "13", "fewer"]),
        (["--set=epochz=3"], ["'epochz'", "epochs"]),
        (["--set=epochs"], ["NAME=VALUE", "'epochs'"]),
        (["--set=epochs=many"], ["'epochs'", "whole number", "'many'"]),
        (["--set=epochs=0"], ["epochs", "at least 1", "0"]),
        (["--set=momentum=0"], ["momentum", "nesterov"]),
        (["--device=cuda:99"], ["'cuda:99'", "use auto or cpu"]),
        (["--device=toaster"], ["'toaster'", "use auto or cpu"]),
        (["--device=meta"], ["'meta'", "use auto or cpu"]),
        (["--plugin=absent.py"], ["absent.py"]),
        (["--config=absent.toml"], ["absent.toml"]),
        (["--relations=absent.csv"], ["absent.csv"]),
        (["--variant=aux-only", "--relations=kinship"], ["aux-only", "kinship"]),
        (["--variant=aux-only", "--start=elsewhere"], ["aux-only", "no other run", "elsewhere"]),
        (["--variant=aux-only", "--set=batch_size=8"], ["aux-only", "'batch_size'", "leave it out"]),
        (["--variant=pn+"], ["pn+", "'seen_queries'", "leave it out"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_a_setting_that_cannot_be_used_is_refused_by_name(tmp_path: Path, arguments: list[str], named: list[str]) -> None:
    check_refused(train("--out", tmp_path / "run", *arguments), *named)
    assert list(tmp_path.iterdir()) == []


def write_matrix(path: Path, names: list[str], matrix: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, names=np.array(names), similarities=matrix)
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["", *names], *([name, *row] for name, row in zip(names, matrix, strict=False))])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_similarity_matrix_that_does_not_fit_is_refused(toy: Dataset, tmp_path: Path, suffix: str) -> None:
    names, whole = list(toy.classes), np.eye(len(toy.classes))
    hole = whole.copy()
    hole[3, 5] = np.nan
    path = tmp_path / f"own{suffix}"
    for content, named in (
        ((names, whole[:-1]), ["24 x 25", "one row and column per class"]),
        ((names, hole), [names[3], names[5], "finite"]),
        ((names[:-2], whole[:-2, :-2]), [f"'{names[-2]}'", "1 more", "row and column"]),
    ):
        write_matrix(path, *content)
        check_refused(train("--out", tmp_path / "run", "--relations", path), path.name, *named)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_similarity_matrix_serves_as_relation(toy: Dataset, tmp_path: Path, suffix: str) -> None:
    names = list(reversed(toy.classes))
    path = write_matrix(tmp_path / f"own{suffix}", names, np.eye(len(names)))
    result = train("--out", tmp_path / "run", "--relations", path, "--relations=kinship")
    assert result.exit_code == 0, result.stderr
    learned = json.loads((tmp_path / "run" / "epochs.jsonl").read_text())["learned"]
    assert {"scale own", "scale kinship"} <= learned.keys()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_left_alone(unfinished: Path) -> None:
    path = unfinished / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    for result in (train("--out", unfinished), protograph("evaluate", unfinished)):
        check_refused(result, "checkpoint.safetensors is damaged", "train again")
    assert path.read_bytes() == bytes(content)
    assert not (unfinished / "measures.json").exists()


@pytest.mark.slow
def test_a_run_folder_of_another_configuration_is_refused_and_left_alone(finished: Path) -> None:
    before = {file.name: file.read_bytes() for file in finished.iterdir()}
    check_refused(train("--out", finished, "--seed=5"), str(finished), "seed is 0 there, not 5", "--out")
    assert {file.name: file.read_bytes() for file in finished.iterdir()} == before


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    check_refused(train("--out", tmp_path), str(tmp_path), "not a run folder", "--out")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_refused(train("--out", tmp_path / "file" / "run"), str(tmp_path / "file"))


@pytest.mark.slow
@pytest.mark.parametrize("room", range(5))
def test_a_disk_that_runs_full_leaves_whole_files_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The disk has room for so many of the five files that a run of one epoch writes."""
    sync, synced = os.fsync, 0

    def until_full(descriptor: int) -> None:
        nonlocal synced
        synced += 1
        if synced > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", until_full)
        check_refused(train("--out", tmp_path / "run", "--json"), "No space left on device", "same command", "--out")
    assert not [file for file in (tmp_path / "run").iterdir() if file.name.startswith(".")]
    assert len(list((tmp_path / "run").iterdir())) == room
    result = train("--out", tmp_path / "run")
    assert result.exit_code == 0, result.stderr


@pytest.mark.slow
def test_a_real_limit_on_file_sizes_is_reported_in_one_line(letters: Dataset, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "protograph", "train", f"--out={tmp_path / 'run'}", *SETS],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    *_, last = ended.stderr.splitlines()
    assert last.startswith("error: cannot read or save: File too large")
    assert "Traceback" not in ended.stderr
    assert {file.name for file in (tmp_path / "run").iterdir()} == {"config.json", "environment.json"}


@pytest.mark.slow
def test_train_prints_nothing_but_json_for_machines(tmp_path: Path) -> None:
    result = train("--out", tmp_path / "run", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((tmp_path / "run" / "measures.json").read_text())
    assert result.stderr == ""


@pytest.mark.slow
def test_one_of_several_runs_says_where_it_stands_beside_its_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB, "1")
    result = train("--out", tmp_path / "run", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "run" / "measures.json").read_text())
    assert "epoch   1" in result.stderr


def test_several_seeds_do_not_share_a_start_that_is_still_to_be_trained(tmp_path: Path) -> None:
    several = "--seed=0", "--seed=1", "--variant=dfslwof-att", "--start", tmp_path / "first", "--out", tmp_path / "both"
    check_refused(train(*several), "first is not trained", "leave out --start, so that each seed gets a start of its own")
    check_refused(train("--jobs=2", "--out", tmp_path / "both"), "--jobs 2 would be ignored for a single run")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_train_prints_a_table_for_people_and_progress_beside_it(tmp_path: Path) -> None:
    result = train("--out", tmp_path / "run")
    assert "H-Mean" in result.stdout
    assert "epoch   1" not in result.stdout
    assert "epoch   1" in result.stderr
    names = {"config.json", "environment.json", "epochs.jsonl", "checkpoint.safetensors", "measures.json"}
    images = {"curves.png", "episode.png", "operator.png"}
    assert {file.name for file in (tmp_path / "run").iterdir()} == names | images


@pytest.mark.slow
def test_a_finished_run_prints_its_result_again(finished: Path) -> None:
    before = (finished / "measures.json").read_bytes()
    result = train("--out", finished, "--variant=aux-only", "--set=epochs=2", "--set=steps=8", "--json")
    assert json.loads(result.stdout) == json.loads(before)
    assert (finished / "measures.json").read_bytes() == before


@pytest.mark.slow
def test_images_that_an_interruption_prevented_are_drawn_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(figures, "draw_operator", die)
        assert train("--out", tmp_path / "run").exit_code == 130
    assert train("--out", tmp_path / "run").exit_code == 0
    assert (tmp_path / "run" / "operator.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("changes", [["--set=test_queries=2"], ["--set=ways=1"], ["--shots=4"]], ids=str)
def test_small_and_large_episodes_can_be_trained_and_drawn(tmp_path: Path, changes: list[str]) -> None:
    result = train("--out", tmp_path / "run", *changes)
    assert result.exit_code == 0, repr(result.exception)
    assert (tmp_path / "run" / "episode.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("epoch", ["best", "last"])
def test_evaluate_reproduces_the_measures_of_a_run(finished: Path, epoch: str) -> None:
    result = protograph("evaluate", finished, "--json", f"--epoch={epoch}", "--device=cpu")
    assert result.exit_code == 0, result.stderr
    recorded = json.loads((finished / "measures.json").read_text())
    expected = recorded["measures"] if epoch == "best" else recorded["last_epoch"]["measures"]
    assert json.loads(result.stdout)["measures"] == expected


def test_evaluate_keeps_to_float32_where_the_run_was_trained_in_it(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where training itself would now choose bfloat16."""
    monkeypatch.setattr("protograph.cli.options.best_precision", lambda device: "bfloat16")
    test_evaluate_reproduces_the_measures_of_a_run(finished, "best")


def test_evaluate_takes_other_episodes_than_the_run_had(finished: Path) -> None:
    result = protograph(
        "evaluate", finished, "--json", "--shots=3", "--ways=2", "--queries=4", "--split=validation", "--episodes=9"
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["split"], found["episodes"]) == ("validation", 9)


def test_evaluate_measures_unknown_images_and_a_balance_beside_the_six(finished: Path) -> None:
    plain, more = (
        protograph("evaluate", finished, "--json", "--episodes=9", *options) for options in ((), ("--unknown", "--balance"))
    )
    assert more.exit_code == 0, more.stderr
    found = json.loads(more.stdout)
    balanced, unknown = found.pop("balanced"), found.pop("unknown")
    assert found == json.loads(plain.stdout)
    assert isinstance(balanced["bias"], float)
    assert set(balanced["measures"]) == set(found["measures"])
    assert 0 <= unknown["auroc"]["mean"] <= 100
    shown = protograph("evaluate", finished, "--episodes=9", "--unknown", "--balance")
    assert f"with bias {balanced['bias']:+.2f}" in shown.stdout
    assert f"AUROC of known against unknown images: {unknown['auroc']['mean']:.2f}" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--split=train"], ["'train'", "validation"]),
        (["--epoch=first"], ["'first'", "last"]),
        (["--shots=7"], ["7 shots", "13", "12"]),
        (["--shots=0"], ["shots", "at least 1"]),
        (["--ways=0"], ["ways", "at least 1"]),
        (["--queries=0"], ["queries", "at least 1"]),
        (["--ways=8"], ["8 ways", "7 novel"]),
        (["--device=cuda:99"], ["'cuda:99'", "use auto or cpu"]),
        (["--balance", "--split=validation"], ["--balance", "--split test"]),
        (["--unknown", "--ways=7", "--queries=1"], ["all 7 novel classes", "fewer --ways"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_evaluate_refuses_what_it_cannot_measure(finished: Path, arguments: list[str], named: list[str]) -> None:
    check_refused(protograph("evaluate", finished, *arguments), *named)


def test_evaluate_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    check_refused(protograph("evaluate", tmp_path / "absent"), "absent", "not a run folder")


def test_evaluate_refuses_another_version_of_the_dataset(finished: Path, toy: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Dataset(**{**vars(toy), "fingerprint": "toy-2"})
    monkeypatch.setitem(
        DATASETS,
        "toy",
        DatasetSource(lambda root, progress, skip_bad: other, "conv4-32", "other patterns", built_in=True),
    )
    check_refused(protograph("evaluate", finished), "toy-1", "toy-2", "train again")


PLUGIN = """
from protograph import AUX, Op, Softmax, Variant, register_operator, register_variant
from protograph.nn.operators import PrototypeSimilarity

register_operator("own", lambda parts: Softmax(PrototypeSimilarity("cosine"), "own", 3.0))
register_variant(Variant("gcgpn-own", (Op("own"), *AUX), "an own operator"))
"""


@pytest.mark.slow
def test_a_plugin_brings_a_variant_to_every_verb(tmp_path: Path, registry: Callable[[], None]) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)
    check_refused(train("--out", tmp_path / "run", "--variant=gcgpn-own"), "'gcgpn-own'")
    assert "gcgpn-own" in json.loads(protograph("variants", "--json", "--plugin", plugin).stdout)
    registry()
    result = train("--out", tmp_path / "run", "--variant=gcgpn-own", "--plugin", plugin)
    assert result.exit_code == 0, result.stderr
    registry()
    again = protograph("evaluate", tmp_path / "run", "--json", "--plugin", plugin)
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["measures"] == json.loads((tmp_path / "run" / "measures.json").read_text())["measures"]


@pytest.mark.slow
def test_a_run_can_be_evaluated_from_another_folder(
    toy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Callable[[], None]
) -> None:
    """Relation and plugin files given by relative paths are found again."""
    write_matrix(tmp_path / "own.csv", list(toy.classes), np.eye(len(toy.classes)))
    (tmp_path / "plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    assert train("--out=run", "--relations=own.csv", "--plugin=plugin.py").exit_code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = protograph("evaluate", "../run", "--json", "--plugin=../plugin.py")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("verb", ["evaluate", "compare", "report"])
def test_a_run_folder_runs_no_code(finished: Path, tmp_path: Path, verb: str) -> None:
    """Only plugins that the user names run, and only if they are the files that the run was trained with."""
    run, plugin, trace = tmp_path / "run", tmp_path / "plugin.py", tmp_path / "trace"
    shutil.copytree(finished, run)
    plugin.write_text(f"from pathlib import Path\nPath({str(trace)!r}).write_text('x')")
    config = json.loads((run / "config.json").read_text())
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()
    for format_number, stored in ((2, str(plugin)), (3, f"plugin.py sha256:{digest}")):
        (run / "config.json").write_text(json.dumps({**config, "format": format_number, "plugins": [stored]}))
        check_refused(protograph(verb, run), "trained with plugin plugin.py", "--plugin plugin.py")
    assert not trace.exists()
    (run / "config.json").write_text(json.dumps({**config, "plugins": ["plugin.py sha256:" + "0" * 64]}))
    check_refused(protograph(verb, run, "--plugin", plugin), str(plugin), "not the file")
    assert not trace.exists()
    (run / "config.json").write_text(json.dumps({**config, "plugins": [f"plugin.py sha256:{digest}"]}))
    out = ["--out", tmp_path / "page.html"] if verb == "report" else []
    allowed = protograph(verb, run, "--plugin", plugin, *out)
    assert allowed.exit_code == 0, allowed.stderr
    assert trace.read_text() == "x"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the images and the six hundred test episodes, which take longer than these trainings."""
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))


def att(*arguments: str | Path) -> Result:
    return train("--variant=dfslwof-att", "--set=batch_size=8", *arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_runs_with_other_relations_do_not_share_a_folder(toy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_matrix(tmp_path / "own.csv", list(toy.classes), np.eye(len(toy.classes)))
    monkeypatch.chdir(tmp_path)
    for relations in ([], ["--relations=kinship"], ["--relations=own.csv"], ["--relations=own.csv", "--relations=kinship"]):
        assert train(*relations).exit_code == 0
    found = {str(path.parent.relative_to("runs/toy/1-shot/gcgpn-aux")) for path in Path("runs").rglob("measures.json")}
    assert found == {"demo-0", "own/demo-0", "own-and-kinship/demo-0"}


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_a_variant_of_two_stages_trains_the_first_where_it_is_missing_and_uses_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = att()
    assert result.exit_code == 0, result.stderr
    runs = tmp_path / "runs" / "toy"
    first, second = runs / "cosine" / "demo-0", runs / "1-shot" / "dfslwof-att" / "demo-0"
    assert "dfslwof-att starts from a trained cosine" in result.stderr
    assert (first / "measures.json").exists()
    before = {file.name: file.read_bytes() for file in first.iterdir()}

    again = att("--shots=3")
    assert again.exit_code == 0, again.stderr
    assert "starts from" not in again.stderr
    assert {file.name: file.read_bytes() for file in first.iterdir()} == before
    starts = [
        json.loads((folder / "config.json").read_text())["start"] for folder in (second, runs / "3-shot/dfslwof-att/demo-0")
    ]
    assert starts[0] == starts[1] != ""

    evaluated = protograph("evaluate", second, "--json", "--device=cpu", "--episodes=20")
    assert json.loads(evaluated.stdout)["measures"] == json.loads((second / "measures.json").read_text())["measures"]


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_a_variant_that_is_pretrained_trains_the_first_stage_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pretrained = "--set=pretrain=cosine", "--set=batch_size=8"
    result = train(*pretrained)
    assert result.exit_code == 0, result.stderr
    assert "gcgpn-aux starts from a trained cosine" in result.stderr
    runs = tmp_path / "runs" / "toy"
    first, second = Run.open(runs / "cosine" / "demo-0"), Run.open(runs / "1-shot" / "gcgpn-aux" / "demo-0")
    assert (second.config.start, second.config.recipe.pretrain) == (first.fingerprint, "cosine")
    assert (first.config.recipe.batch_size, second.config.recipe.batch_size) == (8, recipes.DEMO.batch_size)
    again = train(*pretrained)
    assert (again.exit_code, again.stdout) == (0, result.stdout)
    assert "starts from" not in again.stderr
    check_refused(
        train("--start", first.folder, "--out=other"), "gcgpn-aux", "starts from no other run", "--set pretrain=cosine"
    )
    check_refused(train(*pretrained, "--start", second.folder, "--out=other"), "its variant is 'gcgpn-aux', not 'cosine'")
    for changed, named in (("batch_size=9", "batch_size 9"), ("temperature=4", "temperature 4.0")):
        changes = "--set=pretrain=cosine", "--start", first.folder, "--out=other"
        check_refused(train(*changes, f"--set={changed}"), f"{named} would be ignored", str(first.folder), "--start")
    assert not Path("other").exists()


@pytest.mark.usefixtures("brief")
def test_a_finished_start_is_taken_as_it_is_and_one_of_another_configuration_is_not_touched(tmp_path: Path) -> None:
    start, out = tmp_path / "cosine", tmp_path / "att"
    first = protograph(
        "train", "--dataset=toy", "--device=cpu", "--variant=cosine", "--seed=4", f"--out={start}", "--set=batch_size=8",
        *(change for change in SETS if "queries=" not in change or "test" in change if "episodes=2" not in change),
    )  # fmt: skip
    assert first.exit_code == 0, first.stderr
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    result = att("--out", out, "--start", start)
    assert result.exit_code == 0, result.stderr
    (start / "measures.json").unlink()  # as if it had been interrupted
    check_refused(att("--out", tmp_path / "other", "--start", start), str(start), "seed is 4 there, not 0", "--start")
    assert {file.name: file.read_bytes() for file in start.iterdir()} == {
        k: v for k, v in before.items() if k != "measures.json"
    }
    assert not (tmp_path / "other").exists()


def test_what_is_wrong_with_the_second_stage_is_found_before_the_first_is_trained(finished: Path, tmp_path: Path) -> None:
    start = tmp_path / "cosine"
    check_refused(att("--out", tmp_path / "run", "--start", start, "--shots=11"), "11 shots")
    check_refused(att("--out", start, "--start", start), str(start), "both the run and its start")
    check_refused(att("--out", finished, "--start", start), str(finished), "variant is 'aux-only' there", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
def test_the_demo_of_everything_tells_what_it_measured_beside_its_table(
    toy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the toy, whose few classes and images the demo takes for letters."""
    short = {name: value for name, value in SHORT.items() if name not in ("ways", "novel_queries", "seen_queries")}
    monkeypatch.setitem(DATASETS, "letters", DatasetSource(lambda root, progress: toy, "conv4-32", "noisy patterns"))
    short_demo = lambda *chosen: replace(recipes.demo_recipe(*chosen), **short, batch_size=8)
    monkeypatch.setitem(recipes.RECIPES, "demo", recipes.RecipeSource(short_demo))
    monkeypatch.setattr(demo, "draw_curves", lambda *_: None)
    monkeypatch.setattr(demo, "open_dataset", lambda *_, **__: replace(toy, name="letters"))
    result = protograph("demo", "--all", "--out", tmp_path, "--device=cpu")
    assert result.exit_code == 0, result.stderr
    assert all(variant in result.stdout for variant in demo.ALL)
    assert {folder.name for folder in tmp_path.iterdir() if folder.is_dir()} == {*demo.ALL, "cosine"}
    printed = protograph("demo", "--all", "--out", tmp_path, "--device=cpu", "--json")
    measured = json.loads(printed.stdout)
    assert measured.keys() == set(demo.ALL)
    where = measured["pn+"]["nearness"]
    for name in ("seen_norm", "novel_norm", "to_own", "to_nearest_seen"):
        assert f"{where[name]:.3g}" in result.stdout
    told = result.stdout[result.stdout.index("pn+ ", result.stdout.index("└")) :]
    share = measured["pn+"]["measures"]["novel_joint"]["mean"] / measured["pn+"]["measures"]["novel_novel"]["mean"]
    assert told.startswith("pn+ collapses" if share < 0.5 else "pn+ does not collapse")
    assert ("is shorter than" in told) == (where["seen_norm"] < where["novel_norm"])
    assert ("nearer to some seen" in told) == (where["to_nearest_seen"] < where["to_own"])


def toml(path: Path, **settings: Any) -> Path:
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([*lines, "[recipe]", 'base = "paper"', *(f"{name} = {value}" for name, value in SHORT.items())]))
    return path


@pytest.mark.slow
def test_a_toml_file_configures_a_run_and_options_win_over_it(tmp_path: Path) -> None:
    path = toml(tmp_path / "run.toml", dataset="toy", variant="aux-only", shots=2, seed=7, out=str(tmp_path / "run"))
    result = protograph("train", "--config", path, "--seed=8", "--set=steps=1", "--device=cpu")
    assert result.exit_code == 0, result.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["variant"], config["shots"], config["seed"]) == ("aux-only", 2, 8)
    assert (config["recipe"]["name"], config["recipe"]["epochs"], config["recipe"]["steps"]) == ("paper", 1, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shot": 2},
        {"shots": "two"},
        {"shots": 1.5},
        {"seed": "7"},
        {"variant": 3},
        {"relations": "kinship"},
        {"out": 3},
    ],
    ids=str,
)
def test_a_wrong_setting_in_a_toml_file_is_refused_by_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    given = {"dataset": "toy", "out": str(tmp_path / "run"), **wrong}
    result = protograph("train", "--device=cpu", "--config", toml(tmp_path / "run.toml", **given))
    check_refused(result, f"'{next(iter(wrong))}'")
    assert not (tmp_path / "run").exists()
