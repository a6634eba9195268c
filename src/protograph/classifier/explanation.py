"""Why an image was assigned to a class.

Its score is split by the terms of the sum that made the prototype: the cosine to the prototype for a trained variant, the
logit for the Gaussian model. What speaks for the class and against others is split by the positions of the image.

Shapes: V classes, D features, C channels, H x W pixels, h x w positions.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.rows import distinct
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.row_updates import RowUpdates
from protograph.encoders import Encoder, SpatialEncoder
from protograph.nn.classify import normalise, tempering
from protograph.nn.contributions import class_factors
from protograph.nn.graph import GraphLayer
from protograph.nn.operators import Context, Operator, Weights
from protograph.variants import uses_relation

EXAMPLES = "examples"  # the part of a class's own examples, by the Gaussian model
CONSTANT = "constant"  # the part of a logit that no image changes: the length of the prototype, its uncertainty, the prior
EARLIER = "earlier"  # the part of a prototype that comes from removed classes, or from others before they changed
SMALLEST_GAP = 1e-4  # between a score and its parts, above which they are not its parts


@dataclass(frozen=True)
class Part:
    """The contribution of one class to a score through one operator.

    Attributes:
        name: The class. The contribution of the explained class itself comes from its own examples, or from learning.
        operator: The label of the operator, or `EARLIER`.
        value: The contribution to the score.

    """

    name: str
    operator: str
    value: float


@dataclass(frozen=True)
class Nearest:
    """A prototype near an image.

    Attributes:
        name: The class of the prototype.
        score: The sum of the values of all parts: a cosine, or the logit.
        logit: The input of the softmax.
        probability: The probability among all classes.
        parts: The contributions, the largest first.
        own: The contribution of the class itself: of its own examples, or of its own learned prototype.

    """

    name: str
    score: float
    logit: float
    probability: float
    parts: tuple[Part, ...]

    @property
    def own(self) -> float:
        """The sum of the class's own parts; `EARLIER` may come from any class, and `CONSTANT` from none."""
        return sum(part.value for part in self.parts if part.name == self.name and part.operator not in (EARLIER, CONSTANT))


@torch.no_grad()
def explain(space: JointSpace | GaussianSpace, features: Tensor, offsets: Tensor | float, top: int) -> list[Nearest]:
    """Return the `top` prototypes nearest to features [D], with offsets [V] on the logits."""
    if isinstance(space, GaussianSpace):
        return _explain_gaussian(space, features, offsets, top)
    logits = space.logits(features[None], offsets)[0]
    cosines = space.cosines(features[None])[0]
    probabilities = logits.softmax(0)
    query = normalise(space.model.embed(features[None])[0].double())
    inputs_of = functools.cache(lambda count: layer_input(space, space.context(count)))
    updates, nearest = space.followed(), []
    for row in logits.argsort(descending=True, stable=True)[:top].tolist():
        name, score = space.names[row], cosines[row].item()
        if updates is None:
            parts = parts_of(space, row, query, score, inputs_of)
        else:
            parts = followed_parts(space, updates, row, query, score)
        parts.sort(key=lambda part: -abs(part.value))
        nearest.append(Nearest(name, score, logits[row].item(), probabilities[row].item(), tuple(parts)))
    return nearest


@dataclass(frozen=True)
class LinearScore:
    """A score as a linear function of the features z of one image: weights @ z + constant.

    Attributes:
        weights: [D]
        constant: What does not depend on the features.

    """

    weights: Tensor
    constant: float


