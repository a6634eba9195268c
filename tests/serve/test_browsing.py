import io
from pathlib import Path

import numpy as np
from PIL import Image
from served import HEADERS, Asking, client, encoder, files, photographs

from protograph import Classifier


def test_a_model_says_what_it_is(asking: Asking) -> None:
    model = asking.get("/api/model").json()
    assert {name: model[name] for name in ("file", "classes", "fitted", "added", "encoder", "size", "unknown", "prior")} == {
        "file": "birds.pg",
        "classes": 2,
        "fitted": 2,
        "added": 0,
        "encoder": "conv4-64-128",
        "size": [84, 84],
        "unknown": None,
        "prior": "uniform",
    }
    assert model["has"] == {"heatmap": True, "thumbnails": False, "features_kept": True, "wordnet": False}
    assert model["limits"].keys() == {"bytes", "pixels", "files", "classes"}
    assert model["history"] == {"undo": None, "redo": None}


def test_classes_and_examples_are_listed(asking: Asking) -> None:
    assert asking.get("/api/classes").json()["classes"] == [
        {"class": name, "added": False, "examples": 6, "thumbnails": 0, "shown": []} for name in ("green", "red")
    ]
    assert len(asking.get("/api/classes/examples", params={"class": "red"}).json()["examples"]) == 6
    assert asking.get("/api/classes/thumbnail", params={"class": "red", "index": 0}).status_code == 404
    assert asking.get("/api/classes/examples", params={"class": "gren"}).json() == {
        "error": "there is no class 'gren': did you mean 'green'?"
    }
    assert asking.get("/api/classes/examples").json() == {"error": "'class' is missing: send it"}


def test_the_check_is_that_of_the_command(model: Path, asking: Asking) -> None:
    checked = asking.get("/api/check").json()
    wanted = Classifier.load(model).check_examples().as_json()
    assert {name: checked[name] for name in ("verdict", "accuracy", "classes", "advice")} == {
        name: wanted[name] for name in ("verdict", "accuracy", "classes", "advice")
    }


def test_classes_may_be_numbers(tmp_path: Path) -> None:
    Classifier(encoder()).fit([*photographs("red", 3), *photographs("blue", 3)], [3, 3, 3, 7, 7, 7]).save(tmp_path / "n.pg")
    with client(tmp_path / "n.pg") as asking:
        assert [row["class"] for row in asking.get("/api/classes").json()["classes"]] == [3, 7]
        assert asking.post("/api/predict", files=files(photographs("blue", 1, 9))).json()["results"][0]["class"] == 7
        assert asking.get("/api/classes/examples", params={"class": "7"}).json()["class"] == 7
        assert asking.get("/api/classes/examples", params={"class": "x"}).status_code == 400
        assert asking.post("/api/explain", files=files(photographs("blue", 1, 9), "image")).json()["nearest"][0]["class"] == 7


def test_thumbnails_are_small_images_of_the_examples(tmp_path: Path) -> None:
    path = tmp_path / "new.pg"
    Classifier.empty(encoder(), thumbnails=True).save(path)
    with client(path) as asking:
        images = photographs("red", 6)
        added = asking.post("/api/classes", headers=HEADERS, files=files(images), data={"name": "red"})
        assert added.status_code == 200
        assert asking.get("/api/model").json()["has"]["thumbnails"] is True
        (row,) = asking.get("/api/classes").json()["classes"]
        assert (row["thumbnails"], row["shown"]) == (6, [0, 1, 2, 3])
        listed = asking.get("/api/classes/examples", params={"class": "red"}).json()["examples"]
        assert listed == [{"index": index, "thumbnail": True} for index in range(6)]
        shown = asking.get("/api/classes/thumbnail", params={"class": "red", "index": 5})
        assert shown.headers["content-type"] == "image/jpeg"
        with Image.open(io.BytesIO(shown.content)) as small, Image.open(io.BytesIO(images[5])) as large:
            assert small.size == (96, 77)
            difference = np.asarray(small).mean((0, 1)) - np.asarray(large).mean((0, 1))
            assert abs(difference).max() < 3
        assert asking.get("/api/classes/thumbnail", params={"class": "red", "index": 6}).status_code == 404
        assert asking.get("/api/classes/thumbnail", params={"class": "red", "index": -1}).status_code == 400


def test_the_map_and_the_suggestions_are_those_of_the_classifier(model: Path, asking: Asking) -> None:
    classifier = Classifier.load(model)
    wanted, drawn = classifier.class_map(), asking.get("/api/map").json()
    assert [place["class"] for place in drawn["labels"]] == wanted.labels.tolist()
    assert np.allclose([(place["x"], place["y"]) for place in drawn["labels"]], wanted.positions)
    names = wanted.labels.tolist()
    assert [(edge["from"], edge["to"]) for edge in drawn["edges"]] == [
        (names[edge.first], names[edge.second]) for edge in wanted.edges
    ]
    suggestions = asking.get("/api/classes/relations", params={"class": "red"}).json()["suggestions"]
    assert [(part["class"], part["source"]) for part in suggestions] == [
        (part.label, part.source) for part in classifier.suggest_relations("red")
    ]
    assert asking.get("/api/classes/relations", params={"class": "a new one"}).json()["relations"] == []
