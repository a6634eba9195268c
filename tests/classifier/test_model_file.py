"""The model file.

data_files/v0.1.pg and digits-v1.pg, with their .json, were written by earlier versions: never write them again, since every
later version must load these very files.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from sklearn.datasets import load_digits

from kept import D, blobs, fitted
from protograph import AUX, AttributeRelation, Classifier, Op, UnicodeRelation, Variant
from protograph._internal.errors import InputError
from protograph._internal.old_names import CLASSIFIER_PARAMETERS, renamed
from protograph._internal.sealed import metadata, seal, unseal
from protograph.classifier import model_file as modelfile
from protograph.classifier.model_file import FORMAT_VERSION, read_model, variant_from
from protograph.variants import VARIANTS

ROOT = Path(__file__).parents[2]
OLD = Path(__file__).parent / "data_files" / "v0.1.pg"


def full() -> Classifier:
    """A classifier with everything a file can hold but an encoder."""
    features, labels = blobs(classes=8, images=20)
    table = AttributeRelation(torch.eye(8, 4) + 0.1, list("abcdefgh"), centred=True)
    known = Classifier(variant="gcgpn-aux", steps=5, unknown=0.1, seed=3)
    known.fit(
        features, labels, {"letter": UnicodeRelation({"base": 1.0, "script": 0.5}), "look": table, "by hand": {("a", "b"): 0.5}}
    )
    known.add_class("é", features[:3], {"look": [1.0, 0.0, 0.5, 0.2], "by hand": {"e": 0.7}})
    known.add_class("ø", relations={"look": "a", "letter": {"a": 0.3}, "by hand": {"é": 0.1}})
    return known.remove_class("c").rename_class("d", "δ")


def queries() -> Any:
    return np.random.default_rng(7).normal(size=(20, D)).astype(np.float32)


def answers(known: Classifier) -> dict[str, Any]:
    return {
        "classes": known.classes_.tolist(),
        "predictions": known.predict(queries()).tolist(),
        "probabilities": known.predict_proba(queries()).tolist(),
        "threshold": known.threshold_,
        "bias": known.bias_,
        "parameters": {name: value for name, value in known.get_params().items() if name != "encoder"},
    }


@pytest.mark.slow
def test_all_of_it_comes_back_and_goes_on_as_before(tmp_path: Path) -> None:
    known = full()
    known.save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    assert answers(loaded) == answers(known)
    assert np.array_equal(loaded.prototypes_, known.prototypes_)
    for one in (known, loaded):  # the sources can still be asked, also of classes that were added
        one.add_class("è", queries()[:2], {"look": [0.9, 0.1, 0.5, 0.2]})
    np.testing.assert_allclose(loaded.prototypes_, known.prototypes_, atol=1e-6)
    look = loaded.space_.relations["look"].similarities
    assert look[-1, known.classes_.tolist().index("é")] > 0.9
    loaded.save(tmp_path / "again.pg")
    assert answers(Classifier.load(tmp_path / "again.pg")) == answers(loaded)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", sorted({name for name, one in VARIANTS.items() if one.objective == "joint" and not one.after})
)
def test_every_variant_can_be_kept(variant: str, tmp_path: Path) -> None:
    known = copy.deepcopy(fitted(variant, "dense" if VARIANTS[variant].needs_relation else None)).add_class(
        "x", np.ones((2, D))
    )
    known.save(tmp_path / "kept.pg")
    assert np.array_equal(Classifier.load(tmp_path / "kept.pg").predict_proba(queries()), known.predict_proba(queries()))


def test_numbers_of_numpy_are_kept_as_numbers(tmp_path: Path) -> None:
    features, labels = blobs()
    Classifier(variant="gcgpn-cos-aux", steps=np.int64(2), learning_rate=np.float32(0.1)).fit(features, labels).save(
        tmp_path / "kept.pg"
    )
    assert Classifier.load(tmp_path / "kept.pg").steps == 2


def test_a_variant_of_ones_own_is_kept_as_it_is(tmp_path: Path) -> None:
    own = Variant("own", (Op("cos", blocks=("sn", "ss"), options={"temperature": 3.0}), *AUX), "own", layers=2, scales=False)
    features, labels = blobs()
    Classifier(variant=own, steps=2).fit(features, labels).save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    assert loaded.variant == loaded.space_.variant == own
    for one in VARIANTS.values():
        if not one.candidates and one.method is None:
            assert variant_from(json.loads(json.dumps(asdict(one)))) == one


def test_the_file_of_version_0_1_loads() -> None:
    expected = json.loads(OLD.with_suffix(".json").read_text(encoding="utf-8"))
    assert OLD.stat().st_size < 50_000
    known = Classifier.load(OLD)
    found = answers(known)
    assert (found["classes"], found["predictions"]) == (sorted(expected["classes"]), expected["predictions"])
    parameters = renamed(expected["parameters"], CLASSIFIER_PARAMETERS)
    assert parameters.pop("balance") is True, "of which the file keeps the bias"
    parameters |= {
        "prior": "uniform",
        "variant": "gcgpn-aux",
        "keep_features": False,
        "thumbnails": False,
        "refit_up_to": 0,
    }
    assert json.loads(json.dumps(found["parameters"])) == parameters
    order = np.argsort(expected["classes"])
    np.testing.assert_allclose(found["probabilities"], np.array(expected["probabilities"])[:, order], atol=1e-6)
    assert (found["threshold"], found["bias"]) == pytest.approx((expected["threshold"], expected["bias"]))
    known.add_class("è", queries()[:1], {"look": [0.9, 0.1, 0.5, 0.2]})
    np.testing.assert_allclose(known.space_.prototypes[-1], expected["added"], atol=1e-5)


def test_a_file_of_version_1_of_digits_loads() -> None:
    """A classifier of scikit-learn's digits, written by the code before format version 2, answers as it did then."""
    file = OLD.with_name("digits-v1.pg")
    expected = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    digits, _ = load_digits(return_X_y=True)
    known = Classifier.load(file)
    assert metadata(file.read_bytes())["version"] == "1"
    assert known.learning_rate == 0.2
    assert known.predict(digits[:200]).tolist() == expected["predict"]
    in_space = known.predict_proba(digits[:10])[:, np.argsort(known.order_)]
    np.testing.assert_allclose(in_space, expected["proba"], atol=1e-6)
    for digit, nearest in zip(digits, expected["explain"], strict=False):
        for answer, (name, probability, parts) in zip(known.explain(digit), nearest, strict=True):
            assert (answer.name, answer.probability) == (name, pytest.approx(probability, abs=1e-6))
            values = {(part.name, part.operator): part.value for part in answer.parts}
            assert values == pytest.approx({(other, label): float(value) for other, label, value in parts}, abs=1e-6)


