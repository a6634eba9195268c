"""Every model by name: the operator set and the switches that make it.

A variant is data. To add one from outside the package:

    register_operator("uniform", lambda parts: Uniform())           # an own kind of operator
    register_variant(Variant("gcgpn-uniform", (Op("uniform"), *AUX), "every class related to every other alike"))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import log
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError, unknown_name
from protograph.nn.backbones import build_backbone, feature_count
from protograph.nn.classify import CosineClassifier, SquaredDistance
from protograph.nn.few_shot import FEW_SHOT_METHODS, FewShotModel, Method, MethodParts, build_method
from protograph.nn.graph import GraphBlock, Theta
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import (
    BLOCKS,
    Blocks,
    DictionaryAttention,
    DifferenceSimilarity,
    Identity,
    KeySimilarity,
    Mapped,
    MappedTogether,
    Operator,
    Power,
    PrototypeSimilarity,
    ShotAttention,
    SideInformation,
    Similarity,
    Softmax,
    TransformedSimilarity,
    components,
    sparsify,
)

Objective = Literal["joint", "few-shot", "classify", "none"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
CLASSIFIERS = ("cosine", "squared-l2", "few-shot method")
RELATED_KINDS = ("relation", "mapped", "mapped-together")  # kinds of operators that use side information
FEATURE_KINDS = ("transformed", "difference", "keys", "attention", "dictionary")  # kinds that learn of single features
PARTS = ("backbone", "prototypes", "operators", "graph", "classifier")  # of a model, as `Variant.frozen` names them


@dataclass(frozen=True)
class Op:
    """An operator by its kind.

    blocks: keep only these blocks, each as an operator of its own
    order: raise it to this power
    options: what its kind takes, such as `measure`, `top`, `above`, `temperature`
    """

    kind: str
    blocks: tuple[str, ...] | None = None
    order: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def split(self) -> "Op":
        """All four blocks, each with a transform of its own."""
        return Op(self.kind, BLOCKS, self.order, self.options)

    def only(self, *blocks: str) -> "Op":
        """Restricted to these blocks."""
        return Op(self.kind, blocks, self.order, self.options)

    def of(self, block: str) -> "Op":
        """Computed of this block's pairs alone, so that a softmax runs over its columns; for kinds that take a `block`."""
        return Op(self.kind, self.blocks, self.order, {**self.options, "block": block})

    def __str__(self) -> str:
        power = f"^{self.order}" if self.order > 1 else ""
        blocks = f"[{' '.join(self.blocks)}]" if self.blocks else ""
        return self.kind + power + blocks


@dataclass(frozen=True)
class Variant:
    """A named model, and what is peculiar to its training.

    operators: the set A
    summary: one line on what it is
    layers: L
    theta: the transform behind each operator; `fixed_theta` names operators whose transform stays the identity
    normalise_inputs, normalise_outputs: the graph block's two switches
    normalise_support: average normalised support features
    normalise_seen: normalise the learned prototypes before the block
    scales: learn s_B
    last_relu: keep the ReLU of the backbone's last block
    classifier: "cosine", "squared-l2" or, with a `method`, "few-shot method"
    objective: what training minimises, cross-entropy in each case
        "joint":     in the joint label space of episodes in which some seen classes act as novel
        "few-shot":  of such episodes, among the classes acting as novel
        "classify":  of single images, among all seen classes; no episodes
        "none":      nothing: `candidates` are tried in turn, and validation chooses one
    chosen_by: the validation measures whose mean chooses the epoch
    seen_means: seen prototypes are not learned, but the mean features of their training images; with the objective "classify",
        a linear classifier is then trained beside them
    after: the variant whose trained run gives backbone, seen prototypes and classifier to start from
    frozen: parts that stay as they are, in evaluation mode
    candidates: values of parameters by name
    method: the few-shot method in place of operators, graph block and classifier
    """

    name: str
    operators: tuple[Op, ...]
    summary: str
    layers: int = 1
    theta: Theta = "diagonal"
    fixed_theta: tuple[str, ...] = ()
    normalise_inputs: bool = True
    normalise_outputs: bool = True
    normalise_support: bool = True
    normalise_seen: bool = False
    scales: bool = True
    last_relu: bool = False
    classifier: str = "cosine"
    objective: Objective = "joint"
    chosen_by: tuple[str, ...] = ("h_mean",)
    seen_means: bool = False
    after: str | None = None
    frozen: tuple[str, ...] = ()
    candidates: tuple[Mapping[str, Any], ...] = ()
    method: Method | None = None

    def __post_init__(self) -> None:
        if isinstance(self.chosen_by, str):  # model files of version 0.1, and whoever names one measure
            object.__setattr__(self, "chosen_by", (self.chosen_by,))
        for kind, names, known in (
            ("objective", (self.objective,), OBJECTIVES),
            ("classifier", (self.classifier,), CLASSIFIERS),
            ("part of a model", self.frozen, PARTS),
        ):
            for name in names:
                if name not in known:
                    raise unknown_name(kind, name, known)
        if (self.classifier == "few-shot method") != (self.method is not None):
            raise ValueError(f"variant '{self.name}': a method goes with the classifier 'few-shot method', and with no other")
        if (self.objective == "none") != bool(self.candidates):
            raise ValueError(f"variant '{self.name}': candidates go with the objective 'none', and with no other")

    @property
    def needs_relation(self) -> bool:
        """Whether it uses side information."""
        return any(op.kind in RELATED_KINDS for op in self.operators)


