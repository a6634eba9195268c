"""timm and transformers by their documented interface, played by small networks: neither is installed for the tests."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from data.layouts import blocks
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.cli import app
from protograph.encoders import open_encoder
from protograph.encoders.base import ImageEncoder

IMAGE = Image.fromarray(blocks(60, 90, 1))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def module(name: str, **contents: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(contents)
    return made


def network(seed: int = 0) -> nn.Module:
    """Images [n, 3, H, W] -> [n, 5, 1, 1]."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1))


class FakeTimm:
    """timm 1.0: two models, whose weights are a file that holds a seed."""

    def __init__(self, tmp_path: Path) -> None:
        self.hub = tmp_path / "hub.safetensors"
        self.config = {
            "input_size": (3, 20, 20), "interpolation": "bicubic", "mean": MEAN, "std": STD, "crop_pct": 0.8,
            "crop_mode": "center",
        }  # fmt: skip
        self.heads: list[int] = []

    def get_pretrained_cfg(self, name: str) -> Any:
        if "." in name:
            raise RuntimeError(f"Invalid pretrained tag ({name.partition('.')[2]}) for {name}.")
        known = {"net": "timm/net", "old": None}
        if name not in known:
            return None
        return SimpleNamespace(hf_hub_id=known[name], hf_hub_filename=None, url="https://nowhere/v1/net-0.pth")

    def create_model(self, name: str, pretrained: bool, pretrained_cfg_overlay: dict[str, Any]) -> nn.Module:
        assert pretrained
        assert not pretrained_cfg_overlay["custom_load"]
        made = network(pretrained_cfg_overlay["state_dict"]["seed"])
        made.reset_classifier = self.heads.append  # type: ignore[assignment]
        return made

    def load_state_dict(self, path: str, weights_only: bool = False) -> dict[str, Any]:
        assert weights_only, "timm 1.0.9 to 1.0.25 run what a pickle names"
        return {"seed": json.loads(Path(path).read_text())}

    def try_to_load_from_cache(self, repository: str, file: str) -> str | None:
        found = self.hub.is_file() and (repository, file) == ("timm/net", self.hub.name)
        return str(self.hub) if found else None


@pytest.fixture
def timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm(tmp_path)
    fake.hub = tmp_path / "model.safetensors"
    data = module("timm.data", resolve_model_data_config=lambda model: fake.config)
    functions = {"get_pretrained_cfg": fake.get_pretrained_cfg, "create_model": fake.create_model}
    models = module("timm.models", load_state_dict=fake.load_state_dict)
    monkeypatch.setitem(sys.modules, "timm", module("timm", data=data, models=models, **functions))
    hub = module("huggingface_hub", try_to_load_from_cache=fake.try_to_load_from_cache)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    return fake


def expected_features(made: nn.Module, pixels: Any) -> Tensor:
    """Of pixels [H, W, 3], normalised by hand."""
    ready = torch.from_numpy((np.asarray(pixels) / 255 - MEAN) / STD).float().permute(2, 0, 1)
    with torch.no_grad():
        return made.eval()(ready[None]).flatten(1)


