from pathlib import Path

from served import Asking, client, encoder, files, photographs

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
