"""Why an image was taken for a class: its cosine to a prototype, term by term of the graph layer that made the prototype.

Shapes: V classes, D features.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from protograph.classifier.joint_space import JointSpace
from protograph.nn.classify import normalise
from protograph.nn.contributions import class_factors
from protograph.nn.graph import GraphLayer
from protograph.nn.operators import Context, Operator, Weights
from protograph.variants import uses_relation

EARLIER = "earlier"  # what a prototype that was left alone holds of classes that are gone, and of others as they were then


@dataclass(frozen=True)
class Part:
    """What one class brings into a score through one operator. Parts of a class itself are its own examples' or learning's."""

    name: str
    operator: str
    value: float


@dataclass(frozen=True)
class Nearest:
    """A prototype near an image.

    score:       the cosine, which is the sum of the values of all `parts`, the largest first
    logit:       what the softmax sees
    probability: among all classes
    own:         how much of the score came from the class itself: its own examples, or its own learned prototype
    """

    name: str
    score: float
    logit: float
    probability: float
    parts: tuple[Part, ...]

    @property
    def own(self) -> float:
        """The sum over its own parts; what was there earlier may be of any class."""
        return sum(part.value for part in self.parts if part.name == self.name and part.operator != EARLIER)


@torch.no_grad()
def explain(space: JointSpace, features: Tensor, bias: float, top: int) -> list[Nearest]:
    """The `top` nearest prototypes to features [D]."""
    logits = space.logits(features[None], bias)[0]
    cosines = space.cosines(features[None])[0]
    probabilities = logits.softmax(0)
    query = normalise(space.model.embed(features[None])[0].double())
    made = functools.cache(lambda count: layer_input(space, space.context(count)))
    found = []
    for row in logits.argsort(descending=True, stable=True)[:top].tolist():
        name, score = space.names[row], cosines[row].item()
        parts = sorted(parts_of(space, row, query, score, made), key=lambda part: -abs(part.value))
        found.append(Nearest(name, score, logits[row].item(), probabilities[row].item(), tuple(parts)))
    return found


@torch.no_grad()
def relation_share(space: JointSpace, row: int) -> float:
    r"""How much of a class's prototype other classes would bring through relations had it come last, as a share of lengths,

    .. math:: \frac{\|r\|}{\|r\| + \|c' - r\|} \quad\text{with}\quad
              r = \sum_{B \in \text{relations}} \frac{s_B}{\|p_B\|} \sum_{m \ne n} B_{nm} \bar c_m \theta_B.

    A scale :math:`s_B` alone would not tell: most of what passes a relation may be the class itself, to which it is most alike.
    Lengths do, whatever the signs and wherever r points: no cosine to the prototype has a larger part of r than
    :math:`\|r\| / \|c'\|`, which for small r is the same.
    """
    inputs, weights = layer_input(space, space.context_as_new(row))
    last, count = space.model.graph.layers[-1], len(inputs)
    assert isinstance(last, GraphLayer)
    inputs = last.rows(inputs).double()
    factors = class_factors(last, inputs, [each.row_of(count - 1, count) for each in weights])
    operators = [each for each in space.model.operators if isinstance(each, Operator) and uses_relation(each)]
    related = {label for operator in operators for label in operator.labels}
    brought, rest = torch.zeros(2, inputs.shape[1], dtype=inputs.dtype)
    for label, factor in factors.items():
        others = last.transformed(label, factor[:-1] @ inputs[:-1])
        rest = rest + last.transformed(label, factor[-1] * inputs[-1])
        if label in related:
            brought = brought + others
        else:
            rest = rest + others
    length = brought.norm()
    return (length / (length + rest.norm())).item() if length > 0 else 0.0


def layer_input(space: JointSpace, context: Context) -> tuple[Tensor, list[Weights]]:
    """What the last graph layer makes the prototypes of an episode of: its inputs [V, D] and the operators."""
    inputs, weights = context.prototypes, space.model.weights(context)
    for layer in list(space.model.graph.layers)[:-1]:
        inputs = layer(inputs, weights)
    return inputs[0], weights


def parts_of(
    space: JointSpace, row: int, query: Tensor, score: float, made: Callable[[int], tuple[Tensor, list[Weights]]]
) -> list[Part]:
    """What makes up the score of one prototype and a unit query [D]; `made` is `layer_input` by number of classes.

    A prototype was made by all classes there are or, where later ones left it alone, by those that came before. If neither
    explains it, since a class it holds something of is gone, what it is made of is not known any more.
    """
    last = space.model.graph.layers[-1]
    assert isinstance(last, GraphLayer)
    for count in dict.fromkeys((len(space.names), max(row + 1, space.seen))):
        inputs, weights = made(count)
        rows = [each.row_of(row, count) for each in weights]
        shares = contributions(last, inputs, rows, space.prototypes[row], query)
        parts = [
            Part(space.names[other], label, value)
            for label, values in shares.items()
            for other, value in enumerate(values.tolist())
            if value
        ]
        if abs(score - sum(part.value for part in parts)) < 1e-5:
            return parts
    return [Part(space.names[row], EARLIER, score)]


def contributions(layer: GraphLayer, inputs: Tensor, rows: list[Tensor], prototype: Tensor, query: Tensor) -> dict[str, Tensor]:
    r"""What each class [V] brings, by operator, into the cosine of a unit query [D] and a prototype [D],

    .. math:: \bar z \cdot \frac{s_B}{\|p_B\|\,\|c'\|} B_m \bar c_m \theta_B \quad\text{with}\quad
              p_B = \sum_m B_m \bar c_m \theta_B.

    rows: of each operator the row B [V] that makes the prototype
    """
    inputs, length = layer.rows(inputs).double(), prototype.double().norm()
    shares = {}
    for label, factors in class_factors(layer, inputs, rows).items():
        asked = query
        if label in layer.thetas:
            theta = layer.thetas[label].double()
            asked = theta @ query if theta.ndim == 2 else theta * query
        shares[label] = factors * (inputs @ asked) / length if length > 0 else torch.zeros_like(factors)
    return shares