@torch.no_grad()
def evidence(
    space: JointSpace | GaussianSpace, features: Tensor, offsets: Tensor, row: int, against: int | None = None
) -> LinearScore:
    r"""Return what speaks for a class and against another one, or against the mean of all others, as a linear score,

    .. math:: \ell_n - \ell_m = w \cdot z + b \quad\text{with}\quad
              w = \frac{\tau}{\|z - c\|} (\bar p_n - \bar p_m), \qquad b = b_n - b_m - w \cdot c

    for the logits :math:`\ell`, prototypes p and biases of two classes n and m, and the centre c of the features. For the mean
    of all others, :math:`\bar p_m` and :math:`b_m` are means over these. The length of the image's features, and what
    its logits are tempered by, are taken as constants, so the score is exact for this image.

    Args:
        space: The joint label space.
        features: The features z of the image [D].
        offsets: The offsets on the logits of the classes [V].
        row: The index of the class n.
        against: The index of the class m; None for the mean of all others.

    """
    if isinstance(space, GaussianSpace):
        prototypes, biases = (part.double() for part in space.linear())
        biases = biases + offsets
    else:
        prototypes, biases = normalise(space.prototypes.double()), offsets.double()
    rivals = [index for index in range(len(prototypes)) if index != row] if against is None else [against]
    difference, constant = prototypes[row], biases[row]
    if rivals:  # a single class has none
        difference, constant = difference - prototypes[rivals].mean(0), constant - biases[rivals].mean()
    if isinstance(space, GaussianSpace):
        factor = tempering_of(space, features, offsets)
        return LinearScore(*space.whitening.pulled_back(features, factor * difference, factor * constant))
    centre = space.centred.centre.double()
    length = (features.double() - centre).norm()
    weights = space.temperature / length * difference if length > 0 else torch.zeros_like(difference)
    return LinearScore(weights, (constant - weights @ centre).item())


@dataclass(frozen=True)
class Heatmap:
    """Which parts of an image spoke for a class.

    Attributes:
        name: The class.
        against: The class that it is compared with; None where this is the mean of all others.
        score: Its logit less that of the other, which is the sum of the scores.
        scores: What each position adds to it [h, w]; what no position brings is spread evenly. A position sees more of the
            image than its share of it.
        pixels: The image as the network sees it, uint8 [C, H, W], which the positions divide evenly.

    """

    name: str
    against: str | None
    score: float
    scores: Tensor
    pixels: Tensor


def draw_up_heatmap(
    space: JointSpace | GaussianSpace,
    encoder: Encoder,
    image: Any,
    offsets: Tensor,
    name: str | None,
    against: str | None,
) -> Heatmap:
    """Return which parts of an image speak for a class.

    Args:
        space: The joint label space.
        encoder: The encoder of images.
        image: The image.
        offsets: The offsets on the logits of the classes [V].
        name: The class; by default the most probable one.
        against: The class that it is compared with; by default the mean of all others.

    Raises:
        InputError: There is no such class, or the encoder does not keep positions apart.

    """
    if not isinstance(encoder, SpatialEncoder):
        raise InputError("there is no heatmap: the encoder has no score_map")
    pixels = encoder.prepare(image)
    features = encoder.encode_pixels(pixels[None])[0]
    row = int(space.logits(features[None], offsets)[0].argmax()) if name is None else space.index(name)
    rival = None if against is None else space.index(against)
    if rival == row:
        raise InputError(f"'{against}' is the class that the heatmap is of: compare it with another")
    linear = evidence(space, features, offsets, row, rival)
    scores = encoder.score_map(pixels, linear.weights).double()
    scores = scores + linear.constant / scores.numel()
    score = (linear.weights @ features.double()).item() + linear.constant
    return Heatmap(space.names[row], against, score, scores, pixels)


def _explain_gaussian(space: GaussianSpace, features: Tensor, offsets: Tensor | float, top: int) -> list[Nearest]:
    logits = space.logits(features[None], offsets)[0]
    factor = tempering_of(space, features, offsets)
    probabilities = logits.softmax(0)
    query = space.whitening.embed(features[None])[0]
    nearest = []
    for row in logits.argsort(descending=True, stable=True)[:top].tolist():
        logit = logits[row].item()
        parts = sorted(gaussian_parts(space, row, factor * query, logit), key=lambda part: -abs(part.value))
        nearest.append(Nearest(space.names[row], logit, logit, probabilities[row].item(), tuple(parts)))
    return nearest


def tempering_of(space: GaussianSpace, features: Tensor, offsets: Tensor | float) -> float:
    """Return the factor by which the logits of features [D], with offsets [V], are tempered."""
    settings = space.settings
    return tempering(space.scores(features[None]) + offsets, settings.usual_range, settings.tempering).item()


