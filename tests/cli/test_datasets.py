import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from data import layouts
from protograph.cli import app
from protograph.data import DATASETS
from protograph.evaluation.metrics import EvaluationSizes
from protograph.training import loop as training

SETS = [
    f"--set={name}={value}"
    for name, value in {
        "epochs": 1, "steps": 2, "episodes": 1, "ways": 2, "novel_queries": 2, "seen_queries": 4, "validation_episodes": 2,
        "test_queries": 2,
    }.items()
]  # fmt: skip
CLASSES = {f"kind-{number}": 8 for number in range(9)}


def protograph(*arguments: str | Path, data: Path | None = None) -> Result:
    environment = {
        "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PROTOGRAPH_DATA": None if data is None else str(data),
    }  # fmt: skip
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], prog_name="protograph")


def train(dataset: str, root: Path, *arguments: str | Path) -> Result:
    options = ["--device=cpu", "--backbone=conv4-32", *SETS]
    return protograph("train", f"--dataset={dataset}", "--root", root, "--out", root.parent / "run", *options, *arguments)


def check_refused(result: Result, *named: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that names all of these."""
    assert (result.exit_code, result.stdout) == (2, ""), (result.exception, result.stderr)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for words in named:
        assert words in result.stderr


def check_trained(result: Result, folder: Path, dataset: str) -> dict[str, object]:
    assert result.exit_code == 0, (result.exception, result.stderr)
    measures = json.loads((folder / "measures.json").read_text())
    assert measures["dataset"] == dataset
    config: dict[str, object] = json.loads((folder / "config.json").read_text())
    return config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layouts.write_folder(tmp_path / "root", CLASSES)


def test_datasets_are_listed_for_people_and_machines() -> None:
    listed = json.loads(protograph("datasets", "--json").stdout)
    assert listed.keys() == DATASETS.keys()
    assert all(set(row) == {"backbone", "recipe", "summary"} for row in listed.values())
    table = protograph("datasets").stdout
    assert all(name in table and source.summary in table for name, source in DATASETS.items())


def test_check_shows_a_table_for_people(root: Path) -> None:
    (root / "kind-0" / "copy.png").write_bytes((root / "kind-1" / "001.png").read_bytes())
    (root / "kind-2" / "[red].png").write_bytes(b"nothing")
    result = protograph("datasets", "check", "folder", "--root", root)
    assert result.exit_code == 0, result.stderr
    for words in ("folder, fingerprint", "74, used at 3 x 84 x 84", "2 classes", "width 10 to 10, height 12 to 12"):
        assert words in result.stdout
    assert "kind-2/[red].png (not one of JPEG" in result.stdout
    assert "kind-0/copy.png = kind-1/001.png" in result.stdout
    assert "such as kind-2/[red].png (not" in result.stderr
    assert "verdict" not in result.stdout


def test_check_shows_at_most_a_few_of_many(root: Path) -> None:
    for place in range(20):
        (root / "kind-1" / f"bad{place:02d}.png").write_bytes(b"nothing")
    result = protograph("datasets", "check", "folder", "--root", root)
    assert result.exit_code == 0, result.stderr
    assert "bad07.png" in result.stdout
    assert "bad08.png" not in result.stdout
    assert "and 12 more" in result.stdout


def test_check_prints_nothing_but_json_for_machines(root: Path) -> None:
    result = protograph("datasets", "check", "folder", "--json", "--root", root)
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert (found["dataset"], found["classes"], found["images"], found["verdict"]) == ("folder", 9, 72, None)
    assert found == json.loads(protograph("datasets", "check", "folder", "--json", "--root", root).stdout)


@pytest.mark.slow
def test_check_finds_the_small_benchmarks_and_says_that_they_are_small(mini_root: Path, cub_root: Path) -> None:
    mini = json.loads(protograph("datasets", "check", "mini-imagenet", "--json", data=mini_root).stdout)
    assert (mini["classes"], mini["images"]) == (100, 100 * layouts.IMAGES)
    assert "not all of their 600 images" in mini["verdict"]
    assert mini["relations"] == {"wordnet": "similarities of 100 classes", "names": "similarities of 100 classes"}
    cub = json.loads(protograph("datasets", "check", "cub", "--json", data=cub_root).stdout)
    assert [cub["parts"][part]["classes"] for part in ("train", "novel_validation", "novel_test")] == [130, 20, 50]
    assert (cub["greyscale"], cub["relations"]) == (8, {"attributes": "312 attributes of 200 classes"})
    assert "not the paper's dataset" in cub["verdict"]
    table = protograph("datasets", "check", "cub", "--root", cub_root).stdout
    assert all(words in table for words in ("130 classes", "20 classes", "50 classes", "312 attributes", "verdict"))


@pytest.mark.slow
def test_check_knows_the_letters() -> None:
    result = protograph("datasets", "check", "letters", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["dataset"] == "letters"


def test_check_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    check_refused(protograph("datasets", "check", "cubs"), "'cubs'", "cub")
    check_refused(protograph("datasets", "check", "cub"), "dataset 'cub' needs its files", "--root", "PROTOGRAPH_DATA")
    check_refused(protograph("datasets", "check", "letters", "--root", tmp_path), "leave out --root")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few test episodes and no figures: both have tests of their own."""
    monkeypatch.setattr(training, "EvaluationSizes", partial(EvaluationSizes, episodes=20))
    monkeypatch.setattr("protograph.report.figures.draw_run", lambda *_: None)


@pytest.mark.slow
def test_a_folder_of_own_images_can_be_trained_on_and_evaluated_without_the_bad_ones(root: Path) -> None:
    cut(root / "kind-3" / "002.png")
    result = train("folder", root, "--variant=aux-only", "--skip-bad")
    config = check_trained(result, root.parent / "run", "folder")
    assert "left out 1 of 72 images that cannot be read, such as kind-3/002.png (" in result.stderr
    assert (root.parent / "run" / "episode.png").exists()
    result = protograph("evaluate", root.parent / "run", "--root", root, "--json", "--episodes=5", "--device=cpu")
    assert result.exit_code == 0, result.stderr
    measures = json.loads(result.stdout)["measures"]
    for number in range(8):
        layouts.save(root / "a-new-kind" / f"{number}.png", layouts.blocks(12, 10, 200 + number))
    grown = protograph("evaluate", root.parent / "run", "--root", root, "--json", "--episodes=5", "--device=cpu")
    assert json.loads(grown.stdout)["measures"] == measures, "a class that was added since leaves the run's split alone"
    layouts.save(root / "kind-0" / "000.png", layouts.blocks(12, 10, 99))
    changed = protograph("evaluate", root.parent / "run", "--root", root, "--json")
    check_refused(changed, str(config["fingerprint"]), "train again")


@pytest.mark.usefixtures("quick")
def test_the_small_mini_imagenet_can_be_trained_on(mini_root: Path, tmp_path: Path) -> None:
    config = check_trained(train("mini-imagenet", mini_root, "--out", tmp_path / "run"), tmp_path / "run", "mini-imagenet")
    assert config["relations"] == ["wordnet"]


@pytest.mark.usefixtures("quick")
def test_the_small_cub_can_be_trained_on(cub_root: Path, tmp_path: Path) -> None:
    config = check_trained(train("cub", cub_root, "--out", tmp_path / "run"), tmp_path / "run", "cub")
    assert config["relations"] == ["attributes"]


@pytest.mark.slow
def test_features_can_be_trained_on_with_the_identity(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", vectors=random.standard_normal((120, 6)), labels=np.arange(120) % 10)
    words = (
        "train", "--dataset=features", "--root", tmp_path / "own.npz", "--out", tmp_path / "run", "--variant=aux-only",
        "--device=cpu", *SETS,
    )  # fmt: skip
    for more, named in (("--recipe=strong", "zoom, stretch, colour, erase"), ("--set=erase=0.2", "erase")):
        refused = protograph(*words, more)
        assert refused.exit_code == 2
        assert f"changes images ({named}), and dataset 'features' has features" in refused.stderr
    result = protograph(*words)
    assert result.exit_code == 0, (result.exception, result.stderr)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["backbone"] == "identity"


Spoil = Callable[[Path], object]
SPOILED: dict[str, tuple[Spoil, list[str]]] = {
    "truncated": (lambda root: cut(root / "kind-3" / "002.png"), ["kind-3/002.png", "truncated", "--skip-bad"]),
    "too large": (
        lambda root: Image.new("1", (10_000, 10_000)).save(root / "kind-3" / "002.png"),
        ["kind-3/002.png", "10000 x 10000", "64 million", "--skip-bad"],
    ),
    "no image": (lambda root: (root / "kind-3" / "002.png").write_text("hi"), ["kind-3/002.png", "PNG", "--skip-bad"]),
    "a folder": (lambda root: (root / "kind-3" / "x.png").mkdir(), ["kind-3/x.png", "directory", "--skip-bad"]),
    "a dead link": (lambda root: (root / "kind-3" / "x.png").symlink_to("y.png"), ["kind-3/x.png", "No such", "--skip-bad"]),
    "too few": (
        lambda root: layouts.save(root / "few" / "1.png", layouts.blocks(5, 5, 1)), ["'few'", "1 image", "--skip-bad"],
    ),
}  # fmt: skip


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILED)
def test_bad_images_are_named_and_can_be_left_out_with_a_count(root: Path, kind: str) -> None:
    spoil, named = SPOILED[kind]
    spoil(root)
    check_refused(train("folder", root, "--variant=aux-only"), *named)
    assert not (root.parent / "run").exists()
    result = protograph("datasets", "check", "folder", "--root", root)
    assert result.exit_code == 0, result.stderr
    assert "left out 1 of " in result.stderr


def test_folders_that_cannot_be_used_are_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_refused(train("folder", tmp_path / "empty"), str(tmp_path / "empty"), "no class folders")
    (root / "Kind-4").mkdir()
    check_refused(train("folder", root, "--skip-bad"), "'Kind-4'", "'kind-4'", "case", "rename")


def write_few(root: Path) -> Path:
    for place, split in enumerate(layouts.SPLITS):
        layouts.save(root / "images" / f"{split}.png", layouts.blocks(9, 9, place))
        layouts.write_rows(root / f"{split}.csv", ("filename", "label"), (f"{split}.png", split))
    return root


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([("filename", "label"), ("gone.png", "a")], ["gone.png", "No such file", "--skip-bad"]),
        ([("file", "class"), ("val.png", "a")], ["val.csv", "'file', 'class'", "'filename' and 'label'"]),
        ([("filename", "label"), ("../val.csv", "a")], ["val.csv", "../val.csv", "outside the images folder"]),
    ],
    ids=["missing", "columns", "outside"],
)
def test_csv_rows_that_cannot_be_used_are_named(tmp_path: Path, rows: list[tuple[str, str]], named: list[str]) -> None:
    layouts.write_rows(write_few(tmp_path) / "val.csv", *rows)
    check_refused(train("mini-imagenet", tmp_path), *named)


