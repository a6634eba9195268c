import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from served import HEADERS, Asking, client, encoder, files, photograph, photographs

from protograph import Classifier


def post(asking: Asking, route: str, **sent: Any) -> dict[str, Any]:
    answer = asking.post(f"/api/{route}", headers=HEADERS, **sent)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(path: Path) -> list[str]:
    return Classifier.load(path).classes_.tolist()


def test_a_class_is_taught_corrected_renamed_removed_and_all_of_it_undone(model: Path, asking: Asking) -> None:
    before = asking.get("/api/model").json()["version"]
    added = post(asking, "classes", files=files(photographs("blue", 4)), data={"name": "blue"})
    assert added["what"] == "added 'blue' from 4 images"
    assert added["classes"] == 3
    assert set(added["held_out"]) == {"before", "after"}
    assert added["version"] != before
    assert names(model) == ["blue", "green", "red"]
    assert asking.post("/api/predict", files=files(photographs("blue", 1, 70))).json()["results"][0]["class"] == "blue"
    more = post(asking, "classes/examples", files=files(photographs("blue", 1, 80)), data={"class": "blue"})
    assert more["what"] == "added 1 image to 'blue'"
    assert Classifier.load(model).space_.examples(2) == 5
    assert post(asking, "classes/rename", json={"class": "blue", "name": "azure"})["what"] == "renamed 'blue' to 'azure'"
    assert post(asking, "classes/remove", json={"class": "green"})["what"] == "removed 'green'"
    assert names(model) == ["azure", "red"]
    assert asking.get("/api/model").json()["history"] == {"undo": "removed 'green'", "redo": None}
    assert post(asking, "history/undo")["what"] == "undone: removed 'green'"
    assert asking.get("/api/model").json()["history"] == {"undo": "renamed 'blue' to 'azure'", "redo": "removed 'green'"}
    for _ in range(3):
        last = post(asking, "history/undo")
    assert last["version"] == before
    assert names(model) == ["green", "red"]
    assert post(asking, "history/redo")["what"] == "done again: added 'blue' from 4 images"
    assert names(model) == ["blue", "green", "red"]
    listed = asking.get("/api/history").json()["changes"]
    assert [(change["number"], change["undone"]) for change in listed] == [(4, True), (3, True), (2, True), (1, False)]


def test_the_first_classes_are_taught_by_requests_alone(tmp_path: Path) -> None:
    path = tmp_path / "new.pg"
    Classifier.empty(encoder()).save(path)
    with client(path) as asking:
        for colour in ("red", "blue"):
            answer = post(asking, "classes", files=files(photographs(colour, 3)), data={"name": colour})
        assert answer["held_out"]["after"] == 1.0
        results = asking.post("/api/predict", files=files([photograph("blue", 40), photograph("red", 41)])).json()["results"]
        assert [result["class"] for result in results] == ["blue", "red"]
        assert asking.get("/api/check").json()["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("route", "sent", "sentence"),
    [
        ("classes", {"files": files([b""])}, "the field 'name' is missing: send it"),
        ("classes", {"files": files([b"x"]), "data": {"name": "a"}}, "image 0.jpg cannot be read: it is not one of JPEG"),
        ("classes", {"files": files(photographs("red", 1)), "data": {"name": "red"}}, "there is a class 'red' already"),
        ("classes", {"files": files(photographs("red", 1)), "data": {"name": " "}}, "a class needs a name"),
        ("classes", {"files": files(photographs("red", 1)), "data": {"name": "a\nb"}}, "cannot be seen"),
        ("classes", {"files": files([b""]), "data": {"name": "a", "relations": "{"}}, "the relations are no JSON"),
        ("classes", {"files": files([b""]), "data": {"name": "a", "relations": '{"b": 2}'}}, "a number from 0"),
        ("classes", {"files": {"name": (None, "nothing")}}, "nothing is known of class 'nothing'"),
        ("classes/examples", {"files": files(photographs("red", 1)), "data": {"class": "gren"}}, "did you mean 'green'"),
        ("classes/examples", {"files": {"class": (None, "red")}}, "no examples are given for class 'red'"),
        ("classes/remove", {"json": {"class": "gren"}}, "there is no class 'gren': did you mean 'green'?"),
        ("classes/remove", {"json": {}}, "'class' is missing: send it"),
        ("classes/remove", {"json": {"class": "red", "really": True}}, "'really' is not known here: leave it out"),
        ("classes/remove", {"content": b"{"}, "the body is no JSON object"),
        ("classes/rename", {"json": {"class": "red", "name": "green"}}, "there is a class 'green' already"),
        ("classes/rename", {"json": {"class": ["red"], "name": "x"}}, "'class' is wrong: "),
        ("classes/examples/remove", {"json": {"class": "red", "indices": []}}, "'indices' is wrong: "),
        ("classes/relations", {"json": {"class": "red"}}, "give either similarities"),
        ("history/undo", {}, "there is nothing to undo"),
        ("history/redo", {}, "there is nothing to redo"),
    ],
)
def test_after_a_mistake_the_file_is_as_it_was(
    model: Path, asking: Asking, route: str, sent: dict[str, Any], sentence: str
) -> None:
    before = model.read_bytes()
    answer = asking.post(f"/api/{route}", headers=HEADERS, **sent)
    assert answer.status_code == 400
    assert answer.json().keys() == {"error"}
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(answer.json()["error"])
    assert model.read_bytes() == before


