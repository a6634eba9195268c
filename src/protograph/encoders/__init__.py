"""Images -> features: what a classifier on images stands on."""

from protograph.encoders.base import Encoder, ImageEncoder, KeptEncoder, SpatialEncoder
from protograph.encoders.preparation import Preparation
from protograph.encoders.registry import (
    BACKBONE_NAMES,
    STRONG_NAME,
    backbone_title,
    check_trainable,
    check_weights_used,
    names_path,
    open_encoder,
    strongest_backbone,
    usual_copies,
)
from protograph.encoders.shipped import backbone_encoder, pack_backbone

__all__ = [
    "BACKBONE_NAMES",
    "STRONG_NAME",
    "Encoder",
    "ImageEncoder",
    "KeptEncoder",
    "Preparation",
    "SpatialEncoder",
    "backbone_encoder",
    "backbone_title",
    "check_trainable",
    "check_weights_used",
    "names_path",
    "open_encoder",
    "pack_backbone",
    "strongest_backbone",
    "usual_copies",
]
