import math

import pytest
import torch
from naive import close, rand
from torch import nn

from protograph.nn.classify import normalise
from protograph.nn.graph import GraphBlock
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Blocks, Context, Identity, Operator, SideInformation, Softmax, components, sparsify
from protograph.training.setup import set_parameters
from protograph.variants import AUX, VARIANTS, Op, Variant, build, renew_relations, teen_candidate

T, S, N, K, Q, D = 6, 4, 3, 2, 4, 5
CLASSES = torch.tensor([[0, 3, 5, 1, 8, 6, 7], [4, 2, 1, 0, 7, 8, 3]])  # the second plays training class 3 as novel


@pytest.fixture
def support():
    return rand(2, N, K, D, seed=1)


@pytest.fixture
def queries():
    return rand(2, Q, D, seed=2)


ALL_SHOTS = torch.ones(2, N, K, dtype=torch.bool)


def make(variant, similarities=None, scale=0.3):
    """A model on given features, in float64, moved away from its start."""
    model = build(variant, "identity", (D, 1, 1), T, similarities).double()
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            if parameter.requires_grad:
                parameter.add_(scale * rand(*parameter.shape, seed=seed).abs())
    return model


def unit(row):
    return [x / math.hypot(*row) for x in row]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def naive_gcgpn_aux(model, similarities, support, mask, queries):
    """Logits of `gcgpn-aux`, one number at a time."""
    (layer,) = model.graph.layers
    tau_b, tau = model.operators[0].temperature.item(), model.classifier.temperature.item()
    theta = [layer.thetas[label].tolist() for label in ("known", "identity-ss", "identity-nn")]
    s = layer.scales.tolist()
    logits = torch.zeros(2, Q, S + N, dtype=torch.float64)
    for e, classes in enumerate(CLASSES.tolist()):
        rows = [unit(model.prototypes[name].tolist()) for name in classes[:S]]
        for shots, kept in zip(support[e], mask[e], strict=True):
            rows.append(unit(mean([unit(shot.tolist()) for shot, there in zip(shots, kept, strict=True) if there])))
        for m, name in enumerate(classes):
            share = [math.exp(tau_b * similarities[name, other].item()) for other in classes]
            gathered = [sum(w * row[d] for w, row in zip(share, rows, strict=True)) / sum(share) for d in range(D)]
            related = unit([x * t for x, t in zip(gathered, theta[0], strict=True)])
            own = 1 if m < S else 2
            kept = unit([x * t for x, t in zip(rows[m], theta[own], strict=True)])
            updated = unit([s[0] * a + s[own] * b for a, b in zip(related, kept, strict=True)])
            for q in range(Q):
                logits[e, q, m] = tau * dot(unit(queries[e, q].tolist()), updated)
    return logits


@pytest.mark.parametrize("mask", [ALL_SHOTS, torch.tensor([[[1, 1], [1, 0], [0, 1]], [[1, 0], [1, 1], [1, 0]]]).bool()])
def test_logits_of_the_whole_model(support, queries, mask):
    similarities = rand(9, 9)
    model = make(VARIANTS["gcgpn-aux"], {"known": similarities})
    expected = naive_gcgpn_aux(model, similarities, support, mask, queries)
    close(model(support, mask, queries, CLASSES, S), expected)


def test_novel_prototype_is_the_mean_of_the_normalised_shots_that_are_there(support):
    mask = torch.tensor([[[1, 1], [1, 0], [0, 1]]] * 2).bool()
    novel = make(VARIANTS["aux-only"]).context(support, mask, CLASSES, S).prototypes[:, S:]
    for e in range(2):
        for n in range(N):
            shots = [unit(shot.tolist()) for shot, there in zip(support[e, n], mask[e, n], strict=True) if there]
            close(novel[e, n], torch.tensor(mean(shots), dtype=torch.float64))


def test_what_stands_in_the_padding_does_not_matter(support, queries):
    model = make(VARIANTS["gcgpn-cos-aux"])
    mask = torch.tensor([[[1, 0], [1, 1], [0, 1]]] * 2).bool()
    other = torch.where(mask[..., None], support, 1e6)
    close(model(other, mask, queries, CLASSES, S), model(support, mask, queries, CLASSES, S))