def test_every_version_is_upgraded_to_todays_layout(kept: Path) -> None:
    def use_old_name(values: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        values["parameters"]["rate"] = values["parameters"].pop("learning_rate")

    known = Classifier.load(kept)
    assert metadata(kept.read_bytes())["version"] == str(FORMAT_VERSION) == "3"
    rewritten(kept, use_old_name, version="1")
    old = Classifier.load(kept)
    assert old.get_params() == known.get_params() | {"encoder": None}
    assert np.array_equal(old.predict_proba(queries()), known.predict_proba(queries()))
    old.save(kept)
    assert metadata(kept.read_bytes())["version"] == str(FORMAT_VERSION)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None], **header: str) -> None:
    """Change what a file says, and texts of its header, with a right checksum."""
    content = path.read_bytes()
    text, tensors = unseal(content, "classifier")
    values = json.loads(text)
    change(values, tensors)
    said = {name: value for name, value in metadata(content).items() if name not in ("classifier", "digest")}
    path.write_bytes(seal(tensors, "classifier", json.dumps(values), **said | header))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    copy.deepcopy(fitted("gcgpn-aux", "sparse")).add_class("new", np.ones((1, D)), {"a": 0.5}).save(tmp_path / "kept.pg")
    return tmp_path / "kept.pg"


