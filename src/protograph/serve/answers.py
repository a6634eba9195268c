"""Answers as plain values: what a classifier says of images, and what it holds."""

from typing import Any

import torch

from protograph.classifier.answering import Predictions
from protograph.classifier.estimator import Classifier
from protograph.classifier.explanation import CONSTANT, EARLIER, Heatmap, Nearest
from protograph.classifier.labels import plain_label
from protograph.data.decode import open_image
from protograph.encoders import backbone_title
from protograph.encoders.preparation import Preparation
from protograph.relations import WordNetRelation
from protograph.serve.batching import Encoded
from protograph.serve.limits import Limits
from protograph.serve.model_host import Served
from protograph.serve.uploads import Upload

MOST_THUMBNAILS = 4  # of a class, that a list of classes shows
LEAST_VALUE = 0.0005  # contribution of a related class that is shown


def prediction(upload: Upload, encoded: Encoded, unknown_label: Any, top: int) -> dict[str, Any]:
    """Return what was predicted of an image, or why it cannot be read."""
    if encoded.error is not None or encoded.predictions is None:
        return {"file": upload.name, "error": encoded.error}
    return {"file": upload.name, **_answer(encoded.predictions, encoded.row, unknown_label, top)}


def _answer(predictions: Predictions, row: int, unknown_label: Any, top: int) -> dict[str, Any]:
    chances = torch.from_numpy(predictions.probabilities[row])
    best = chances.argsort(descending=True, stable=True)[:top].tolist()
    label = plain_label(predictions.labels[row])
    return {
        "class": label,
        "unknown": label == unknown_label and label not in predictions.classes,
        "likeness": float(predictions.likeness[row]),
        "nearest": [{"class": plain_label(predictions.classes[index]), "probability": chances[index].item()} for index in best],
    }


def explanation(classifier: Classifier, encoded: Encoded, top: int) -> dict[str, Any]:
    """Return the answer about an image, and the classes nearest to it with what made their scores."""
    assert encoded.features is not None
    assert encoded.predictions is not None
    labels = {str(plain_label(label)): plain_label(label) for label in classifier.classes_}
    answer = _answer(encoded.predictions, encoded.row, classifier.unknown_label, top)
    nearest = classifier.explain(encoded.features.numpy(), top)
    return {**answer, "nearest": [_contributions(part, labels) for part in nearest]}


def _contributions(nearest: Nearest, labels: dict[str, Any]) -> dict[str, Any]:
    related = [
        part for part in nearest.parts if (part.name != nearest.name or part.operator == EARLIER) and part.operator != CONSTANT
    ]
    return {
        "class": labels[nearest.name],
        "probability": nearest.probability,
        "logit": nearest.logit,
        "score": nearest.score,
        "own": nearest.own,
        "constant": sum(part.value for part in nearest.parts if part.operator == CONSTANT),
        "related": [
            {"class": labels.get(part.name, part.name), "relation": part.operator, "value": part.value}
            for part in related
            if abs(part.value) >= LEAST_VALUE
        ],
    }


def heatmap(classifier: Classifier, preparation: Preparation, drawn: Heatmap, content: bytes) -> dict[str, Any]:
    """Return a heat map, with the part of the upright image that it covers."""
    labels = {str(plain_label(label)): plain_label(label) for label in classifier.classes_}
    rows, columns = drawn.scores.shape
    with open_image(content) as opened:
        width, height = opened.size
        if opened.getexif().get(0x0112, 1) >= 5:  # it lies on its side
            width, height = height, width
    return {
        "class": labels[drawn.name],
        "against": None if drawn.against is None else labels[drawn.against],
        "score": drawn.score,
        "rows": rows,
        "columns": columns,
        "scores": drawn.scores.tolist(),
        "crop": list(preparation.shown(height, width)),
    }


def model_summary(name: str, served: Served, limits: Limits, changes: list[Any]) -> dict[str, Any]:
    """Return what there is to know of a model file."""
    classifier, space = served.classifier, served.classifier.space_
    described = served.encoder.description()
    undoable = next((change.what for change in changes if not change.undone), None)
    undone = [change.what for change in changes if change.undone]
    return {
        "file": name,
        "version": served.version,
        "classes": len(classifier.classes_),
        "fitted": space.seen,
        "added": len(classifier.classes_) - space.seen,
        "encoder": backbone_title(described),
        "size": list(described["preparation"]["shape"][1:]),
        "unknown": None if classifier.threshold_ is None else classifier.unknown,  # with few images it is not calibrated yet
        "unknown_label": plain_label(classifier.unknown_label),
        "prior": classifier.prior,
        "relations": list(space.relations),
        "has": {
            "heatmap": hasattr(served.encoder.network, "score_map"),
            "thumbnails": classifier.thumbnails,
            "features_kept": classifier.keep_features,
            "wordnet": any(isinstance(relation.source, WordNetRelation) for relation in space.relations.values()),
        },
        "limits": {name: getattr(limits, name) for name in ("bytes", "pixels", "files", "classes")},
        "history": {"undo": undoable, "redo": undone[-1] if undone else None},
    }


def class_list(classifier: Classifier) -> list[dict[str, Any]]:
    """Return all classes, in alphabetical order."""
    space = classifier.space_
    rows = []
    for label, row in zip(classifier.classes_.tolist(), classifier.order_.tolist(), strict=True):
        kept = [index for index, image in enumerate(classifier.thumbnails_of(label)) if image is not None]
        rows.append(
            {
                "class": label,
                "added": row >= space.seen,
                "examples": space.examples(row),
                "thumbnails": len(kept),
                "shown": kept[:MOST_THUMBNAILS],
            }
        )
    return rows


def relations_of(classifier: Classifier, name: str) -> list[dict[str, Any]]:
    """Return how a class relates to others, the most similar ones first."""
    space = classifier.space_
    if name not in space.names:
        return []
    row, labels = space.index(name), classifier._state.labels
    related = []
    for label, relation in space.relations.items():
        similarities = relation.similarities.to_dense()[row].tolist()
        for other, similarity in enumerate(similarities):
            if other != row and similarity and (relation.sparse or similarity > relation.floor):
                related.append({"class": labels[other], "relation": label, "similarity": similarity})
    return sorted(related, key=lambda part: -part["similarity"])
