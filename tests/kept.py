"""What the tests of the kept classifier share: small features, and prototypes recomputed one class at a time in float64."""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from protograph import Classifier
from protograph.classifier.joint_space import JointSpace
from protograph.nn.operators import KeySimilarity
from protograph.variants import AUX, Op, Variant

Vector = NDArray[np.float64]
SEEN, D = 6, 5
NEAREST = Variant("nearest", (Op("cos", options={"top": 3}), *AUX), "cosine of the three nearest prototypes")
NAMES = tuple("abcdef")


def blobs(classes: int = SEEN, images: int = 12, size: int = D, seed: int = 0) -> tuple[Vector, NDArray[np.str_]]:
    """Features around one centre per class, and their labels."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, size))
    rows = np.repeat(np.arange(classes), images)
    features = centres[rows] + 0.4 * generator.normal(size=(len(rows), size))
    return features, np.array([chr(ord("a") + row) for row in rows])


DENSE = 0.5 + 0.5 * np.corrcoef(np.random.default_rng(3).normal(size=(SEEN, 4)))
SPARSE = {("a", "b"): 0.9, ("b", "c"): 0.5, ("c", "a"): 0.7, ("d", "e"): 0.3, ("e", "d"): 0.6}


@cache
def fitted(variant: str | Variant, relation: str | None, update: str = "all") -> Classifier:
    """A small classifier, fitted once; copy it before it is changed."""
    features, labels = blobs()
    relations = {"dense": DENSE, "sparse": SPARSE, None: None}[relation]
    return Classifier(variant=variant, update=update, steps=15).fit(features, labels, relations)


def unit(row: Vector) -> Vector:
    length = np.sqrt(sum(value * value for value in row))
    return row / length if length else row


def softmax(scores: dict[int, float]) -> dict[int, float]:
    peak = max(scores.values(), default=0.0)
    weights = {place: np.exp(score - peak) for place, score in scores.items()}
    return {place: weight / sum(weights.values()) for place, weight in weights.items()}


@dataclass
class NaiveClass:
    """A class as the naive model has it: a learned prototype and key, or examples."""

    name: str
    learned: Vector | None
    key: Vector | None
    examples: list[Vector]
    similar: dict[int, float] = field(default_factory=dict)  # by `number`
    number: int = 0


class NaiveSpace:
    """All classes in order; whatever is asked is computed anew from what they came from."""

    def __init__(self, space: JointSpace) -> None:
        self.model, self.relation = space.model, next(iter(space.relations.values()), None)
        self.centre = space.centred.centre.double().numpy()
        keys = [module.keys for module in self.model.operators.modules() if isinstance(module, KeySimilarity)]
        self.classes = [
            NaiveClass(name, row, keys[0][place].double().numpy() if keys else None, [], number=place)
            for place, (name, row) in enumerate(zip(space.names, self.model.prototypes.double().numpy(), strict=True))
        ]
        self.count = len(self.classes)
        if self.relation is not None:
            given = self.relation.similarities.to_dense().numpy()
            there = given != 0 if self.relation.sparse else np.ones_like(given, dtype=bool)
            for one in self.classes:
                one.similar = {other: float(given[one.number, other]) for other in there[one.number].nonzero()[0]}
            self.floor = self.relation.floor
        self.temperatures = {
            operator.labels[0].partition("-")[0]: getattr(operator, "operator", operator).temperature.item()
            for operator in self.model.operators
            if hasattr(getattr(operator, "operator", operator), "temperature")
        }
        self.top = next((operator.top for operator in self.model.operators if getattr(operator, "top", None)), None)
        self.rows = {one.number: row for one, row in zip(self.classes, self.prototypes(), strict=True)}

    def add(self, name: str, examples: list[Vector], told: dict[str, float], only_new: bool) -> None:
        new = NaiveClass(name, None, None, examples, {self.count: 1.0}, self.count)
        self.count += 1
        if self.relation is not None:
            for one in self.classes:
                if one.name in told or not self.relation.sparse:
                    value = float(np.float32(told.get(one.name, self.floor)))
                    new.similar[one.number] = one.similar[new.number] = value
        self.classes.append(new)
        self.update(only_new, new)

    def remove(self, name: str, only_new: bool) -> None:
        self.classes = [one for one in self.classes if one.name != name]
        self.update(only_new, None)

    def update(self, only_new: bool, new: NaiveClass | None) -> None:
        for one, row in zip(self.classes, self.prototypes(), strict=True):
            if not only_new or one is new:
                self.rows[one.number] = row

    def kept(self) -> Vector:
        """The prototypes [V, D] as the classifier should have them."""
        return np.array([self.rows[one.number] for one in self.classes])

    def prototypes(self) -> list[Vector]:
        """All prototypes, updated jointly."""
        (layer,) = self.model.graph.layers
        starts = [self.start(one) for one in self.classes]
        normal = [unit(start) for start in starts]
        found = [np.zeros(len(starts[0])) for _ in self.classes]
        for place in range(len(self.classes)):
            for label, scale in zip(layer.labels, layer.scales.double().numpy(), strict=True):
                weights = self.weights(label, place, normal)
                product = sum((weight * normal[other] for other, weight in weights.items()), np.zeros(len(starts[0])))
                if label in layer.thetas:
                    product = product * layer.thetas[label].detach().double().numpy()
                found[place] = found[place] + scale * unit(product)
        return found

    def start(self, one: NaiveClass) -> Vector:
        if one.learned is not None:
            return one.learned
        if not one.examples:
            return np.zeros(self.model.prototypes.shape[1])
        return sum(unit(example - self.centre) for example in one.examples) / len(one.examples)

    def weights(self, label: str, place: int, normal: list[Vector]) -> dict[int, float]:
        """The row of an operator that makes one class, by place."""
        kind, _, block = label.partition("-")
        own, everyone = self.classes[place], range(len(self.classes))
        if kind == "identity":
            weights = {place: 1.0}
        elif kind == "similarity":
            scores = {
                other: own.similar[self.classes[other].number]
                for other in everyone
                if self.classes[other].number in own.similar
            }
            weights = softmax({other: self.temperatures[kind] * score for other, score in scores.items()})
        elif kind == "cos":
            scores = {other: float(normal[place] @ normal[other]) for other in everyone}
            strongest = sorted(scores, key=lambda other: -scores[other])[: self.top]
            weights = softmax({other: self.temperatures[kind] * scores[other] for other in strongest})
        else:
            assert kind == "keys"
            if own.learned is not None:
                return {}
            query = next(module.query for module in self.model.operators.modules() if isinstance(module, KeySimilarity))
            asked = unit(query.weight.detach().double().numpy() @ normal[place] + query.bias.detach().double().numpy())
            seen = [other for other in everyone if self.classes[other].learned is not None]
            weights = softmax({other: self.temperatures[kind] * float(asked @ unit(self.classes[other].key)) for other in seen})
        if block:
            source, target = ("s" if block[0] == "s" else "n"), ("s" if block[1] == "s" else "n")
            if (own.learned is not None) != (target == "s"):
                return {}
            weights = {
                other: weight
                for other, weight in weights.items()
                if (self.classes[other].learned is not None) == (source == "s")
            }
        return weights