def gaussian_parts(space: GaussianSpace, row: int, query: Tensor, logit: float) -> list[Part]:
    r"""Return the parts of the logit of one class and an embedded query u [D], times what its logits are tempered by,

    .. math:: \ell = a \Big(w \, u \cdot \bar x + (1 - w) \sum_m A_m \, u \cdot c_m\Big) + \text{constant},

    where :math:`\bar x` is the mean of the class's examples and A are the weights of fitted prototypes in what relations
    predict. If the prototype was left as it was while others changed, what it was made of may no longer be known.
    """
    name, share = space.names[row], space.own_share(row)
    product = 2 * space.factor(row) * (space.prototype(row).double() @ query).item()
    made = 2 * space.factor(row) * share * (space.whitened_means([row])[0] @ query).item()
    parts = [Part(name, EXAMPLES, made)] if made else []
    if share < 1 and space.predicted(row):
        weights = space.relation_weights([row])[0]
        values = 2 * space.factor(row) * (1 - share) * weights * (space.prototypes[: space.seen].double() @ query)
        label = " and ".join(space.settings.relations.labels)
        parts += [Part(space.names[index], label, value) for index, value in enumerate(values.tolist()) if value]
    if abs(product - sum(part.value for part in parts)) > SMALLEST_GAP * max(1.0, abs(product)):
        parts = [Part(name, EARLIER, product)]
    return [*parts, Part(name, CONSTANT, logit - sum(part.value for part in parts))]


def gaussian_relation_share(space: GaussianSpace, row: int) -> float:
    """Return the share of a class's prototype, by length, that relations bring; a fitted class acts as new from one example."""
    use = space.settings.relations
    fitted = row < space.seen
    if not use.labels or not (fitted or space.related[row - space.seen]):
        return 0.0
    count = 1 if fitted else space.examples(row)
    if count and not use.blended:
        return 0.0
    if fitted and space.seen == 1:
        return 0.0
    share = count / (count + use.kappa)
    weights = space.relation_weights([row], left_out=row if fitted else None)[0]
    predicted = (1 - share) * (weights @ space.prototypes[: space.seen].double()).norm()
    examples = share * (space.prototype(row).double() if fitted else space.whitened_means([row])[0]).norm()
    return (predicted / (predicted + examples)).item() if predicted > 0 else 0.0


@torch.no_grad()
def relation_share(space: JointSpace | GaussianSpace, row: int) -> float:
    r"""Return the share of a class's prototype that other classes would bring through relations if it came last, by length,

    .. math:: \frac{\|r\|}{\|r\| + \|c' - r\|} \quad\text{with}\quad
              r = \sum_{B \in \text{relations}} \frac{s_B}{\|p_B\|} \sum_{m \ne n} B_{nm} \bar c_m \theta_B.

    The scale :math:`s_B` alone does not tell, since most of what passes a relation may be the class itself. Lengths do,
    whatever the direction of r: r contributes at most :math:`\|r\| / \|c'\|` to a cosine to the prototype, which is the same
    for small r.
    """
    if isinstance(space, GaussianSpace):
        return gaussian_relation_share(space, row)
    if not any(uses_relation(operator) for operator in space.model.operators):
        return 0.0
    inputs, weights = layer_input(space, space.context_as_new(row))
    last, count = space.model.graph.layers[-1], len(inputs)
    assert isinstance(last, GraphLayer)
    inputs = last.rows(inputs).double()
    factors = class_factors(last, inputs, [operator.row_of(count - 1, count) for operator in weights])
    operators = [module for module in space.model.operators if isinstance(module, Operator) and uses_relation(module)]
    related = {label for operator in operators for label in operator.labels}
    brought, rest = torch.zeros(2, inputs.shape[1], dtype=inputs.dtype)
    for label, factor in factors.items():
        neighbours = last.transformed(label, factor[:-1] @ inputs[:-1])
        rest = rest + last.transformed(label, factor[-1] * inputs[-1])
        if label in related:
            brought = brought + neighbours
        else:
            rest = rest + neighbours
    length = brought.norm()
    return (length / (length + rest.norm())).item() if length > 0 else 0.0