@dataclass(frozen=True)
class Parts:
    """What operators are built from: T training classes, D features, and similarities [C, C] by relation name.

    relation_temperature: where the temperatures of relations start
    """

    seen: int
    features: int
    similarities: Mapping[str, Tensor]
    relation_temperature: float = 1.0


OperatorKind = Callable[..., Operator | list[Operator]]

OPERATORS: dict[str, OperatorKind] = {}
VARIANTS: dict[str, Variant] = {}


def register_operator(kind: str, build: OperatorKind) -> None:
    """Make a kind of operator known: `build(parts, **options)` answers one operator, or several."""
    OPERATORS[kind] = build


def register_variant(variant: Variant) -> Variant:
    """Make a variant known by its name, to `build` and to the command."""
    VARIANTS[variant.name] = variant
    return variant


def find_variant(name: str) -> Variant:
    """The variant of that name."""
    if name not in VARIANTS:
        raise unknown_name("variant", name, VARIANTS)
    return VARIANTS[name]


def register_method(method: Method) -> Variant:
    """Make a few-shot method known as a variant of its name, and return the variant."""
    frozen = ("backbone",) if method.after else ()
    return register_variant(
        Variant(
            method.name,
            (),
            method.summary,
            scales=False,
            last_relu=not method.after,
            classifier="few-shot method",
            objective=method.objective,
            chosen_by=("novel_novel",),
            seen_means=method.joint,
            after=method.after,
            frozen=frozen,
            method=method,
        )
    )


