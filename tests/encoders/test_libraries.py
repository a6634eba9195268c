"""timm and transformers themselves, where they are installed: the same features as by their own preprocessing.

    pip install timm transformers && python -m pytest tests/encoders/test_libraries.py

Networks are small and nobody trained them, so nothing is fetched.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from protograph.encoders import ImageEncoder, open_encoder

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs


def has(*modules: str) -> bool:
    return all(find_spec(module) is not None for module in modules)


def slope(height: int, width: int) -> Image.Image:
    """A slope of colours, on which ways of resizing differ little."""
    down, right = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return Image.fromarray((255 * np.stack([down, right, 1 - down * right], 2)).round().astype(np.uint8))


IMAGES = [slope(300, 401), slope(180, 120), slope(64, 64)]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def check(encoder: ImageEncoder, expected: Callable[[Image.Image], Tensor]) -> None:
    """The same features, and again the same from what is described."""
    found = encoder.encode(IMAGES)
    with torch.no_grad():
        theirs = torch.cat([expected(image) for image in IMAGES]).flatten(1).to(found)
    assert found.shape == theirs.shape
    assert torch.allclose(found, theirs, atol=0.01 * theirs.abs().max().item())
    assert torch.equal(open_encoder(encoder.description()).encode(IMAGES), found)


@pytest.mark.skipif(not has("transformers"), reason="transformers is not installed")
@pytest.mark.parametrize("kind", ["vit", "vit-classifier", "clip", "dinov2", "resnet"])
def test_transformers(kind: str, tmp_path: Path) -> None:
    import transformers as tf

    vit = tf.ViTConfig(**SMALL, image_size=64, patch_size=16) if kind.startswith("vit") else None
    torch.manual_seed(0)
    model, processor = {
        "vit": lambda: (tf.ViTModel(vit), tf.ViTImageProcessor(size={"height": 64, "width": 64})),
        "vit-classifier": lambda: (tf.ViTForImageClassification(vit), tf.ViTImageProcessor(size={"height": 64, "width": 64})),
        "clip": lambda: (
            tf.CLIPModel(
                tf.CLIPConfig(text_config=SMALL, vision_config={**SMALL, "image_size": 64, "patch_size": 16}, projection_dim=16)
            ),
            tf.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}),
        ),
        "dinov2": lambda: (
            tf.Dinov2Model(tf.Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=56)),
            tf.BitImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 56, "width": 56}),
        ),
        "resnet": lambda: (
            tf.ResNetModel(tf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])),
            tf.ConvNextImageProcessor(size={"shortest_edge": 64}),
        ),
    }[kind]()
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    theirs = tf.AutoModel.from_pretrained(tmp_path).eval()

    def expected(image: Image.Image) -> Any:
        pixels = processor(images=image, return_tensors="pt")["pixel_values"]
        output = getattr(theirs, "get_image_features", theirs)(pixel_values=pixels)
        if isinstance(output, Tensor):
            return output
        return output.last_hidden_state[:, 0] if kind == "vit-classifier" else output.pooler_output

    check(open_encoder(f"transformers:{tmp_path}"), expected)


@pytest.mark.skipif(not has("timm", "torchvision"), reason="timm is not installed, or torchvision, which it needs")
@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_100"])
def test_timm(name: str, tmp_path: Path) -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)

    def expected(image: Image.Image) -> Any:
        return model.forward_head(model.forward_features(transform(image)[None]), pre_logits=True)

    check(open_encoder(f"timm:{name}@{tmp_path / 'weights.safetensors'}"), expected)