def layer_input(space: JointSpace, context: Context) -> tuple[Tensor, list[Weights]]:
    """Return the inputs [V, D] of the last graph layer for an episode, and its operators."""
    inputs, weights = context.prototypes, space.model.weights(context)
    for layer in list(space.model.graph.layers)[:-1]:
        inputs = layer(inputs, weights)
    return inputs[0], weights


def parts_of(
    space: JointSpace, row: int, query: Tensor, score: float, inputs_of: Callable[[int], tuple[Tensor, list[Weights]]]
) -> list[Part]:
    """Return the parts of the score of one prototype and a unit query [D].

    A prototype was made by all present classes or, where later ones left it as it was, by those before it. If neither
    explains the score, because a class that contributed was removed, the parts are no longer known.

    Args:
        space: The joint label space.
        row: The index of the prototype.
        query: The query, of length 1.
        score: Its cosine to the prototype.
        inputs_of: The result of `layer_input` by number of classes.

    """
    last = space.model.graph.layers[-1]
    assert isinstance(last, GraphLayer)
    for count in dict.fromkeys((len(space.names), max(row + 1, space.seen))):
        inputs, weights = inputs_of(count)
        rows = [operator.row_of(row, count) for operator in weights]
        shares = contributions(last, inputs, rows, space.prototype(row), query)
        parts = [
            Part(space.names[index], label, value)
            for label, values in shares.items()
            for index, value in enumerate(values.tolist())
            if value
        ]
        if abs(score - sum(part.value for part in parts)) < 1e-5:
            return parts
    return [Part(space.names[row], EARLIER, score)]


def followed_parts(space: JointSpace, updates: RowUpdates, row: int, query: Tensor, score: float) -> list[Part]:
    """Return the parts of the score of one of many prototypes and a unit query [D]: only its neighbours contribute.

    Args:
        space: The joint label space.
        updates: What its prototypes are computed from.
        row: The index of the prototype.
        query: The query, of length 1.
        score: Its cosine to the prototype.

    """
    edges = updates.weights(torch.tensor([row]))
    classes = distinct(*(column for _, column, _ in edges))
    weights = [
        query.new_zeros(len(classes)).index_add(0, torch.searchsorted(classes, column), weight.to(query))
        for _, column, weight in edges
    ]
    shares = contributions(updates.layer, updates.starts.take(classes), weights, space.prototype(row), query)
    indices = classes.tolist()
    parts = [
        Part(space.names[index], label, value)
        for label, values in shares.items()
        for index, value in zip(indices, values.tolist(), strict=True)
        if value
    ]
    if abs(score - sum(part.value for part in parts)) < SMALLEST_GAP:
        return parts
    return [Part(space.names[row], EARLIER, score)]


def contributions(layer: GraphLayer, inputs: Tensor, rows: list[Tensor], prototype: Tensor, query: Tensor) -> dict[str, Tensor]:
    r"""Return the contribution of each class [V], by operator, to the cosine of a unit query [D] and a prototype [D],

    .. math:: \bar z \cdot \frac{s_B}{\|p_B\|\,\|c'\|} B_m \bar c_m \theta_B \quad\text{with}\quad
              p_B = \sum_m B_m \bar c_m \theta_B.

    Args:
        layer: The graph layer that made the prototype.
        inputs: Its inputs [V, D].
        rows: For each operator, the row B [V] that makes the prototype.
        prototype: The prototype [D].
        query: The query [D], of length 1.

    """
    inputs, length = layer.rows(inputs).double(), prototype.double().norm()
    shares = {}
    for label, factors in class_factors(layer, inputs, rows).items():
        transformed = query
        if label in layer.thetas:
            theta = layer.thetas[label].double()
            transformed = theta @ query if theta.ndim == 2 else theta * query
        shares[label] = factors * (inputs @ transformed) / length if length > 0 else torch.zeros_like(factors)
    return shares