def test_damaged_and_foreign_files_are_refused_with_the_reason(kept: Path) -> None:
    whole = kept.read_bytes()
    header = metadata(whole)
    newer = save({"x": torch.zeros(1)}, {**header, "version": "5", "protograph": "9.9"})
    for content, reason in (
        (b"", "is not a model file"),
        (b"a text, and no tensors", "is not a model file"),
        (save({"x": torch.zeros(1)}), "is not a model file"),
        (save({"x": torch.zeros(1)}, {"format": "pt"}), "not a Protograph classifier"),
        (newer, "version 5 of the format, written by protograph 9.9.*which reads versions 1 to 4: install a newer one"),
        (save({"x": torch.zeros(1)}, {**header, "version": "4"}), r"is damaged \(its header is not that of version 4\)"),
        (save({"x": torch.zeros(1)}, {**header, "version": "one"}), r"is damaged \(version one of its format\)"),
        (whole[: len(whole) // 2], "is (damaged|not a model file)"),
        (whole[:-1], "is damaged"),
        (whole + b"x", "is damaged"),
        (whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:], "do not match their checksum"),
        (whole.replace(b'\\"new\\"', b'\\"nay\\"'), "do not match their checksum"),
    ):
        kept.write_bytes(content)
        with pytest.raises(InputError, match=reason):
            Classifier.load(kept)
    with pytest.raises(InputError, match="no model file at"):
        Classifier.load(kept.with_name("other.pg"))
    with pytest.raises(InputError, match="is a folder"):
        Classifier.load(kept.parent)
    with pytest.raises(InputError, match="is a folder: name a file"):
        fitted("gcgpn-cos-aux", None).save(kept.parent)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda values, tensors: values["names"].append("more"), "7 labels, and 8 different names"),
        (lambda values, tensors: values["examples"].append(2), "the tensor '(prototypes|support|model.prototypes)' is"),
        (lambda values, tensors: values.update(features=4), "the tensor '.*' is .* not .*4"),
        (lambda values, tensors: tensors.update(prototypes=tensors["prototypes"][:, :3]), "the tensor 'prototypes' is"),
        (lambda values, tensors: tensors.pop("model.prototypes"), "the tensor 'model.prototypes' is missing"),
        (lambda values, tensors: values["relations"][0]["known"].append(None), "relation 'similarity' is not of 7 classes"),
        (
            lambda values, tensors: tensors.update({"relation.0.similarities.edges": torch.full((2, 12), 9)}),
            "size|shape|index|edges",
        ),
        (lambda values, tensors: values["variant"].pop("operators"), "operators"),
        (lambda values, tensors: values.pop("encoder"), "encoder"),
    ],
)
def test_contents_that_do_not_fit_are_refused(kept: Path, change: Any, reason: str) -> None:
    rewritten(kept, change)
    with pytest.raises(InputError, match=rf"is damaged \(.*({reason})"):
        Classifier.load(kept)


def test_an_operator_of_somebody_else_is_named(kept: Path) -> None:
    rewritten(kept, lambda values, tensors: values["variant"]["operators"][0].update(kind="magic"))
    with pytest.raises(
        InputError, match=r"made with the operator 'magic', .*: name the file that registers it \(--plugin FILE\)"
    ):
        Classifier.load(kept)


def test_an_edit_that_fails_leaves_the_file_alone(kept: Path) -> None:
    before = kept.read_bytes()
    with pytest.raises(InputError, match="there is a class 'new'"), Classifier.edit(kept) as known:
        known.add_class("newer", np.ones((1, D))).add_class("new", np.ones((1, D)))
    assert kept.read_bytes() == before
    assert [path.name for path in kept.parent.iterdir()] == ["kept.pg"]
    with pytest.raises(InputError, match="no model file at"), Classifier.edit(kept.parent / "no" / "kept.pg"):
        pass


def test_classes_added_at_the_same_time_are_all_kept(kept: Path) -> None:
    def add(place: int) -> None:
        with Classifier.edit(kept) as known:
            known.add_class(f"new {place}", np.full((1, D), place + 1.0))

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(add, place) for place in range(8)]:
            future.result()
    assert set(Classifier.load(kept).classes_[7:]) == {f"new {place}" for place in range(8)}


