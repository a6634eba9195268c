"""Images -> features: what a classifier on images stands on."""

from protograph.encoders.base import Encoder, ImageEncoder, KeptEncoder, SpatialEncoder
from protograph.encoders.preparation import Preparation
from protograph.encoders.registry import (
    BACKBONE_NAMES,
    backbone_title,
    check_trainable,
    default_backbone,
    open_encoder,
    usual_copies,
)
from protograph.encoders.shipped import backbone_encoder, pack_backbone

__all__ = [
    "BACKBONE_NAMES",
    "Encoder",
    "ImageEncoder",
    "KeptEncoder",
    "Preparation",
    "SpatialEncoder",
    "backbone_encoder",
    "backbone_title",
    "check_trainable",
    "default_backbone",
    "open_encoder",
    "pack_backbone",
    "usual_copies",
]
