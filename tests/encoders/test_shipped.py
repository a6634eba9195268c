import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from data.layouts import blocks
from encoders.images import backbone_weights, tiny_encoder
from protograph._internal.errors import InputError
from protograph.data import Dataset, ImageStore
from protograph.data.augmentation import Augmentation
from protograph.data.images import IMAGE_NORMALISATION
from protograph.encoders import backbone_encoder, open_encoder, pack_backbone, shipped
from protograph.encoders.shipped import open_packed
from protograph.evaluation.metrics import PAPER_MEASURES
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Checkpoint, Run
from protograph.training.setup import make_model

MEASURED = {name: {"mean": 51.5, "ci95": 0.25} for name in PAPER_MEASURES}


@pytest.fixture
def finished(toy: Dataset, toy_config: Callable[..., RunConfig], tmp_path: Path) -> Run:
    """A run folder as miniImageNet's would be, with a small net that nobody trained."""
    config = replace(toy_config("aux-only"), dataset="mini-imagenet", relations=())
    run = Run.claim(tmp_path / "run", config)
    colours = ImageStore(torch.zeros(1, 3, 84, 84, dtype=torch.uint8), IMAGE_NORMALISATION)
    model = make_model(config, replace(toy, store=colours))
    run.save(Checkpoint({f"best.{name}": value for name, value in model.state_dict().items()}))
    (run.folder / "measures.json").write_text(json.dumps({"epoch": 3, "measures": MEASURED}))
    return run


def test_a_packed_backbone_opens_as_the_runs(finished: Run, tmp_path: Path) -> None:
    origin = pack_backbone(finished.folder, tmp_path / "conv4.safetensors")
    encoder = open_packed(tmp_path / "conv4.safetensors", torch.device("cpu"))
    assert encoder.preparation.shape == (3, 84, 84)
    assert encoder.preparation.normalisation == IMAGE_NORMALISATION
    assert (encoder.augmentation.pad, encoder.augmentation.flip) == (8, True)
    best = finished.weights("best")
    for name, value in encoder.tensors().items():
        assert torch.equal(value, best[f"backbone.{name}"])
    with safe_open(tmp_path / "conv4.safetensors", framework="pt") as file:
        said = json.loads(file.metadata()["origin"])
    assert said == json.loads(json.dumps(origin))
    assert said["configuration"]["dataset"] == "mini-imagenet"
    assert said["measures"] == MEASURED


def test_a_packed_backbone_changes_copies_as_its_training_changed_images(finished: Run, tmp_path: Path) -> None:
    config = replace(finished.config, recipe=replace(finished.config.recipe, zoom=1.2, colour=0.1))
    (finished.folder / "config.json").write_text(json.dumps(config.to_dict()))
    pack_backbone(finished.folder, tmp_path / "conv4.safetensors")
    encoder = open_packed(tmp_path / "conv4.safetensors", torch.device("cpu"))
    assert encoder.augmentation == Augmentation(pad=8, flip=True, zoom=1.2, colour=0.1)


def test_an_encoder_of_a_mirroring_network_looks_from_both_sides() -> None:
    weights, shape, copies = backbone_weights(1, 3, "conv4-128"), (3, 20, 20), Augmentation(2)
    plain, mirroring = (
        backbone_encoder(name, weights, shape, IMAGE_NORMALISATION, copies, device=torch.device("cpu"))
        for name in ("conv4-128", "conv4-128-mirror")
    )
    images = [blocks(20, 20, 3, place) for place in range(4)]
    one, other = plain.encode(images), plain.encode([image[:, ::-1].copy() for image in images])
    assert not torch.allclose(one, other)
    again = open_encoder(mirroring.description(), mirroring.tensors())
    for encoder in (mirroring, again):
        torch.testing.assert_close(encoder.encode(images), (one + other) / 2)
    assert mirroring.digest() != plain.digest()


def test_conv4_is_the_shipped_file(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_backbone(finished.folder, tmp_path / "conv4.safetensors")
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "conv4.safetensors")
    assert open_encoder("conv4").features == 800


def test_runs_that_are_not_fit_for_it_are_refused(finished: Run, toy_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    (finished.folder / "measures.json").unlink()
    with pytest.raises(InputError, match="is not finished"):
        pack_backbone(finished.folder, tmp_path / "conv4.safetensors")
    Run.claim(tmp_path / "toy", toy_config("aux-only"))
    with pytest.raises(InputError, match="was trained on toy"):
        pack_backbone(tmp_path / "toy", tmp_path / "conv4.safetensors")
    assert not (tmp_path / "conv4.safetensors").exists()


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"backbone 'conv4' is missing \(conv4.safetensors\): install protograph again"):
        open_packed(tmp_path / "conv4.safetensors")
    (tmp_path / "conv4.safetensors").write_bytes(b"0" * 100)
    with pytest.raises(InputError, match="is damaged"):
        open_packed(tmp_path / "conv4.safetensors")


def test_weights_of_another_backbone_are_refused() -> None:
    encoder = tiny_encoder()
    with pytest.raises(InputError, match="not those of a backbone 'conv4-64'"):
        open_encoder(encoder.description() | {"name": "conv4-64"}, encoder.tensors())
    with pytest.raises(InputError, match="not those of a backbone 'conv4-32'"):
        open_encoder(encoder.description())


@pytest.mark.skipif(not shipped.SHIPPED.exists(), reason="the default backbone is not there yet")
def test_the_shipped_backbone_tells_images_apart() -> None:
    encoder = open_encoder("conv4", device=torch.device("cpu"))
    features = torch.nn.functional.normalize(encoder.encode([blocks(84, 84, 1), blocks(84, 84, 1), blocks(84, 84, 2)]), dim=1)
    assert encoder.features == 3200
    assert torch.isfinite(features).all()
    assert features[0] @ features[1] > 0.999
    assert features[0] @ features[2] < 0.95


def test_a_backbone_that_nobody_registered_is_named() -> None:
    encoder = tiny_encoder()
    description = encoder.description() | {"name": "strided"}
    with pytest.raises(InputError, match=r"backbone 'strided', which is not registered: name the file .* \(--plugin FILE\)"):
        open_encoder(description, encoder.tensors())