@pytest.mark.slow
def test_a_reader_sees_the_old_or_the_new_file(kept: Path) -> None:
    counts = []
    with ThreadPoolExecutor(1) as threads:

        def add() -> None:
            for place in range(10):
                with Classifier.edit(kept) as known:
                    known.add_class(f"new {place}", np.ones((1, D)))

        writing = threads.submit(add)
        while not writing.done():
            counts.append(len(Classifier.load(kept).classes_))
        writing.result()
    assert counts == sorted(counts)


ADDING = """
import os, signal, sys
import numpy as np
from protograph import Classifier

replace, at = os.replace, sys.argv[2]

def killed(*paths):
    if at == "after":
        replace(*paths)
    os.kill(os.getpid(), signal.SIGKILL)

os.replace = killed
with Classifier.edit(sys.argv[1]) as known:
    known.add_class("killed", np.ones((1, 5)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["before", "after"])
def test_a_kill_leaves_the_old_file_or_the_new_one(kept: Path, at: str) -> None:
    old = Classifier.load(kept).classes_.tolist()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", ADDING, str(kept), at], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    left = {path.name for path in kept.parent.iterdir()}
    assert ".kept.pg.lock" in left
    assert len(left) == (4 if at == "before" else 3)  # with the history and, before it is in its place, the new file
    expected = sorted([*old, "killed"]) if at == "after" else old
    assert Classifier.load(kept).classes_.tolist() == expected
    with Classifier.edit(kept) as known:  # whose lock the dead one held
        known.add_class("next", np.ones((1, D)))
    assert Classifier.load(kept).classes_.tolist() == [*expected, "next"]
    assert sorted(path.name for path in kept.parent.iterdir()) == ["kept.pg", "kept.pg.history"]


def test_a_change_leaves_the_lock_of_a_file_whose_name_begins_alike_alone(kept: Path) -> None:
    other, own = kept.with_name("kept.pg.v2"), kept.with_name(".kept.pg.README")
    other.write_bytes(kept.read_bytes())
    own.touch()
    with Classifier.edit(other):
        with Classifier.edit(kept) as known:
            known.add_class("newest", np.ones((1, D)))
        assert other.with_name(".kept.pg.v2.lock").exists()
        assert own.exists()


def test_a_file_has_one_lock_by_whatever_link_it_is_changed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelfile, "LOCK_SECONDS", 0.05)
    link = kept.with_name("link.pg")
    link.symlink_to(kept)
    with Classifier.edit(link) as known:
        known.add_class("newest", np.ones((1, D)))
        with pytest.raises(InputError, match=r"kept\.pg is in use by process"), Classifier.edit(kept):
            pass
    assert link.is_symlink()
    assert "newest" in Classifier.load(kept).classes_


def test_two_who_change_it_wait_for_one_another_or_are_told(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelfile, "LOCK_SECONDS", 0.05)
    with Classifier.edit(kept), pytest.raises(InputError, match=r"kept\.pg is in use by process"), Classifier.edit(kept):
        pass


def test_a_relation_without_a_source_and_one_whose_file_is_gone(tmp_path: Path) -> None:
    features, labels = blobs()
    table = tmp_path / "words.csv"
    table.write_text("".join(f"{name},{place}.5,1\n" for place, name in enumerate("abcdefg")))
    known = Classifier(variant="gcgpn-aux", steps=2).fit(features, labels, f"embeddings:{table}")
    known.save(tmp_path / "kept.pg")
    named = [f"embeddings:{table}"]
    loaded = Classifier.load(tmp_path / "kept.pg", relations=named).add_class("g", features[:1])
    assert loaded.space_.relations["embeddings_words"].known[-1] == "g"
    table.unlink()
    gone = Classifier.load(tmp_path / "kept.pg", relations=named)
    with pytest.warns(UserWarning, match="class 'g' is taken as unrelated: there is no relation file at"):
        gone.add_class("g", features[:1])
    gone.add_class("h", features[:1], {"a": 0.5})
    assert read_model(tmp_path / "kept.pg").values["relations"][0]["source"]["spec"].startswith("embeddings:")


def test_what_a_killed_process_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    known = Classifier().fit(*blobs())
    (tmp_path / ".known.pg.ab12cd34.part").write_bytes(b"half")
    known.save(tmp_path / "known.pg")
    assert [path.name for path in tmp_path.iterdir()] == ["known.pg"]