def build(
    variant: Variant,
    backbone: str | nn.Module,
    image_shape: tuple[int, ...],
    seen: int,
    similarities: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    temperature: float = 10.0,
    relation_temperature: float = 1.0,
) -> GraphPrototypeNetwork:
    """A fresh model of a variant. The same seed gives the same weights; the global random state is left alone.

    image_shape: C, H, W (or D, for features computed elsewhere)
    seen: T, the number of training classes
    similarities: [C, C] by class id for every relation; needed where the variant uses side information
    temperature, relation_temperature: where the temperatures of the cosine classifier and of relations start
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(backbone, str):
            backbone = build_backbone(backbone, image_shape[0], variant.last_relu)
        features = feature_count(backbone, image_shape)
        parts = Parts(seen, features, similarities or {}, relation_temperature)
        operators = [operator for op in variant.operators for operator in _build_operators(op, parts, variant.name)]
        graph = GraphBlock(
            [label for operator in operators for label in operator.labels],
            features,
            variant.layers,
            theta=variant.theta,
            fixed=variant.fixed_theta,
            scales=variant.scales,
            normalise_inputs=variant.normalise_inputs,
            normalise_outputs=variant.normalise_outputs,
        )
        classifier = CosineClassifier(temperature) if variant.classifier == "cosine" else SquaredDistance()
        switches = variant.normalise_support, variant.normalise_seen
        model = GraphPrototypeNetwork(backbone, seen, features, operators, graph, classifier, *switches)
    freeze_parts(model, variant)
    return model


def build_few_shot(
    variant: Variant,
    backbone: str | nn.Module,
    image_shape: tuple[int, ...],
    seen: int,
    seed: int = 0,
    ways: int = 5,
) -> FewShotModel:
    """A fresh model of a variant that is a few-shot method; the arguments are those of `build`.

    ways: the novel classes of an episode
    """
    assert variant.method is not None, f"{variant.name} is no few-shot method"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if isinstance(backbone, str):
            backbone = build_backbone(backbone, image_shape[0], variant.last_relu)
        features = feature_count(backbone, image_shape)
        method = build_method(variant.method, MethodParts(backbone, features, image_shape, ways))
        model = FewShotModel(backbone, method, seen, features, image_shape)
    freeze_parts(model, variant)
    return model


def freeze_parts(model: nn.Module, variant: Variant) -> None:
    """Exclude from training what a variant freezes or computes from images."""
    for name, parameter in model.named_parameters():
        if name.split(".")[0] in (*variant.frozen, *(["prototypes"] if variant.seen_means else [])):
            parameter.requires_grad_(False)


def renew_relations(model: GraphPrototypeNetwork, variant: Variant, similarities: Mapping[str, Tensor]) -> None:
    """Put other similarities [C, C] of the same relations into a model of a variant; what it learned stays."""
    seen, features = model.prototypes.shape
    parts = Parts(seen, features, similarities)
    fresh = iter(
        [new for op in variant.operators if op.kind in RELATED_KINDS for new in _build_operators(op, parts, variant.name)]
    )
    for place, operator in enumerate(model.operators):
        if uses_relation(operator):
            new = next(fresh).to(model.prototypes)
            new.load_state_dict(operator.state_dict())
            for parameter, old in zip(new.parameters(), operator.parameters(), strict=True):
                parameter.requires_grad_(old.requires_grad)
            model.operators[place] = new.train(operator.training)


def uses_relation(operator: nn.Module) -> bool:
    """Whether an operator of a model looks at side information."""
    return any(component.uses_relation for component in components(operator))


def _build_operators(op: Op, parts: Parts, variant: str) -> list[Operator]:
    if op.kind not in OPERATORS:
        raise unknown_name("operator", op.kind, OPERATORS)
    if op.kind in RELATED_KINDS and not parts.similarities:
        raise InputError(
            f"variant '{variant}' needs side information: give --relations (such as wordnet), or use gcgpn-cos-aux or aux-only"
        )
    built = OPERATORS[op.kind](parts, **op.options)
    operators = built if isinstance(built, list) else [built]
    if wrong := [type(operator).__name__ for operator in operators if not isinstance(operator, Operator)]:
        raise InputError(
            f"operator '{op.kind}' is built as a {wrong[0]}, not as an Operator: derive it from protograph.Operator"
        )
    if op.order > 1:
        operators = [Power(operator, op.order) for operator in operators]
    return [Blocks(operator, op.blocks) for operator in operators] if op.blocks else operators


def _relation(
    parts: Parts, top: int | None = None, above: float | None = None, temperature: float | None = None
) -> list[Operator]:
    """One operator per relation; a thresholded dense one becomes a sparse graph of all classes before episodes are cut out."""
    temperature = parts.relation_temperature if temperature is None else temperature
    operators: list[Operator] = []
    for name, matrix in parts.similarities.items():
        if matrix.layout == torch.strided and (top is not None or above is not None):
            operators.append(Softmax(SideInformation(sparsify(matrix, top, above)), name, temperature))
        else:
            operators.append(Softmax(SideInformation(matrix), name, temperature, top, above))
    return operators


def _mapped(parts: Parts, kappa: float = 1.0, ridge: float = 0.3) -> list[Operator]:
    """One operator per relation."""
    return [Mapped(SideInformation(matrix), kappa, ridge, f"mapped-{name}") for name, matrix in parts.similarities.items()]


def _mapped_together(parts: Parts, kappa: float = 1.0, ridge: float = 0.3) -> Operator:
    """One operator for all relations."""
    relations = [SideInformation(matrix) for matrix in parts.similarities.values()]
    return MappedTogether(relations, kappa, ridge, f"mapped-{'-and-'.join(parts.similarities)}")


def _computed(label: str, similarity: Callable[..., Similarity], start: float = 1.0) -> OperatorKind:
    """A softmax over similarities that are computed from the episode."""

    def make(
        parts: Parts, temperature: float = start, top: int | None = None, above: float | None = None, **options: Any
    ) -> Operator:
        return Softmax(similarity(parts, **options), label, temperature, top, above)

    return make


register_operator("identity", lambda parts: Identity())
register_operator("relation", _relation)
register_operator("mapped", _mapped)
register_operator("mapped-together", _mapped_together)
register_operator("cos", _computed("cos", lambda parts, **more: PrototypeSimilarity("cosine", **more)))
register_operator("l2", _computed("l2", lambda parts, **more: PrototypeSimilarity("l2", **more)))
register_operator("transformed", _computed("transformed", lambda parts, **more: TransformedSimilarity(parts.features, **more)))
register_operator("difference", _computed("difference", lambda parts, **more: DifferenceSimilarity(parts.features, **more)))
register_operator("keys", _computed("keys", lambda parts, **more: KeySimilarity(parts.seen, parts.features, **more), 10.0))
register_operator("dictionary", lambda parts, **more: DictionaryAttention(parts.features, **more))
register_operator("attention", lambda parts, **more: ShotAttention(parts.seen, parts.features, **more))

AUX = (Op("identity", blocks=("ss", "nn")),)
RELATION, COS, L2 = Op("relation"), Op("cos"), Op("l2")

# Prototypes as they are: what the classifier sees of a class is its learned prototype, or the mean of its examples. Such models
# are not trained for the joint label space, where their H-Mean may be noise near 0; their authors chose by novel accuracy.
_PLAIN: dict[str, Any] = {
    "theta": "identity", "normalise_inputs": False, "normalise_outputs": False, "scales": False,
    "chosen_by": ("novel_novel",),
}  # fmt: skip
_PN: dict[str, Any] = {**_PLAIN, "normalise_support": False, "last_relu": True, "seen_means": True, "objective": "few-shot"}
# What a second stage needs of it: features that know the seen classes, and tell new ones apart.
_LINEAR: dict[str, Any] = {**_PLAIN, "seen_means": True, "objective": "classify", "chosen_by": ("seen_seen", "novel_novel")}
# DFSLwoF's second stage adds its terms unnormalised; seen classes keep their normalised weights.
_GENERATOR: dict[str, Any] = {
    "fixed_theta": ("identity-ss",), "normalise_inputs": False, "normalise_outputs": False, "normalise_seen": True,
    "scales": False, "after": "cosine", "frozen": ("backbone",),
}  # fmt: skip


def teen_candidate(alpha: float, temperature: float) -> dict[str, Any]:
    """TEEN's mixture of a novel prototype (alpha) and the seen ones like it (1 - alpha), as the parameters of `teen`."""
    return {"operators.0.temperature": temperature, "graph.layers.0.scales": (1 - alpha, 1.0, alpha)}