def test_a_model_has_a_limit_on_classes(model: Path) -> None:
    with client(model, classes=3) as asking:
        post(asking, "classes", files=files(photographs("blue", 1)), data={"name": "blue"})
        answer = asking.post("/api/classes", headers=HEADERS, files=files(photographs("blue", 1)), data={"name": "x"})
        assert answer.json() == {"error": "there are 3 classes, as many as are allowed: remove one first"}


def test_similarities_and_names_reach_the_relation(tmp_path: Path) -> None:
    path = tmp_path / "related.pg"
    images, labels = [*photographs("red", 4), *photographs("green", 4)], ["red"] * 4 + ["green"] * 4
    Classifier(encoder()).fit(images, labels, {("red", "green"): 0.5}).save(path)
    with client(path) as asking:
        relations = json.dumps({"red": 0.9})
        post(asking, "classes", files=files(photographs("blue", 2)), data={"name": "blue", "relations": relations})
        answer = asking.get("/api/classes/relations", params={"class": "blue"}).json()
        assert [(part["class"], part["similarity"]) for part in answer["relations"]] == [("red", pytest.approx(0.9))]


def test_names_with_markup_are_only_names(model: Path, asking: Asking) -> None:
    name = "<script>alert('x')</script>/../../\"&"
    post(asking, "classes", files=files(photographs("blue", 2)), data={"name": name})
    assert name in [row["class"] for row in asking.get("/api/classes").json()["classes"]]
    answer = asking.get("/api/classes/examples", params={"class": name})
    assert answer.json()["class"] == name
    assert answer.headers["content-type"] == "application/json"
    assert sorted(file.name for file in model.parent.iterdir()) == ["birds.pg", "birds.pg.history"]
    assert post(asking, "classes/remove", json={"class": name})["what"] == f"removed '{name}'"


def test_examples_are_removed_by_their_places(model: Path, asking: Asking) -> None:
    answer = post(asking, "classes/examples/remove", json={"class": "red", "indices": [0, 3, 3]})
    assert answer["what"] == "removed 2 images of 'red'"
    assert len(asking.get("/api/classes/examples", params={"class": "red"}).json()["examples"]) == 4
    failed = asking.post("/api/classes/examples/remove", headers=HEADERS, json={"class": "red", "indices": [4]})
    assert failed.json() == {"error": "class 'red' has no example 4: give indices from 0 to 3"}


def test_relations_are_told_by_hand_where_there_are_none(model: Path, asking: Asking) -> None:
    data = {"name": "blue", "relations": json.dumps({"red": 0.25})}
    post(asking, "classes", files=files(photographs("blue", 2)), data=data)
    related = asking.get("/api/classes/relations", params={"class": "blue"}).json()["relations"]
    (relation,) = asking.get("/api/model").json()["relations"]
    assert related == [{"class": "red", "relation": relation, "similarity": 0.25}]
    told = post(asking, "classes/relations", json={"class": "blue", "similarities": {"green": 0.5}})
    assert told["what"] == "told how 'blue' relates"
    related = asking.get("/api/classes/relations", params={"class": "blue"}).json()["relations"]
    assert [(part["class"], part["similarity"]) for part in related] == [("green", 0.5)]
    post(asking, "classes/relations", json={"class": "blue", "similarities": {}})
    assert asking.get("/api/classes/relations", params={"class": "blue"}).json()["relations"] == []


def test_a_model_that_is_taught_from_nothing_tells_unknown_images_once_it_can(tmp_path: Path) -> None:
    Classifier.empty(encoder(), unknown=0.05).save(tmp_path / "new.pg")
    with client(tmp_path / "new.pg") as asking:
        for count, colour in enumerate(("red", "green", "blue", "yellow")):
            assert asking.get("/api/model").json()["unknown"] is None, f"with {count} classes"
            post(asking, "classes", files=files(photographs(colour, 4)), data={"name": colour})
        assert asking.get("/api/model").json()["unknown"] is None, "1 image in 20 cannot be told from 16"
        post(asking, "classes/examples", files=files(photographs("red", 3, 4)), data={"class": "red"})
        assert asking.get("/api/model").json()["unknown"] == 0.05
        strange = photograph_of_noise()
        assert asking.post("/api/predict", files=files([strange])).json()["results"][0]["unknown"]


def photograph_of_noise() -> bytes:
    """A JPEG of random pixels, which is like none of the colours."""
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)).save(content, "JPEG")
    return content.getvalue()
