import pytest
import torch

from protograph import variants
from protograph._internal.errors import InputError
from protograph.nn.classify import CosineClassifier, SquaredDistance
from protograph.nn.operators import Edges, Operator
from protograph.variants import AUX, VARIANTS, Op, Variant, build, find_variant, register_operator, register_variant

PAIR = ["identity-ss", "identity-nn"]
SPLIT = ["known-ss", "known-sn", "known-ns", "known-nn"]
ROWS = {
    "cosine": ["identity"],
    "linear": ["identity"],
    "pn+": ["identity"],
    "pn+cos": ["identity"],
    "dfslwof-avg": PAIR,
    "dfslwof-att": ["attention", *PAIR],
    "teen": ["cos", *PAIR],
    "castle": ["dictionary", *PAIR],
    "means": ["identity"],
    "mapped": ["mapped-known"],
    "aux-only": PAIR,
    "gcgpn": ["known"],
    "gcgpn-aux": ["known", *PAIR],
    "gcgpn-split": SPLIT,
    "gcgpn-aux-split": [*SPLIT, *PAIR],
    "gcgpn-aux-fc": ["known", *PAIR],
    "gcgpn-aux-sn": ["known-sn", *PAIR],
    "gcgpn-mapped": ["mapped-known"],
    "gcgpn-mapped-joint": ["mapped-known"],
    "gcgpn-cos": ["cos"],
    "gcgpn-cos-aux": ["cos", *PAIR],
    "gcgpn-l2": ["l2"],
    "gcgpn-l2-aux": ["l2", *PAIR],
    "gcgpn-key": ["keys", *PAIR],
}


@pytest.fixture
def similarities():
    return {"known": torch.rand(7, 7, generator=torch.Generator().manual_seed(0))}