# The first one leaves novel prototypes alone, so that on validation `teen` is never worse than what it starts from.
_TEEN: dict[str, Any] = {
    "theta": "identity", "normalise_outputs": False, "scales": False, "objective": "none", "after": "cosine",
    "candidates": (
        teen_candidate(1.0, 16.0),
        *(teen_candidate(*both) for both in product((0.3, 0.5, 0.7, 0.9), (8.0, 16.0, 32.0))),
    ),
}  # fmt: skip

# CASTLE's classifiers of new classes: their prototype, and what attention over the seen classifiers adds.
_CASTLE: dict[str, Any] = {
    "theta": "full", "fixed_theta": ("identity-ss", "identity-nn"), "normalise_inputs": False, "normalise_outputs": False,
    "normalise_seen": True, "scales": False, "after": "cosine",
}  # fmt: skip


def mapped_candidate(kappa: float, ridge: float) -> dict[str, Any]:
    """By how many examples what relations predict counts, and the ridge of that prediction, as the parameters of `mapped`."""
    return {"operators.0.logarithms": (log(kappa), log(ridge))}


# The first one leaves new prototypes alone.
_MAPPED: dict[str, Any] = {
    "theta": "identity", "normalise_outputs": False, "scales": False, "objective": "none", "after": "cosine",
    "candidates": (
        mapped_candidate(1e-6, 1.0),
        *(mapped_candidate(*both) for both in product((0.25, 0.5, 1.0, 2.0, 4.0), (0.1, 0.3, 1.0, 3.0))),
    ),
}  # fmt: skip
_MEANS: dict[str, Any] = {**_PLAIN, "objective": "none", "chosen_by": ("h_mean",), "after": "cosine", "candidates": ({},)}