def test_a_seen_class_without_enough_images_is_not_skipped(tmp_path: Path) -> None:
    check_refused(train("mini-imagenet", write_few(tmp_path), "--skip-bad"), "class 'train' has no image for train")


class Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("name", ["mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{}.pickle"])
def test_a_pickle_that_names_code_is_refused_and_runs_nothing(tmp_path: Path, name: str) -> None:
    for split in (*layouts.SPLITS, "train_phase_train"):
        layouts.dump(tmp_path / "root" / name.format(split), {"data": Runs(tmp_path / "marker")})
    check_refused(train("mini-imagenet", tmp_path / "root"), "posix.system", "do not use it")
    assert not (tmp_path / "marker").exists()


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "members",
    [
        lambda outside: [tar_member("../outside")],
        lambda outside: [tar_member(str(outside))],
        lambda outside: [tar_member("link", tarfile.SYMTYPE, str(outside.parent)), tar_member("link/outside")],
    ],
    ids=["upwards", "absolute", "link"],
)
@pytest.mark.parametrize(("dataset", "name"), [("cub", "CUB_200_2011.tgz"), ("mini-imagenet", "mini-imagenet.tar.gz")])
def test_an_archive_that_would_write_elsewhere_is_refused(
    tmp_path: Path, members: Callable[[Path], list[tarfile.TarInfo]], dataset: str, name: str
) -> None:
    (tmp_path / "root").mkdir()
    chosen = members(tmp_path / "outside")
    with tarfile.open(tmp_path / "root" / name, "w:gz") as archive:
        for info in chosen:
            archive.addfile(info, io.BytesIO())
    check_refused(train(dataset, tmp_path / "root"), name, f"'{chosen[0].name}'", "do not use it")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_a_zip_that_would_write_elsewhere_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mini-imagenet.zip", "w") as archive:
        archive.writestr("../outside", "written")
    check_refused(train("mini-imagenet", tmp_path), "mini-imagenet.zip", "'../outside'", "do not use it")


def test_vectors_that_are_not_finite_are_named_or_left_out(tmp_path: Path) -> None:
    vectors = np.zeros((90, 3))
    vectors[8, 1] = np.nan
    np.savez(tmp_path / "own.npz", vectors=vectors, labels=np.arange(90) % 9)
    check_refused(train("features", tmp_path / "own.npz"), "vector 8", "own.npz", "'8'", "NaN", "--skip-bad")
    result = protograph("datasets", "check", "features", "--root", tmp_path / "own.npz")
    assert result.exit_code == 0, result.stderr
    assert "left out 1 of 90 vectors" in result.stderr