def test_padding_gets_no_gradient(support, queries):
    mask = torch.tensor([[[1, 0], [1, 1], [0, 1]]] * 2).bool()
    support.requires_grad_()
    make(VARIANTS["gcgpn-cos-aux"])(support, mask, queries, CLASSES, S).logsumexp(-1).sum().backward()
    assert not support.grad[~mask].any()
    assert support.grad[mask].any(-1).all()


def test_episodes_do_not_see_each_other(support, queries):
    model = make(VARIANTS["gcgpn-cos-aux"])
    together = model(support, ALL_SHOTS, queries, CLASSES, S)
    for e in range(2):
        one = slice(e, e + 1)
        close(model(support[one], ALL_SHOTS[one], queries[one], CLASSES[one], S), together[one])


def test_learned_prototype_of_a_class_playing_novel_is_left_out(support, queries):
    model = make(VARIANTS["gcgpn-cos-aux"])
    before = model(support, ALL_SHOTS, queries, CLASSES, S)
    with torch.no_grad():
        model.prototypes[3] += 1
    after = model(support, ALL_SHOTS, queries, CLASSES, S)
    assert not torch.allclose(before[0], after[0])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("name", sorted(name for name, variant in VARIANTS.items() if variant.method is None))
def test_every_learnable_parameter_of_every_variant_gets_a_finite_gradient(support, queries, name):
    similarities = {"known": rand(9, 9)} if VARIANTS[name].needs_relation else None
    model = make(VARIANTS[name], similarities)
    logits = model(support, ALL_SHOTS, queries, CLASSES, S)
    nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(2 * Q) % (S + N)).backward()
    for parameter in (each for each in model.parameters() if each.requires_grad):
        assert parameter.grad.isfinite().all()


def test_seen_prototypes_start_with_the_std_protocol_says():
    model = build(VARIANTS["aux-only"], "identity", (200, 1, 1), 500)
    assert model.prototypes.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.02)
    assert model.classifier.temperature.item() == 10


# What reduces to what, as protocol.md states it


def test_both_switches_off_identity_and_raw_means_are_the_prototypes_of_pn(support):
    pn = Variant(
        "own-pn", (Op("identity"),), "", normalise_inputs=False, normalise_outputs=False, normalise_support=False, scales=False
    )
    model = build(pn, "identity", (D, 1, 1), T).double()
    training_features = rand(T, 20, D, seed=5)
    with torch.no_grad():
        model.prototypes.copy_(training_features.mean(1))
    expected = torch.zeros(2, S + N, D, dtype=torch.float64)
    for e, classes in enumerate(CLASSES.tolist()):
        for m, name in enumerate(classes):
            rows = training_features[name] if m < S else support[e, m - S]
            expected[e, m] = torch.tensor(mean(rows.tolist()), dtype=torch.float64)
    close(model.joint_prototypes(model.context(support, ALL_SHOTS, CLASSES, S)), expected)


def test_pn_classifies_by_distance_with_a_classifier_of_ones_own(support, queries):
    class Distance(nn.Module):
        def forward(self, queries, prototypes):
            return -torch.cdist(queries, prototypes).square() / queries.shape[-1]

    graph = GraphBlock(["identity"], D, normalise_inputs=False, normalise_outputs=False)
    model = GraphPrototypeNetwork(nn.Identity(), T, D, [Identity()], graph, Distance(), normalise_support=False).double()
    logits = model(support, ALL_SHOTS, queries, CLASSES, S)
    for e, classes in enumerate(CLASSES.tolist()):
        for q in range(Q):
            for m, name in enumerate(classes):
                prototype = model.prototypes[name].tolist() if m < S else mean(support[e, m - S].tolist())
                expected = -(math.dist(queries[e, q].tolist(), prototype) ** 2) / D
                assert logits[e, q, m].item() == pytest.approx(expected, abs=1e-10)


