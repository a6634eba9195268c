import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from served import Asking, client, encoder, files, photograph, photographs, write_model

from protograph import Classifier


def test_predictions_are_those_of_the_classifier(model: Path, asking: Asking) -> None:
    images = [photograph("green", 50), photograph("red", 51), photograph("blue", 52)]
    answer = asking.post("/api/predict", files=files(images), data={"top": "1"})
    assert answer.status_code == 200
    wanted = Classifier.load(model).predictions(images)
    for row, result in enumerate(answer.json()["results"]):
        assert result["file"] == f"{row}.jpg"
        assert result["class"] == wanted.labels[row]
        assert result["unknown"] is False
        assert result["likeness"] == pytest.approx(wanted.likeness[row], rel=1e-3)
        (nearest,) = result["nearest"]
        assert nearest["class"] == wanted.labels[row]
        assert nearest["probability"] == pytest.approx(wanted.probabilities[row].max(), rel=1e-3)
    assert len(answer.json()["version"]) == 12


def test_an_image_that_cannot_be_read_leaves_the_others_alone(asking: Asking) -> None:
    images = [("images", ("../../x.jpg", b"no image")), ("images", ("<b>.png", b"")), *files([photograph("red", 1)])]
    bad, empty, good = asking.post("/api/predict", files=images).json()["results"]
    assert bad["file"] == "x.jpg"
    assert bad["error"].startswith("image x.jpg cannot be read: it is not one of JPEG")
    assert empty == {"file": "<b>.png", "error": "image <b>.png is an empty file: fetch it again or leave it out"}
    assert good["class"] == "red"


def test_too_many_pixels_are_refused_before_they_are_decoded(model: Path) -> None:
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")  # 50 kB that become 400 million pixels
    large = io.BytesIO()
    Image.new("L", (400, 300)).save(large, "PNG")
    with client(model, pixels=100_000) as asking:
        results = asking.post("/api/predict", files=files([bomb.getvalue(), large.getvalue(), photograph("red", 1)])).json()
        assert "cannot be read" in results["results"][0]["error"]
        assert "400 x 300 pixels are more than 100000" in results["results"][1]["error"]
        assert results["results"][2]["class"] == "red"


def test_unknown_images_are_answered_as_unknown(tmp_path: Path) -> None:
    strict = Classifier.load(write_model(tmp_path))
    strict.threshold_ = 1e9
    strict.save(tmp_path / "strict.pg")
    with client(tmp_path / "strict.pg") as asking:
        (result,) = asking.post("/api/predict", files=files(photographs("blue", 1))).json()["results"]
        assert (result["class"], result["unknown"]) == ("unknown", True)
        assert len(result["nearest"]) == 2
        explained = asking.post("/api/explain", files=files(photographs("blue", 1), "image")).json()
        assert (explained["class"], explained["unknown"]) == ("unknown", True)


def test_explain_tells_parts_and_places(model: Path, asking: Asking) -> None:
    image = photograph("red", 50)
    answer = asking.post("/api/explain", files=files([image], "image"), data={"top": "2"}).json()
    classifier = Classifier.load(model)
    wanted = classifier.explain([image], 2)
    for part, nearest in zip(answer["nearest"], wanted, strict=True):
        assert part["class"] == nearest.name
        assert part["logit"] == pytest.approx(nearest.logit, rel=1e-3)
        related = sum(other["value"] for other in part["related"])
        assert part["own"] + part["constant"] + related == pytest.approx(part["score"], abs=0.01)
    drawn, heatmap = answer["heatmap"], classifier.heatmap(image)
    assert (drawn["class"], drawn["against"]) == ("red", None)
    assert np.array(drawn["scores"]).shape == (drawn["rows"], drawn["columns"])
    assert np.array(drawn["scores"]) == pytest.approx(heatmap.scores.numpy(), abs=1e-2)
    assert np.sum(drawn["scores"]) == pytest.approx(drawn["score"], rel=1e-4)
    assert drawn["crop"] == [0, 0, 1, 1]  # this encoder takes the whole image
    other = asking.post("/api/explain", files=files([image], "image"), data={"class": "green", "against": "red"}).json()
    assert (other["heatmap"]["class"], other["heatmap"]["against"], other["class"]) == ("green", "red", "red")
    assert other["heatmap"]["score"] < 0


@pytest.mark.parametrize(
    ("route", "field", "count", "data", "sentence"),
    [
        ("predict", "images", 0, {"top": "1"}, "no images are given: send at least one, in the field 'images'"),
        ("predict", "images", 1, {"top": "0"}, "top must be a whole number from 1 on"),
        ("predict", "images", 1, {"top": "９"}, "top must be a whole number from 1 on"),
        ("predict", "images", 1, {"toq": "1"}, "the field 'toq' is not known here: send top or images"),
        ("predict", "image", 1, {}, "files belong to the field 'images', not 'image'"),
        ("explain", "image", 2, {}, "explain takes one image at a time, not 2"),
        ("explain", "image", 1, {"class": "gren"}, "there is no class 'gren': did you mean 'green'?"),
        ("explain", "image", 1, {"against": "red"}, "'red' is the class that the heatmap is of: compare it with another"),
    ],
)
def test_mistakes_are_told_as_the_command_does(
    asking: Asking, route: str, field: str, count: int, data: dict[str, str], sentence: str
) -> None:
    images = files(photographs("red", count), field)
    sent = {"files": images, "data": data} if images else {"files": {name: (None, text) for name, text in data.items()}}
    answer = asking.post(f"/api/{route}", **sent)
    assert (answer.status_code, answer.json()) == (400, {"error": sentence})


def test_nothing_can_be_asked_before_there_is_a_class(tmp_path: Path) -> None:
    Classifier.empty(encoder()).save(tmp_path / "new.pg")
    with client(tmp_path / "new.pg") as asking:
        for route, field in (("predict", "images"), ("explain", "image")):
            answer = asking.post(f"/api/{route}", files=files(photographs("red", 1), field))
            assert answer.json() == {"error": "the classifier knows no class yet: add one first"}
        assert asking.get("/api/check").status_code == 400
        assert asking.get("/api/classes").json()["classes"] == []


def test_an_image_on_its_side_is_covered_as_it_is_looked_at(asking: Asking) -> None:
    lying = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(io.BytesIO(photograph("red", 1, (120, 80)))).save(lying, "JPEG", exif=exif)
    answer = asking.post("/api/explain", files=files([lying.getvalue()], "image")).json()
    assert answer["heatmap"]["crop"] == [0, 0, 1, 1]
    assert answer["class"] == "red"