def middle(edge: int, size: int) -> Image.Image:
    """IMAGE with its shorter edge `edge` long, and the middle of that."""
    resized = IMAGE.resize((edge * 90 // 60, edge), Image.Resampling.BICUBIC)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    return resized.crop((left, top, left + size, top + size))


def test_a_timm_model_from_the_cache(timm: FakeTimm) -> None:
    timm.hub.write_text("3")
    encoder = open_encoder("timm:net")
    assert torch.allclose(encoder.encode([IMAGE]), expected_features(network(3), middle(25, 20)), atol=0.02)
    assert encoder.features == 5
    assert timm.heads == [0]
    assert encoder.tensors() == {}, "its weights stay where they are"
    assert not any(module.training for module in encoder.network.modules())


def test_a_timm_model_from_the_cache_of_torch(timm: FakeTimm, tmp_path: Path) -> None:
    (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
    (tmp_path / "torch" / "checkpoints" / "net-0.pth").write_text("4")
    same = open_encoder("timm:old").encode([IMAGE])
    assert torch.allclose(same, expected_features(network(4), middle(25, 20)), atol=0.02)


def test_a_timm_model_from_a_file(timm: FakeTimm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.pth").write_text("5")
    monkeypatch.chdir(tmp_path)
    encoder = open_encoder("timm:net@own.pth")
    assert encoder.description()["name"] == f"net@{tmp_path / 'own.pth'}", "wherever it is opened again"
    (tmp_path / "own.pth").write_text("not a seed")
    with pytest.raises(InputError, match=r"own.pth does not hold the weights of timm model 'net' \(Expecting value"):
        open_encoder("timm:net@own.pth")


def test_timm_squashes_where_the_model_says_so(timm: FakeTimm) -> None:
    timm.hub.write_text("3")
    timm.config |= {"crop_mode": "squash", "crop_pct": 1.0}
    whole = IMAGE.resize((20, 20), Image.Resampling.BICUBIC)
    assert torch.allclose(open_encoder("timm:net").encode([IMAGE]), expected_features(network(3), whole), atol=1e-5)
    timm.config["crop_mode"] = "border"
    with pytest.raises(InputError, match=r"takes images in a way that is not supported \(border, 20 x 20\)"):
        open_encoder("timm:net")


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("timm:net", r"not in the cache: fetch them once with `python -c \"import timm"),
        ("timm:old", "not in the cache"),
        ("timm:none", "timm has no model 'none' with weights"),
        ("timm:net.wrong", "Invalid pretrained tag"),
        ("timm:net@absent.pth", "no file of weights for timm model 'net' at absent.pth"),
        ("timm:", "names no model: give timm:NAME"),
        ("tim:net", "unknown backbone 'tim': did you mean timm:NAME"),
        ("conv5", "unknown backbone 'conv5': did you mean conv4"),
    ],
)
def test_what_is_not_there_is_named(timm: FakeTimm, name: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        open_encoder(name)


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf'needs {library} .*: pip install "protograph\[{library}\]"'):
        open_encoder(f"{library}:net")


class FakeTransformers:
    """transformers 4 and 5: models whose folder holds a seed."""

    def __init__(self) -> None:
        self.output: dict[str, Any] = {"last_hidden_state": None, "pooler_output": None}
        self.missing: list[str] = []
        self.image_features = False
        self.verbosity: list[Any] = []
        self.processor = SimpleNamespace(
            size={"height": 20, "width": 20}, do_resize=True, do_rescale=True, rescale_factor=1 / 255, do_normalize=True,
            image_mean=list(MEAN), image_std=list(STD), resample=3,
        )  # fmt: skip

    def load_processor(self, name: str, local_files_only: bool, trust_remote_code: bool) -> Any:
        assert local_files_only
        assert not trust_remote_code
        if not Path(name).is_dir():
            raise OSError(f"We couldn't connect to the hub\nand {name} is not a folder")
        return self.processor

    def load_model(
        self, name: str, local_files_only: bool, trust_remote_code: bool, weights_only: bool, output_loading_info: bool
    ) -> tuple[nn.Module, dict[str, Any]]:
        assert local_files_only
        assert not trust_remote_code
        assert weights_only
        assert output_loading_info
        made = FakeModel(network(json.loads((Path(name) / "seed").read_text())), self)
        return made, {"missing_keys": self.missing}


class FakeModel(nn.Module):
    def __init__(self, inner: nn.Module, fake: FakeTransformers) -> None:
        super().__init__()
        self.inner, self.kinds = inner, fake.output
        self.pooler = nn.Module()
        self.pooler.weight = nn.Parameter(torch.randn(3))  # type: ignore[assignment]
        if fake.image_features:
            self.get_image_features = lambda pixel_values: self.inner(pixel_values).flatten(1)

    def forward(self, pixel_values: Tensor) -> Any:
        features = self.inner(pixel_values)
        return SimpleNamespace(**{kind: make(features) if make else None for kind, make in self.kinds.items()})


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> FakeTransformers:
    fake = FakeTransformers()
    logging = module(
        "transformers.utils.logging",
        get_verbosity=lambda: 30,
        set_verbosity_error=lambda: fake.verbosity.append("error"),
        set_verbosity=fake.verbosity.append,
        is_progress_bar_enabled=lambda: True,
        disable_progress_bar=lambda: fake.verbosity.append("no bar"),
        enable_progress_bar=lambda: fake.verbosity.append("bar"),
    )
    utils = module("transformers.utils", logging=logging)
    processor, model = (SimpleNamespace(from_pretrained=load) for load in (fake.load_processor, fake.load_model))
    monkeypatch.setitem(
        sys.modules, "transformers", module("transformers", AutoImageProcessor=processor, AutoModel=model, utils=utils)
    )
    monkeypatch.setitem(sys.modules, "transformers.utils", utils)
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "seed").write_text("6")
    return tmp_path


WHOLE = IMAGE.resize((20, 20), Image.Resampling.BICUBIC)


def check_features(encoder: ImageEncoder, seed: int = 6, pixels: Image.Image = WHOLE, atol: float = 1e-5) -> None:
    assert torch.allclose(encoder.encode([IMAGE]), expected_features(network(seed), pixels), atol=atol)


def test_a_pooled_output(transformers: FakeTransformers, folder: Path) -> None:
    transformers.output = {"last_hidden_state": None, "pooler_output": lambda features: features}
    check_features(open_encoder(f"transformers:{folder}"))
    assert transformers.verbosity == ["error", "no bar", 30, "bar"], "as it was before"


def test_a_pooler_without_weights_is_passed_over_for_the_first_token(transformers: FakeTransformers, folder: Path) -> None:
    transformers.missing = ["pooler.weight"]
    transformers.output = {
        "pooler_output": lambda features: 0 * features,
        "last_hidden_state": lambda features: torch.stack([features.flatten(1), features.new_zeros(len(features), 5)], 1),
    }
    encoder = open_encoder(f"transformers:{folder}")
    check_features(encoder)
    open_encoder(encoder.description(), weights=folder)  # what is random is no part of what it remembers of the weights


def test_places_are_averaged_where_nothing_is_pooled(transformers: FakeTransformers, folder: Path) -> None:
    transformers.output = {"last_hidden_state": lambda features: features.expand(-1, -1, 2, 3)}
    check_features(open_encoder(f"transformers:{folder}"))


def test_image_features_come_first(transformers: FakeTransformers, folder: Path) -> None:
    transformers.image_features = True
    check_features(open_encoder(f"transformers:{folder}"))


@pytest.mark.parametrize(
    ("settings", "edge", "size"),
    [
        ({"size": {"shortest_edge": 25}, "do_center_crop": True, "crop_size": {"height": 20, "width": 20}}, 25, 20),
        ({"size": {"shortest_edge": 20}, "crop_pct": 0.8}, 25, 20),
    ],
    ids=["CLIP", "ConvNeXt"],
)
def test_images_are_cut_as_the_processor_says(
    transformers: FakeTransformers, folder: Path, settings: dict[str, Any], edge: int, size: int
) -> None:
    transformers.image_features = True
    vars(transformers.processor).update(settings)
    check_features(open_encoder(f"transformers:{folder}"), pixels=middle(edge, size), atol=0.02)


def test_a_processor_may_leave_normalising_out(transformers: FakeTransformers, folder: Path) -> None:
    transformers.image_features, transformers.processor.do_normalize = True, False
    preparation = open_encoder(f"transformers:{folder}").preparation
    assert (preparation.mean, preparation.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    "settings",
    [
        {"size": {"longest_edge": 20}},
        {"size": {"shortest_edge": 20}},
        {"size": None},
        {"do_resize": False},
        {"rescale_factor": 1.0},
    ],
    ids=["longest edge", "nothing cut", "no size", "not resized", "not rescaled"],
)
def test_processors_that_work_otherwise_are_refused(
    transformers: FakeTransformers, folder: Path, settings: dict[str, Any]
) -> None:
    transformers.image_features = True
    vars(transformers.processor).update(settings)
    with pytest.raises(InputError, match="takes images in a way that is not supported"):
        open_encoder(f"transformers:{folder}")


def test_transformers_models_that_will_not_do_are_named(transformers: FakeTransformers, folder: Path) -> None:
    with pytest.raises(InputError, match=r"no vision model 'org/net' .*We couldn't connect .*once with `hf download"):
        open_encoder("transformers:org/net")
    with pytest.raises(InputError, match="gives no features for an image"):
        open_encoder(f"transformers:{folder}")
    transformers.missing = ["layer.3.weight", "pooler.weight"]
    with pytest.raises(InputError, match=r"lack 1 of the model's, such as layer\.3\.weight"):
        open_encoder(f"transformers:{folder}")


def test_it_is_opened_again_with_the_weights_it_had(
    transformers: FakeTransformers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.image_features, transformers.missing = True, ["pooler.weight"]
    monkeypatch.chdir(folder.parent)
    encoder = open_encoder(f"transformers:{folder.name}")
    described = json.loads(json.dumps(encoder.description()))
    assert described["name"] == str(folder)
    transformers.processor.resample = 0  # what was fitted counts, not what a later version of the library says
    again = open_encoder(described, weights=folder)
    assert torch.equal(again.encode([IMAGE]), encoder.encode([IMAGE]))
    (folder / "seed").write_text("7")
    with pytest.raises(InputError, match="are not those the classifier was fitted with"):
        open_encoder(described, weights=folder)


@pytest.mark.parametrize(
    "name", ["{folder}", "models/net", "../net", "./net", "~/net", "C:\\net", "a/b/c", "net\0", "", "-net", "ne t", "nét"]
)
def test_a_folder_that_only_a_description_names_is_not_opened(
    name: str, transformers: FakeTransformers, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers.image_features = True
    described = open_encoder(f"transformers:{folder}").description() | {"name": name.format(folder=folder)}
    (folder / "models" / "net").mkdir(parents=True)
    monkeypatch.chdir(folder)
    opened: list[str] = []
    monkeypatch.setattr(transformers, "load_processor", lambda name, **settings: opened.append(name))
    with pytest.raises(InputError, match=r"a path that is opened only if you name it: add --backbone-weights PATH"):
        open_encoder(described)
    assert not opened


def test_a_name_in_the_cache_needs_no_path(timm: FakeTimm, tmp_path: Path) -> None:
    timm.hub.write_text("3")
    encoder = open_encoder("timm:net")
    same = open_encoder(encoder.description())
    assert torch.equal(same.encode([IMAGE]), encoder.encode([IMAGE]))
    (tmp_path / "other.pth").write_text("3")
    open_encoder(encoder.description(), weights=tmp_path / "other.pth")


def test_a_file_that_only_a_description_names_is_not_opened(timm: FakeTimm, tmp_path: Path) -> None:
    own, moved = tmp_path / "own.pth", tmp_path / "moved.pth"
    own.write_text("5")
    encoder = open_encoder(f"timm:net@{own}")
    with pytest.raises(InputError, match=rf"made with timm:net@{own}, a path .* add --backbone-weights PATH"):
        open_encoder(encoder.description())
    for name in ("local-dir:/etc", "hf-hub:org/net", "net@", "../net", "net/../net"):
        with pytest.raises(InputError, match="add --backbone-weights PATH"):
            open_encoder(encoder.description() | {"name": name})
    own.rename(moved)
    again = open_encoder(encoder.description(), weights=moved)
    assert torch.equal(again.encode([IMAGE]), encoder.encode([IMAGE]))
    moved.write_text("6")
    with pytest.raises(InputError, match="are not those the classifier was fitted with"):
        open_encoder(encoder.description(), weights=moved)


def test_a_model_file_opens_the_weights_that_the_user_names(timm: FakeTimm, tmp_path: Path) -> None:
    (tmp_path / "own.pth").write_text("5")
    images = [Image.fromarray(blocks(30, 30, seed)) for seed in range(8)]
    known = Classifier(f"timm:net@{tmp_path / 'own.pth'}").fit(images, list("aaaabbbb"))
    known.save(tmp_path / "own.pg")
    unnamed = Classifier.load(tmp_path / "own.pg")
    with pytest.raises(InputError, match="add --backbone-weights PATH"):
        unnamed.predict(images)
    loaded = Classifier.load(tmp_path / "own.pg", backbone_weights=tmp_path / "own.pth")
    assert loaded.predict(images).tolist() == known.predict(images).tolist()
    with Classifier.edit(tmp_path / "own.pg", backbone_weights=tmp_path / "own.pth") as edited:
        edited.add_class("c", images[:2])
    with pytest.raises(InputError, match="add --backbone-weights PATH"):
        Classifier.load(tmp_path / "own.pg").predict(images)
    Classifier("conv4").fit(images, list("aaaabbbb")).save(tmp_path / "kept.pg")
    with pytest.raises(InputError, match=r"own\.pth would be ignored, since the model has the encoder 'conv4-64-128' with"):
        Classifier.load(tmp_path / "kept.pg", backbone_weights=tmp_path / "own.pth")


@pytest.mark.parametrize(
    ("description", "named"),
    [({}, "does not describe an encoder"), ({"kind": "timm", "name": "net"}, "does not describe an encoder")],
)
def test_what_describes_no_encoder_is_refused(description: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        open_encoder(description)


def test_verbs_ask_for_weights_that_only_the_file_names(timm: FakeTimm, tmp_path: Path) -> None:
    weights, model, image = tmp_path / "own.pth", tmp_path / "own.pg", tmp_path / "image.png"
    weights.write_text("5")
    images = [Image.fromarray(blocks(30, 30, seed)) for seed in range(8)]
    images[0].save(image)
    Classifier(f"timm:net@{weights}").fit(images, list("aaaabbbb")).save(model)
    for folder in ("labelled/a", "new/d"):
        (tmp_path / folder).mkdir(parents=True)
        images[0].save(tmp_path / folder / "image.png")
    verbs = {
        "predict": [model, image], "explain": [model, image], "evaluate": [model, tmp_path / "labelled"],
        "add-class": [model, "c", image], "add-examples": [model, "c", image], "add-classes": [model, tmp_path / "new"],
    }  # fmt: skip
    for verb, arguments in verbs.items():
        words = [verb, *map(str, arguments)]
        refused = CliRunner().invoke(app, words)
        assert (refused.exit_code, refused.stdout, refused.stderr.count("add --backbone-weights PATH")) == (2, "", 1), verb
        answered = CliRunner().invoke(app, [*words, "--backbone-weights", str(weights)])
        assert answered.exit_code == 0, (verb, answered.output)
    assert Classifier.load(model).classes_.tolist() == list("abcd")
