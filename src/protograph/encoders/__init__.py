"""Images -> features: what a classifier on images stands on."""

from protograph.encoders.base import Encoder, ImageEncoder, KeptEncoder
from protograph.encoders.preparation import Preparation
from protograph.encoders.registry import BACKBONE_NAMES, check_trainable, open_encoder
from protograph.encoders.shipped import backbone_encoder, pack_backbone

__all__ = [
    "BACKBONE_NAMES",
    "Encoder",
    "ImageEncoder",
    "KeptEncoder",
    "Preparation",
    "backbone_encoder",
    "check_trainable",
    "open_encoder",
    "pack_backbone",
]
