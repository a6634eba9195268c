import copy

import pytest
import torch
from torch import Tensor

from protograph.classifier.joint_space import JointSpace
from protograph.nn.backbones import Centred
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context, Operator
from protograph.relations import ClassHint, keep_relations
from protograph.training.setup import set_parameters
from protograph.variants import AUX, VARIANTS, Op, Variant, build, register_operator

S, D = 4, 5
NAMES = tuple("abcd")


def rand(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(variant: Variant, similarities: dict[str, Tensor]) -> GraphPrototypeNetwork:
    model = build(variant, Centred(torch.zeros(D)), (D,), S, similarities)
    moved = {name: parameter + 0.3 * rand(*parameter.shape, seed=1).abs() for name, parameter in model.named_parameters()}
    set_parameters(model, {name: value.detach() for name, value in moved.items()})
    return model


COSINE = [name for name, variant in VARIANTS.items() if variant.classifier == "cosine"]


@pytest.mark.parametrize("name", COSINE)
def test_every_cosine_variant_answers_as_the_model_does_in_one_episode(name: str) -> None:
    variant, whole = VARIANTS[name], rand(S + 2, S + 2, seed=2)
    similarities = {"similarity": whole} if variant.needs_relation else {}
    model = make(variant, similarities)
    support, mask = rand(1, 2, 3, D, seed=3), torch.tensor([[[True, True, True], [True, False, False]]])
    queries = rand(1, 7, D, seed=4)
    with torch.no_grad():
        expected = model(support, mask, queries, torch.arange(S + 2)[None], S)[0]
    kept = keep_relations(whole[:S, :S], NAMES) if variant.needs_relation else {}
    space = JointSpace(make(variant, similarities), variant, NAMES, kept)
    assert space.prototypes.shape == (S, D)
    for place, (examples, there) in enumerate(zip(support[0], mask[0], strict=True)):
        space.add(f"new {place}", examples[there], {})
        if kept:  # which tells nothing of them: put in what the whole matrix says
            size = S + place + 1
            (relation,) = space.relations.values()
            relation.similarities.copy_(whole[:size, :size])
    space.prototypes = space._updated().tensor()
    torch.testing.assert_close(space.logits(queries[0]).float(), expected, atol=2e-5, rtol=1e-5)


def test_an_operator_of_ones_own_is_shown_the_examples_and_the_packages_own_are_not() -> None:
    seen: list[tuple[int, ...]] = []

    class Own(Operator):
        labels = ("own",)

        def forward(self, context: Context) -> Tensor:
            seen.append(tuple(context.support.shape))
            return torch.eye(context.classes.shape[1])

    register_operator("own", lambda parts: Own())
    variant = Variant("own", (Op("own"), *AUX), "own")
    space = JointSpace(build(variant, Centred(torch.zeros(D)), (D,), S), variant, NAMES, {})
    space.add("new", rand(3, D, seed=0), {})
    assert seen == [(1, 0, 0, D), (1, 1, 3, D)]
    plain = JointSpace(build(VARIANTS["gcgpn-cos-aux"], Centred(torch.zeros(D)), (D,), S), VARIANTS["gcgpn-cos-aux"], NAMES, {})
    plain.add("new", rand(3, D, seed=0), {})
    assert plain.context().support.shape == (1, 1, 0, D)


@pytest.mark.slow
@pytest.mark.parametrize("name", COSINE)
def test_a_class_that_acts_as_new_is_as_if_it_were_added_last(name: str) -> None:
    variant, whole = VARIANTS[name], rand(S + 2, S + 2, seed=2)
    alike = (whole + whole.T).fill_diagonal_(1)
    related = variant.needs_relation
    kept = keep_relations(alike[:S, :S], NAMES) if related else {}
    space = JointSpace(make(variant, {"similarity": alike[:S, :S]} if related else {}), variant, NAMES, kept)

    def add(to: JointSpace, row: int, name: str, examples: Tensor) -> None:
        told = {other: alike[row, names.index(other)].item() for other in to.names}
        to.add(name, examples, {"similarity": ClassHint(told)} if related else {})

    names = [*NAMES, "new", "newer"]
    for row in (S, S + 1):
        add(space, row, names[row], rand(2, D, seed=row))
    for row, examples in ((1, space.model.learned()[1:2]), (S, space.support[0])):
        acting = space.model.joint_prototypes(space.context_as_new(row))[0, -1]
        again = copy.deepcopy(space)
        again.remove(names[row])
        add(again, row, names[row], examples)
        torch.testing.assert_close(acting, again.prototypes[-1])


def test_an_answer_does_not_depend_on_the_neighbours_in_a_batch() -> None:
    variant = VARIANTS["gcgpn-cos-aux"]
    space = JointSpace(build(variant, Centred(torch.zeros(D)), (D,), S), variant, NAMES, {})
    queries = rand(5000, D, seed=5)
    together = space.logits(queries)
    for row in (0, 17, 4999):
        torch.testing.assert_close(space.logits(queries[row : row + 1])[0], together[row], atol=1e-12, rtol=0)


def test_likeness_is_the_largest_cosine_before_features_are_centred() -> None:
    variant, features = VARIANTS["gcgpn-cos-aux"], rand(6, D, seed=5)
    centre, far = rand(D, seed=6), 2.5
    space = JointSpace(build(variant, Centred(centre, far), (D,), S), variant, NAMES, {})
    for found, row in zip(space.likeness(features).tolist(), features.double(), strict=True):
        cosines = []
        for prototype in space.prototypes.double():
            raw = centre.double() + far * prototype / prototype.norm()
            cosines.append((row @ raw / (row.norm() * raw.norm())).item())
        assert found == pytest.approx(max(cosines), abs=1e-6)