def naive_attention(model, shot, classes):
    """DFSLwoF's weight of a novel class at one shot: diag1 * average + diag2 * attended."""
    keys = model.operators[0].similarity
    weight, bias, scale = keys.query.weight.tolist(), keys.query.bias.tolist(), model.operators[0].temperature.item()
    feature = unit(shot)
    query = unit([dot(line, feature) + b for line, b in zip(weight, bias, strict=True)])
    share = [math.exp(scale * dot(query, unit(keys.keys[name].tolist()))) for name in classes[:S]]
    values = [unit(model.prototypes[name].tolist()) for name in classes[:S]]
    attended = [sum(a * value[d] for a, value in zip(share, values, strict=True)) / sum(share) for d in range(D)]
    (layer,) = model.graph.layers
    diag1, diag2 = (layer.thetas[label].tolist() for label in ("identity-nn", model.operators[0].labels[0]))
    return [a * x + b * y for a, x, b, y in zip(diag1, feature, diag2, attended, strict=True)]


def attention_variant():
    return Variant("own-attention", (Op("keys"), *AUX), "", fixed_theta=("identity-ss",), normalise_outputs=False, scales=False)


def test_attention_scale_starts_at_ten():
    assert build(attention_variant(), "identity", (D, 1, 1), T).operators[0].temperature.item() == 10


def test_inputs_normalised_outputs_not_aux_and_keys_are_the_attention_generator_at_one_shot(support, queries):
    model = make(attention_variant())
    one, mask = support[:, :, :1], ALL_SHOTS[:, :, :1]
    expected = torch.zeros(2, S + N, D, dtype=torch.float64)
    for e, classes in enumerate(CLASSES.tolist()):
        for m, name in enumerate(classes):
            weight = (
                unit(model.prototypes[name].tolist()) if m < S else naive_attention(model, one[e, m - S, 0].tolist(), classes)
            )
            expected[e, m] = torch.tensor(weight, dtype=torch.float64)
    close(model.joint_prototypes(model.context(one, mask, CLASSES, S)), expected)
    logits = model.classifier.temperature * normalise(queries) @ normalise(expected).mT
    close(model(one, mask, queries, CLASSES, S), logits)


def test_both_switches_on_and_aux_alone_are_the_average_generator_up_to_a_scale_per_row(support, queries):
    model = make(VARIANTS["aux-only"])
    (layer,) = model.graph.layers
    diagonal = layer.thetas["identity-nn"].tolist()
    expected = torch.zeros(2, S + N, D, dtype=torch.float64)
    for e, classes in enumerate(CLASSES.tolist()):
        for m, name in enumerate(classes):
            if m < S:
                weight = model.prototypes[name].tolist()
            else:
                average = mean([unit(shot) for shot in support[e, m - S].tolist()])
                weight = [a * x for a, x in zip(diagonal, average, strict=True)]
            expected[e, m] = torch.tensor(weight, dtype=torch.float64)
    updated = model.joint_prototypes(model.context(support, ALL_SHOTS, CLASSES, S))
    ratio = updated / expected
    close(ratio, ratio[..., :1].expand_as(ratio))
    assert (ratio > 0).all()
    close(model(support, ALL_SHOTS, queries, CLASSES, S), model.classifier(queries, expected))