for _variant in (
    Variant("cosine", (Op("identity"),), "plain cosine classification: DFSLwoF's first stage", **_PLAIN, objective="classify"),
    Variant("linear", (Op("identity"),), "plain linear classification; then seen classes by their mean", **_LINEAR),
    Variant("pn+", (Op("identity"),), "Prototypical Networks, seen classes by their mean", **_PN, classifier="squared-l2"),
    Variant("pn+cos", (Op("identity"),), "pn+ with the cosine classifier", **_PN),
    Variant("dfslwof-avg", AUX, "DFSLwoF's average generator, in two stages", **_GENERATOR),
    Variant("dfslwof-att", (Op("attention"), *AUX), "DFSLwoF's attention generator, in two stages", **_GENERATOR),
    Variant("teen", (COS.of("sn"), *AUX), "cosine with novel prototypes moved to the seen ones like them, untrained", **_TEEN),
    Variant("castle", (Op("dictionary"), *AUX), "CASTLE's attention over the seen classifiers, in two stages", **_CASTLE),
    Variant("means", (Op("identity"),), "class means by a first stage's features, untrained", **_MEANS),
    Variant("mapped", (Op("mapped-together"),), "means, new ones moved to what relations predict, untrained", **_MAPPED),
    Variant("aux-only", AUX, "no relations: DFSLwoF's average generator, trained in one stage", fixed_theta=("identity-ss",)),
    Variant("gcgpn", (RELATION,), "side information as one operator"),
    Variant("gcgpn-aux", (RELATION, *AUX), "side information and the auxiliary pair"),
    Variant("gcgpn-split", (RELATION.split(),), "side information, its four blocks apart"),
    Variant("gcgpn-aux-split", (RELATION.split(), *AUX), "side information, its four blocks apart, and the auxiliary pair"),
    Variant("gcgpn-aux-fc", (RELATION, *AUX), "gcgpn-aux with full transforms", theta="full"),
    Variant("gcgpn-aux-sn", (RELATION.only("sn"), *AUX), "gcgpn-aux with relations from seen to novel only"),
    Variant("gcgpn-mapped", (Op("mapped"),), "side information as a linear map to prototypes, by a weight that falls with K"),
    Variant("gcgpn-mapped-joint", (Op("mapped-together"),), "gcgpn-mapped with one map from all relations together"),
    Variant("gcgpn-cos", (COS,), "cosine of prototypes"),
    Variant("gcgpn-cos-aux", (COS, *AUX), "cosine of prototypes and the auxiliary pair"),
    Variant("gcgpn-l2", (L2,), "distance of prototypes"),
    Variant("gcgpn-l2-aux", (L2, *AUX), "distance of prototypes and the auxiliary pair"),
    Variant("gcgpn-key", (Op("keys"), *AUX), "learned keys from seen to novel and the auxiliary pair"),
):
    register_variant(_variant)
for _method in FEW_SHOT_METHODS:
    register_method(_method)