@pytest.fixture
def own_names(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(variants, "OPERATORS", dict(variants.OPERATORS))
    monkeypatch.setattr(variants, "VARIANTS", dict(variants.VARIANTS))


def make(variant, similarities=None, **options):
    return build(variant, "identity", (5, 1, 1), 4, similarities, **options)


def logits(model):
    """Of one episode: classes 0 to 3 seen, 4 to 6 novel, two shots, three queries."""
    generator = torch.Generator().manual_seed(0)
    support, queries = torch.randn(1, 3, 2, 5, generator=generator), torch.randn(1, 3, 5, generator=generator)
    return model(support, torch.ones(1, 3, 2, dtype=torch.bool), queries, torch.arange(7)[None], 4)


@pytest.mark.parametrize(("name", "labels"), ROWS.items())
def test_row_of_the_paper_has_its_operators(similarities, name, labels):
    variant = find_variant(name)
    model = make(variant, similarities if variant.needs_relation else None)
    assert [label for operator in model.operators for label in operator.labels] == labels
    assert [layer.labels for layer in model.graph.layers] == [tuple(labels)]
    assert logits(model).shape == (1, 3, 7)
    assert logits(model).isfinite().all()


def test_every_variant_is_a_row():
    assert ROWS.keys() == {name for name, variant in VARIANTS.items() if variant.method is None}


def test_two_stages_start_from_plain_cosine_classification_and_all_others_from_nothing():
    staged = {"dfslwof-avg", "dfslwof-att", "teen", "castle", "means", "mapped"}
    assert {name for name in ROWS if VARIANTS[name].after} == staged
    assert {VARIANTS[name].after for name in ROWS} == {None, "cosine"}
    assert VARIANTS["cosine"].objective == "classify"


def learned(name):
    """The parts of a variant that learn, on a backbone that could."""
    model = build(find_variant(name), "conv4-32", (1, 16, 16), 4)
    return {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_what_a_variant_freezes_does_not_learn_and_all_else_does():
    assert learned("cosine") == {"backbone", "prototypes", "classifier"}
    assert learned("pn+") == learned("pn+cos") == {"backbone", "classifier"}
    assert learned("dfslwof-avg") == {"prototypes", "classifier", "graph"}
    assert learned("dfslwof-att") == {"prototypes", "classifier", "graph", "operators"}
    assert learned("gcgpn-key") == {"backbone", "prototypes", "classifier", "graph", "operators"}


def test_prototypical_networks_keep_the_last_relu_and_measure_distances():
    plain, cosine = (build(find_variant(name), "conv4-32", (1, 16, 16), 4) for name in ("pn+", "pn+cos"))
    assert isinstance(plain.classifier, SquaredDistance)
    assert plain.classifier.scale.item() == 1
    assert isinstance(cosine.classifier, CosineClassifier)
    for model in (plain, cosine):
        assert (model.embed(torch.randn(50, 1, 16, 16)) >= 0).all()
    assert (build(find_variant("cosine"), "conv4-32", (1, 16, 16), 4).embed(torch.randn(50, 1, 16, 16)) < 0).any()


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"objective": "joined"}, "objective 'joined'.*joint"),
        ({"classifier": "cosin"}, "classifier 'cosin'.*cosine"),
        ({"frozen": ("backbones",)}, "'backbones'.*backbone"),
        ({"objective": "none"}, "'own'.*candidates"),
        ({"candidates": ({"classifier.temperature": 3.0},)}, "'own'.*candidates"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        Variant("own", AUX, "", **wrong)


def test_only_relation_variants_need_a_relation():
    needing = {name for name, labels in ROWS.items() if any("known" in label for label in labels)}
    assert {name for name in ROWS if VARIANTS[name].needs_relation} == needing


@pytest.mark.parametrize(("name", "measure"), [("gcgpn-cos-aux", "cosine"), ("gcgpn-l2-aux", "l2")])
def test_computed_rows_use_their_measure(name, measure):
    assert make(find_variant(name)).operators[0].similarity.measure == measure


def test_rows_differ_in_their_transforms_as_the_paper_says(similarities):
    full = make(find_variant("gcgpn-aux-fc"), similarities).graph.layers[0].thetas
    assert [theta.shape for theta in full.values()] == [(5, 5)] * 3
    assert all(torch.equal(theta, torch.eye(5)) for theta in full.values())
    diagonal = make(find_variant("gcgpn-aux"), similarities).graph.layers[0].thetas
    assert all(torch.equal(theta, torch.ones(5)) for theta in diagonal.values())
    assert len(make(find_variant("aux-only")).graph.layers[0].thetas) == 1


def test_temperatures_start_at_one_and_for_keys_at_ten(similarities):
    assert make(find_variant("gcgpn"), similarities).operators[0].temperature.item() == 1
    assert make(find_variant("gcgpn-cos")).operators[0].temperature.item() == 1
    assert make(find_variant("gcgpn-key")).operators[0].temperature.item() == 10


def test_split_blocks_share_one_temperature(similarities):
    model = make(find_variant("gcgpn-split"), similarities)
    assert [name for name, _ in model.operators.named_parameters()] == ["0.operator.temperature"]


def test_same_seed_gives_the_same_weights_and_another_others():
    variant = Variant("own", (Op("transformed"), Op("difference"), *AUX), "")
    first, again, other = (build(variant, "conv4-32", (1, 16, 16), 4, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in ("prototypes", "backbone.blocks.0.0.weight", "operators.0.similarity.transform.weight"):
        assert not torch.equal(first[name], other[name])


def test_build_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    make(find_variant("gcgpn-cos-aux"), seed=9)
    assert torch.equal(torch.get_rng_state(), before)


def test_temperature_of_the_classifier_can_be_set():
    assert make(find_variant("aux-only"), temperature=4.0).classifier.temperature.item() == 4


def test_own_operator_and_variant_are_a_few_lines(own_names):
    class Uniform(Operator):
        labels = ("uniform",)

        def forward(self, context):
            count = context.classes.shape[1]
            return torch.full((count, count), 1 / count)

    register_operator("uniform", lambda parts: Uniform())
    register_variant(Variant("gcgpn-uniform", (Op("uniform"), *AUX), "every class related to every other alike"))
    model = make(find_variant("gcgpn-uniform"))
    assert model.graph.layers[0].labels == ("uniform", *PAIR)
    logits(model).sum().backward()
    assert model.prototypes.grad.isfinite().all()


def test_own_operator_kind_takes_options_and_may_answer_several(own_names):
    class Constant(Operator):
        def __init__(self, label, value):
            super().__init__()
            self.labels, self.value = (label,), value

        def forward(self, context):
            return torch.full((context.classes.shape[1],) * 2, self.value)

    register_operator("constants", lambda parts, count: [Constant(f"constant-{i}", i + 1.0) for i in range(count)])
    model = make(Variant("own", (Op("constants", options={"count": 2}).only("nn"),), ""))
    assert model.graph.layers[0].labels == ("constant-0-nn", "constant-1-nn")


def test_several_relations_make_several_operators(similarities):
    model = make(find_variant("gcgpn-aux"), similarities | {"other": torch.eye(7)})
    assert model.graph.layers[0].labels == ("known", "other", *PAIR)
    names = [name for name, _ in model.operators.named_parameters()]
    assert names == ["0.temperature", "1.temperature"]
    assert logits(model).isfinite().all()


def test_operators_can_be_raised_split_and_thresholded(similarities):
    ops = (Op("relation", order=2).split(), Op("cos", options={"top": 2}), Op("keys", options={"block": None}).only("sn", "nn"))
    model = make(Variant("own", ops, "", layers=2), similarities)
    blocks = [f"known^2-{block}" for block in ("ss", "sn", "ns", "nn")]
    assert model.graph.layers[1].labels == (*blocks, "cos", "keys-sn", "keys-nn")
    assert logits(model).isfinite().all()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("threshold", [{"top": 2}, {"above": 0.5}])
def test_thresholded_relation_becomes_a_sparse_graph(similarities, threshold):
    model = make(Variant("own", (Op("relation", options=threshold), *AUX), ""), similarities)
    context = model.context(torch.randn(1, 3, 2, 5), torch.ones(1, 3, 2, dtype=torch.bool), torch.arange(7)[None], 4)
    edges = model.weights(context)[0].values
    assert isinstance(edges, Edges)
    kept = 14 if "top" in threshold else (similarities["known"] > 0.5).sum()
    assert edges.weight.numel() == kept


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"variant 'gcgpn-axu'.*gcgpn-aux"):
        find_variant("gcgpn-axu")
    with pytest.raises(InputError, match=r"operator 'coz'.*cos"):
        make(Variant("own", (Op("coz"),), ""))


@pytest.mark.parametrize("given", [None, {}])
def test_missing_relation_is_an_input_error_that_names_the_variant(given):
    with pytest.raises(InputError, match="'gcgpn-aux' needs side information"):
        make(find_variant("gcgpn-aux"), given)


def test_fixed_theta_of_an_operator_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="called cos"):
        make(Variant("own", AUX, "", fixed_theta=("cos",)))


def test_operator_prints_as_it_is_declared():
    assert str(Op("relation")) == "relation"
    assert str(Op("relation", order=2).only("sn", "nn")) == "relation^2[sn nn]"