def masks(shots):
    if shots != "unequal":
        return torch.ones(2, N, shots, dtype=torch.bool)
    return torch.tensor([[[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [1] * 5], [[0, 0, 0, 1, 1], [1] * 5, [1, 0, 0, 0, 0]]]).bool()


def kept_shots(support, mask, e, n):
    return [shot for shot, there in zip(support[e, n].tolist(), mask[e, n].tolist(), strict=True) if there]


def add(*rows):
    return [sum(column) for column in zip(*rows, strict=True)]


def times(factor, row):
    return [f * x for f, x in zip(factor if isinstance(factor, list) else [factor] * len(row), row, strict=True)]


def naive_logits(model, queries, weight):
    """Cosine logits of `weight(e, m)`, the prototype of row m of episode e, and these prototypes."""
    prototypes = torch.tensor([[weight(e, m) for m in range(S + N)] for e in range(2)], dtype=torch.float64)
    logits = torch.zeros(2, Q, S + N, dtype=torch.float64)
    for e in range(2):
        for q in range(Q):
            for m in range(S + N):
                cosine = dot(unit(queries[e, q].tolist()), unit(prototypes[e, m].tolist()))
                logits[e, q, m] = model.classifier.temperature.item() * cosine
    return logits, prototypes


@pytest.mark.parametrize("shots", [1, 5, "unequal"])
@pytest.mark.parametrize("name", ["dfslwof-avg", "dfslwof-att"])
def test_dfslwof_is_a_loop_over_its_formulas(queries, name, shots):
    """novel = diag1 * mean of normalised examples (+ diag2 * mean over examples of what each attends to)."""
    mask = masks(shots)
    support = rand(*mask.shape, D, seed=3)
    model = make(VARIANTS[name])
    thetas = model.graph.layers[0].thetas
    assert thetas.keys() == (["identity-nn"] if name == "dfslwof-avg" else ["attention", "identity-nn"])

    def attended(shot, classes):
        keys, scale = model.operators[0].similarity, model.operators[0].temperature.item()
        asked = [
            dot(line, unit(shot)) + b for line, b in zip(keys.query.weight.tolist(), keys.query.bias.tolist(), strict=True)
        ]
        share = [math.exp(scale * dot(unit(asked), unit(keys.keys[c].tolist()))) for c in classes[:S]]
        return add(
            *(times(a / sum(share), unit(model.prototypes[c].tolist())) for a, c in zip(share, classes[:S], strict=True))
        )

    def weight(e, m):
        classes = CLASSES[e].tolist()
        if m < S:
            return unit(model.prototypes[classes[m]].tolist())
        examples = kept_shots(support, mask, e, m - S)
        own = times(thetas["identity-nn"].tolist(), mean([unit(shot) for shot in examples]))
        if name == "dfslwof-avg":
            return own
        return add(own, times(thetas["attention"].tolist(), mean([attended(shot, classes) for shot in examples])))

    logits, prototypes = naive_logits(model, queries, weight)
    close(model.joint_prototypes(model.context(support, mask, CLASSES, S)), prototypes)
    close(model(support, mask, queries, CLASSES, S), logits)


def test_dfslwof_at_one_shot_is_the_framework_without_normalised_outputs(support, queries):
    model, framework = make(VARIANTS["dfslwof-att"]), build(attention_variant(), "identity", (D, 1, 1), T).double()
    framework.load_state_dict({name.replace("attention", "keys"): value for name, value in model.state_dict().items()})
    one, mask = support[:, :, :1], ALL_SHOTS[:, :, :1]
    close(model(one, mask, queries, CLASSES, S), framework(one, mask, queries, CLASSES, S))
    assert not torch.allclose(
        model(support, ALL_SHOTS, queries, CLASSES, S), framework(support, ALL_SHOTS, queries, CLASSES, S)
    )


@pytest.mark.parametrize("shots", [1, 5, "unequal"])
def test_pn_is_a_loop_over_squared_distances(queries, shots):
    mask = masks(shots)
    support = rand(*mask.shape, D, seed=3)
    model = make(VARIANTS["pn+"])
    logits = model(support, mask, queries, CLASSES, S)
    for e, classes in enumerate(CLASSES.tolist()):
        for m, name in enumerate(classes):
            prototype = model.prototypes[name].tolist() if m < S else mean(kept_shots(support, mask, e, m - S))
            for q in range(Q):
                distance = math.dist(queries[e, q].tolist(), prototype) ** 2
                assert logits[e, q, m].item() == pytest.approx(-model.classifier.scale.item() * distance / D, abs=1e-10)


@pytest.mark.parametrize("shots", [1, 5, "unequal"])
def test_teen_is_a_loop_over_its_formula(queries, shots):
    mask = masks(shots)
    support = rand(*mask.shape, D, seed=3)
    model, alpha, t = make(VARIANTS["teen"]), 0.6, 7.0
    set_parameters(model, teen_candidate(alpha, t))

    def weight(e, m):
        seen = [unit(model.prototypes[c].tolist()) for c in CLASSES[e, :S]]
        if m < S:
            return seen[m]
        own = unit(mean([unit(shot) for shot in kept_shots(support, mask, e, m - S)]))
        share = [math.exp(t * dot(own, row)) for row in seen]
        return add(times(alpha, own), *(times((1 - alpha) * a / sum(share), row) for a, row in zip(share, seen, strict=True)))

    logits, prototypes = naive_logits(model, queries, weight)
    close(model.joint_prototypes(model.context(support, mask, CLASSES, S)), prototypes)
    close(model(support, mask, queries, CLASSES, S), logits)


def test_cosine_compares_with_learned_prototypes_and_means_of_normalised_examples(support, queries):
    model = make(VARIANTS["cosine"])

    def weight(e, m):
        if m < S:
            return model.prototypes[CLASSES[e, m]].tolist()
        return mean([unit(shot) for shot in support[e, m - S].tolist()])

    logits, _ = naive_logits(model, queries, weight)
    close(model(support, ALL_SHOTS, queries, CLASSES, S), logits)
    among_seen = [[dot(unit(query), unit(row)) for row in model.prototypes.tolist()] for query in queries[0].tolist()]
    close(model.seen_logits(queries[0]), model.classifier.temperature * torch.tensor(among_seen, dtype=torch.float64))


@pytest.mark.slow
def test_gradients_of_the_prototypes_are_the_same_every_time_with_several_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = build(VARIANTS["aux-only"], "identity", (64, 1, 1), 200)
        classes = torch.stack([torch.randperm(200, generator=torch.Generator().manual_seed(e)) for e in range(16)])
        generator = torch.Generator().manual_seed(0)
        features, queries = torch.randn(16, 5, 1, 64, generator=generator), torch.randn(16, 60, 64, generator=generator)
        found = []
        for _ in range(20):
            model.zero_grad()
            model(features, torch.ones(16, 5, 1, dtype=torch.bool), queries, classes, 195).logsumexp(-1).sum().backward()
            found.append(model.prototypes.grad.clone())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], each) for each in found)


