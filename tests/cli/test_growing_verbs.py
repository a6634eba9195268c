"""The verbs by which a model file grows, and `evaluate` of a model file, on small features and made-up birds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.test_classifier_verbs import bird, birds, default_backbone  # noqa: F401 - fixtures
from kept import blobs
from protograph import Classifier
from protograph.cli import app


def answer(*arguments: Any) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.stderr or result.exception
    return json.loads(result.stdout)


def refused(*arguments: Any) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.stdout
    return result.stderr


@pytest.fixture
def model(birds: Path, tmp_path: Path) -> Path:  # noqa: F811
    path = tmp_path / "birds.pg"
    answer("fit", birds, "--out", path, "--keep-features", "--unknown=0.2")
    return path


def drawn(folder: Path, *kinds: str, first: int = 50, count: int = 4) -> Path:
    for kind in kinds:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            bird(kind, number).save(folder / kind / f"{number}.png")
    return folder


@pytest.mark.slow
def test_classes_are_added_from_folders_all_or_none(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    assert "there is a class 'crow' already" in refused("add-classes", model, drawn(tmp_path / "old", "heron", "crow"))
    assert model.read_bytes() == before
    said = answer("add-classes", model, drawn(tmp_path / "new", "heron", "ibis", count=3))
    assert (said["added"], said["classes"]) == ({"heron": 3, "ibis": 3}, 6)
    one = Classifier.load(model)
    again = answer("add-examples", model, "ibis", drawn(tmp_path / "more", "ibis", first=80) / "ibis")
    assert (again["added"], again["examples"]) == (4, 7)
    assert "did you mean 'ibis'" in refused("add-examples", model, "Ibis", tmp_path / "more" / "ibis")
    fitted = answer("add-examples", model, "crow", drawn(tmp_path / "more", "crow", first=80) / "crow")
    assert fitted["examples"] == 8 + 4
    counts = {row["class"]: row["examples"] for row in answer("classes", model)["classes"]}
    assert counts == {"crow": 12, "duck": 8, "finch": 8, "gull": 8, "heron": 3, "ibis": 7}
    assert not np.array_equal(one.prototypes_, Classifier.load(model).prototypes_)


@pytest.mark.slow
def test_fit_says_how_large_what_it_keeps_is(birds: Path, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "birds.pg"
    shown = CliRunner().invoke(app, ["fit", str(birds), "--out", str(path), "--keep-features", "--thumbnails"])
    known = Classifier.load(path)
    sizes = {part: f"{size / 1e6:.1f} MB" for part, size in (("file", path.stat().st_size), ("shown", known.thumbnail_bytes))}
    features = sum(part.nbytes for part in known.kept_.values())
    assert features == 32 * 4 * known.n_features_in_
    assert known.thumbnail_bytes > 32 * 500
    line = f"the file has {sizes['file']}, of which {features / 1e6:.1f} MB are features of the images and {sizes['shown']} are"
    assert f"{line} thumbnails\n" in shown.stdout
    said = answer("fit", birds, "--out", path)
    assert said["bytes"] == {"file": path.stat().st_size, "features": 0, "thumbnails": 0}
    assert "the file has" not in CliRunner().invoke(app, ["fit", str(birds), "--out", str(path)]).stdout
    answer("fit", birds, "--out", path, "--thumbnails")
    answer("add-classes", path, drawn(tmp_path / "new", "heron", "ibis", count=3))
    answer("add-class", path, "owl", drawn(tmp_path / "owls", "owl", count=2) / "owl")
    answer("add-examples", path, "crow", tmp_path / "owls" / "owl")
    known = Classifier.load(path)
    assert [len(known.thumbnails_of(name)) for name in ("crow", "gull", "heron", "ibis", "owl")] == [10, 8, 3, 3, 2]
    assert all(content for name in known.classes_ for content in known.thumbnails_of(name))


@pytest.mark.slow
def test_a_refit_counts_added_classes_as_fitted(model: Path, tmp_path: Path, birds: Path) -> None:  # noqa: F811
    answer("add-classes", model, drawn(tmp_path / "new", "heron", count=8))
    assert answer("refit", model)["were_added"] == 1
    drawn(tmp_path / "all", "heron", count=8)
    for kind in birds.iterdir():
        (tmp_path / "all" / kind.name).symlink_to(kind)
    answer("fit", tmp_path / "all", "--out", tmp_path / "whole.pg", "--unknown=0.2")
    refit, whole = (Classifier.load(path) for path in (model, tmp_path / "whole.pg"))
    assert refit.space_.seen == whole.space_.seen == 5
    assert refit.threshold_ == pytest.approx(whole.threshold_, abs=1e-4)
    np.testing.assert_allclose(refit.prototypes_, whole.prototypes_, atol=1e-4)
    assert "fit with keep_features=True" in refused("refit", tmp_path / "whole.pg")


@pytest.mark.parametrize("keep", [True, False])
def test_where_added_classes_are_many_a_refit_is_advised(keep: bool, tmp_path: Path) -> None:
    features, labels = blobs(classes=12, images=6)
    known = Classifier(keep_features=keep).fit(features[:12], labels[:12])
    known.add_classes({name: features[labels == name] for name in "cdefghijk"}).add_class("l", features[labels == "l"][:4])
    known.save(tmp_path / "some.pg")
    np.savez(tmp_path / "one.npz", vectors=features[-1:].astype(np.float32))
    (note,) = answer("add-examples", tmp_path / "some.pg", "l", tmp_path / "one.npz")["notes"]
    way = f"protograph refit {tmp_path / 'some.pg'}" if keep else "protograph fit, on the images of all classes"
    assert note == f"10 added classes outnumber the 2 fitted ones: fitting anew pays ({way})"
    answer("remove-class", tmp_path / "some.pg", "c")
    assert answer("add-examples", tmp_path / "some.pg", "l", tmp_path / "one.npz")["notes"] == []
    if keep:
        assert answer("refit", tmp_path / "some.pg")["were_added"] == 9


@pytest.mark.slow
def test_a_model_file_is_measured_on_a_folder(model: Path, tmp_path: Path) -> None:
    folder = drawn(tmp_path / "asked", "crow", "gull", "heron", count=6)
    said = answer("evaluate", model, folder)
    known = Classifier.load(model)
    files = sorted((folder / "crow").iterdir()) + sorted((folder / "gull").iterdir())
    answers = known.predict(files).tolist()
    shares = [answers[:6].count("crow") / 6, answers[6:].count("gull") / 6]
    assert said["joint"] == pytest.approx(np.mean(shares))
    assert said["by_class"]["crow"] == {"images": 6, "accuracy": pytest.approx(shares[0])}
    herons = known.predict(sorted((folder / "heron").iterdir())).tolist()
    assert said["strangers_unknown"] == pytest.approx(herons.count("unknown") / 6)
    shown = CliRunner().invoke(app, ["evaluate", str(model), str(folder)])
    assert "joint accuracy" in shown.stdout
    assert "does not know heron" in shown.stderr
    assert "give a folder of images to measure it on" in refused("evaluate", model)
    assert "none of the classes" in refused("evaluate", model, drawn(tmp_path / "other", "ibis"))