@pytest.mark.parametrize("name", ["gcgpn-aux", "gcgpn-key", "dfslwof-att"])
def test_a_forgotten_class_is_as_if_it_had_never_been_among_the_seen(name, support, queries):
    similarities = {"known": rand(9, 9, seed=4)}
    model = make(VARIANTS[name], similarities)
    classes = torch.tensor([[0, 1, 3, 4, 5, 6, 7, 8]])
    mask = torch.ones(1, N, K, dtype=torch.bool)
    expected = model(support[:1], mask, queries[:1], classes, 5)
    model.forget(2)
    kept = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8])
    renew_relations(model, VARIANTS[name], {"known": similarities["known"][kept][:, kept]})
    assert model.prototypes.shape == (T - 1, D)
    close(model(support[:1], mask, queries[:1], torch.arange(8)[None], 5), expected)


class Popularity(Operator):
    """A custom operator with one learned weight for each training class."""

    def __init__(self, seen):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(float(seen)))

    def forget(self, row):
        """Drop the weight of one training class."""
        self.weight = nn.Parameter(torch.cat([self.weight.detach()[:row], self.weight.detach()[row + 1 :]]))

    def forward(self, context: Context):
        """[E, V, V]."""
        seen = self.weight[context.classes[:, : context.seen]]
        columns = nn.functional.pad(seen, (0, context.classes.shape[1] - context.seen))
        return columns[:, None].expand(-1, context.classes.shape[1], -1)


def test_an_operator_with_state_per_class_forgets_a_class_even_inside_another_operator():
    model = build(VARIANTS["aux-only"], nn.Flatten(), (D,), 9)
    model.operators = nn.ModuleList([Popularity(9), Blocks(Popularity(9), ("sn",))])
    model.forget(3)
    for component in model.components():
        if isinstance(component, Popularity):
            assert component.weight.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert sum(isinstance(component, Popularity) for component in model.components()) == 2


def test_operators_say_what_they_look_at_and_whether_a_step_with_them_can_be_recorded():
    dense, sparse = rand(9, 9), sparsify(rand(9, 9), top=2)
    for similarities, capturable in ((dense, True), (sparse, False)):
        operator = Blocks(Softmax(SideInformation(similarities), "relation"))
        assert any(component.uses_relation for component in components(operator))
        assert not any(component.sees_support for component in components(operator))
        assert all(component.capturable for component in components(operator)) is capturable
    assert [component.sees_support for component in components(Popularity(2))] == [True]
    assert not any(component.uses_relation for component in components(Blocks(Identity(), ("ss",))))
