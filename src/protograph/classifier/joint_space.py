"""The joint label space of a classifier: learned classes, added classes, and the prototypes of all.

Shapes: S seen, N added, V = S + N, K examples, D features, n images.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph._internal.rows import Names, Rows, distinct
from protograph.classifier.asking import (
    CANDIDATES,
    MOST_IN_DOUBLE,
    NUMBERS_AT_ONCE,
    Best,
    ClassIndex,
    Likeness,
    Linear,
    find_best,
)
from protograph.classifier.naming import check_known, check_new_name, check_removable, class_index
from protograph.classifier.row_updates import RowUpdates
from protograph.nn.backbones import Centred
from protograph.nn.classify import CosineClassifier, normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context
from protograph.nn.operators.nearest_pairs import is_many
from protograph.relations import ClassHint, KeptRelation
from protograph.variants import Variant, renew_relations


class JointSpace:
    """Seen classes, as they were learned, and added ones behind them, in the order they were added.

    Args:
        model: The model, with a backbone that at most centres features, and one learned prototype per seen class.
        variant: The variant that the model was built from.
        names: The names of all classes.
        relations: The relations of all classes, by label.
        support: For each added class, the features [K, D] of its examples; K may be 0.
        prototypes: The prototypes [V, D], if they are already computed.
        progress: What shows how far it is.
        kept_neighbours: The neighbours of many classes, if they were kept, as `RowUpdates.kept` returns them.

    Attributes:
        updates: With many classes, what computes some prototypes without the others; None where all are computed together.

    """

    def __init__(
        self,
        model: GraphPrototypeNetwork,
        variant: Variant,
        names: Sequence[str],
        relations: Mapping[str, KeptRelation],
        support: Sequence[Tensor] = (),
        prototypes: Tensor | None = None,
        progress: Progress | None = None,
        kept_neighbours: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.variant = model.eval().requires_grad_(False), variant
        self.names = names if isinstance(names, Names) else Names(names)
        self.relations, self.support = dict(relations), list(support)
        self._starts = Rows([*Rows.of(self.model.learned()).blocks, self._starts_of(self.support)])
        self.updates: RowUpdates | None = None
        self._kept = kept_neighbours
        self._units: Rows | None = None
        self._index: ClassIndex | None = None
        self._rows = self._updated(progress) if prototypes is None else Rows.of(prototypes)

    def copied(self) -> "JointSpace":
        """Return a space that can be changed while this one stays as it is. Tensors are shared: no change writes into one."""
        space = copy.copy(self)
        space.relations, space.support = dict(self.relations), list(self.support)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        space.model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        return space

    @property
    def prototypes(self) -> Tensor:
        """The updated prototypes [V, D] of all classes."""
        return self._rows.tensor()

    @prototypes.setter
    def prototypes(self, prototypes: Tensor) -> None:
        self._rows, self._units, self._index = Rows.of(prototypes), None, None

    def prototype(self, row: int) -> Tensor:
        """Return the updated prototype [D] of a class, by its index."""
        return self._rows[row]

    @property
    def seen(self) -> int:
        """The number of seen classes S."""
        return len(self.names) - len(self.support)

    @property
    def temperature(self) -> float:
        """The temperature of the cosine classifier."""
        assert isinstance(self.model.classifier, CosineClassifier)
        return self.model.classifier.temperature.item()

    @property
    def centred(self) -> Centred:
        """The backbone, which centres features."""
        assert isinstance(self.model.backbone, Centred)
        return self.model.backbone

    def index(self, name: str) -> int:
        """Return the index of a class."""
        return class_index(self.names, name)

    @property
    def summary(self) -> str:
        """The model in a word."""
        return self.variant.name

    def examples(self, row: int) -> int | None:
        """Return the number of examples of a class, by its index; None of a fitted one, whose images are not counted."""
        return len(self.support[row - self.seen]) if row >= self.seen else None

    def add(self, name: str, examples: Tensor, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Add a class from its examples [K, D] and hints by relation label; `only_new` leaves all other classes as they are."""
        check_new_name(self.names, name)
        grown, known = {}, False
        for label, relation in self.relations.items():
            grown[label], answered = relation.added(name, self.names, hints.get(label))
            known |= answered
        check_known(name, len(examples), known)
        self.relations, self.names, self.support = grown, self.names.extended([name]), [*self.support, examples]
        self._renew()
        self._added([examples], only_new)

    def add_all(
        self, examples: Mapping[str, Tensor], hints: Mapping[str, Mapping[str, ClassHint]], only_new: bool = False
    ) -> None:
        """Add classes from features [K, D] by name."""
        if only_new:  # each sees those before it alone
            for name, features in examples.items():
                self.add(name, features, hints.get(name, {}), only_new)
            return
        names, relations = self.names, dict(self.relations)
        for name, features in examples.items():
            check_new_name(names, name)
            known = False
            for label, relation in relations.items():
                relations[label], answered = relation.added(name, names, hints.get(name, {}).get(label))
                known |= answered
            check_known(name, len(features), known)
            names = names.extended([name])
        self.names, self.relations, self.support = names, relations, [*self.support, *examples.values()]
        self._renew()
        self._added(list(examples.values()), only_new)

    def _added(self, examples: Sequence[Tensor], only_new: bool) -> None:
        """Compute prototypes after the last classes, from these examples, were added."""
        starts, updates = self._starts_of(examples), self.followed(len(examples))
        new = torch.arange(len(self.names) - len(examples), len(self.names))
        self._starts = self._starts.extended(starts)
        if updates is not None:
            self.updates = updates.extended(self.model, starts)
            self._rows = self._rows.extended(torch.zeros_like(starts))
            self._follow(new, only_new)
        else:
            updated = self._updated()
            self._set_rows(self._rows.extended(updated.take(new)) if only_new else updated)

    def add_examples(self, name: str, examples: Tensor, only_new: bool = False) -> None:
        """Add features [K, D] to the examples of an added class; the prototype of a fitted class was learned and stays so."""
        added = self.index(name) - self.seen
        if added < 0:
            raise InputError(
                f"class '{name}' was learned by training variant '{self.variant.name}', which takes no further examples: fit "
                "again"
            )
        self._set_support(added, torch.cat([self.support[added], examples]), only_new)

    def remove_examples(self, name: str, rows: Collection[int], images: Tensor | None, only_new: bool = False) -> None:
        """Remove the examples of an added class at some indices; `images` serves Gaussian spaces alone."""
        added = self.index(name) - self.seen
        if added < 0:
            raise InputError(
                f"class '{name}' was learned by training variant '{self.variant.name}', so no example of it can be removed: "
                "fit again"
            )
        stay = [index for index in range(len(self.support[added])) if index not in rows]
        self._set_support(added, self.support[added][stay], only_new)

    def neighbours(self) -> dict[str, Tensor]:
        """Return the neighbours of many classes as tensors, to be kept; none of few classes."""
        if self.updates is not None:
            return self.updates.kept()
        return dict(self._kept or {})

    def relate(self, name: str, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Say anew how a class relates, by hints for some relations; `only_new` leaves all other classes as they are."""
        row, relations, known = self.index(name), dict(self.relations), False
        for label, hint in hints.items():
            relations[label], answered = relations[label].retold(row, self.names, hint)
            known |= answered
        if row >= self.seen:
            check_known(name, len(self.support[row - self.seen]), known or hints.keys() != relations.keys())
        self.relations, updates = relations, self.followed()
        self._renew()
        if updates is not None:
            self.updates = updates.related(self.model, row)
            self._follow(torch.tensor([row]), only_new)
        else:
            self._update(row if only_new else None)

    def _set_support(self, added: int, examples: Tensor, only_new: bool) -> None:
        """Give an added class these examples [K, D], and compute prototypes."""
        row, start = self.seen + added, self._starts_of([examples])
        updates = self.followed()
        self.support[added] = examples
        self._starts = self._starts.replaced([row], start)
        if updates is not None:
            self.updates = updates.replaced(row, start[0])
            self._follow(torch.tensor([row]), only_new)
        else:
            self._update(row if only_new else None)

    def _update(self, only: int | None = None) -> None:
        """Compute all prototypes, or only that of one class."""
        updated = self._updated()
        self._set_rows(updated if only is None else self._rows.replaced([only], updated.take([only])))

    def followed(self, added: int = 0) -> RowUpdates | None:
        """Return what the prototypes are computed from, if they can be computed apart.

        Args:
            added: The number of last classes that are not part of it yet.

        """
        before = len(self.names) - added
        if not RowUpdates.can_follow(self.model, before) or not is_many(len(self.names)):
            return None
        if self.updates is None:
            self.updates = RowUpdates.of(self.model, len(self.names) - len(self.support), self._starts, self._kept)
            if self._kept is None:  # which prototypes others have changed is not known
                self.updates = replace(self.updates, stale=torch.arange(before))
        return self.updates

    def _follow(self, rows: Tensor, only_new: bool) -> None:
        """Compute the prototypes of changed classes and, unless these are the only ones, of all that others have changed."""
        assert self.updates is not None
        rows = rows if only_new else distinct(rows, self.updates.stale)
        self._set_rows(self._rows.replaced(rows, self.updates.prototypes(rows)), rows)
        self.updates = self.updates.settled(rows)

    def _set_rows(self, prototypes: Rows, changed: Tensor | None = None) -> None:
        """Take other prototypes; those of length 1 follow, if it is known which have changed."""
        units, index = self._units, self._index
        self._rows, self._units, self._index = prototypes, None, None
        if units is not None and changed is not None and len(units) <= len(prototypes):
            more = prototypes.blocks[0].new_zeros(len(prototypes) - len(units), *prototypes.blocks[0].shape[1:])
            values = normalise(prototypes.take(changed))
            self._units = (units.extended(more) if len(more) else units).replaced(changed, values)
            new = torch.arange(len(units), len(prototypes))
            self._index = None if index is None else index.extended(distinct(changed, new))

    def remove(self, name: str, only_new: bool = False) -> None:
        """Remove a class, seen or added; `only_new` leaves all other prototypes as they are."""
        index = check_removable(self.names, name)
        updates, added = self.followed(), index - self.seen
        if added < 0:
            self.model.forget(index)
        else:
            del self.support[added]
        self.names, self._starts = self.names.without(index), self._starts.without(index)
        self.relations = {label: relation.removed(index) for label, relation in self.relations.items()}
        self._renew()  # the operators see the remaining classes, even where prototypes stay
        units = None if self._units is None else self._units.without(index)
        if updates is not None and is_many(len(self.names)):
            self.updates = updates.without(index, self.model)
            self._rows, self._units = self._rows.without(index), units
            self._index = None if self._index is None or units is None else self._index.without(index)
            self._follow(torch.zeros(0, dtype=torch.long), only_new)
        elif only_new:
            self._rows, self._units, self.updates, self._index = self._rows.without(index), units, None, None
        else:
            self._set_rows(self._updated())

    def rename(self, old: str, new: str) -> None:
        """Rename a class. Nothing else changes."""
        index = self.index(old)
        check_new_name(self.names, new)
        self.names = self.names.renamed(index, new)

    def context(self, count: int | None = None) -> Context:
        """Return what the operators see: one episode of all classes, or of the first `count`, which include all seen ones."""
        count = len(self.names) if count is None else count
        prototypes = self._starts.tensor()[None, :count]
        shown = self._shown(count - self.seen)
        return Context(prototypes, *_padded(shown, prototypes[0, :0]), torch.arange(count)[None], self.seen)

    def context_as_new(self, row: int) -> Context:
        """Return what the operators would see if the class of this row had been added last.

        The examples of a seen class are not kept: it acts as new with its learned prototype as its only example.
        """
        starts, shown, seen = self._starts.tensor(), self._shown(len(self.support)), self.seen
        others = torch.tensor([*range(row), *range(row + 1, len(self.names))], dtype=torch.long)
        own = starts[row : row + 1]
        if row < seen:
            example, seen = own, seen - 1
            own = self.model.initial(example[None, None], torch.ones(1, 1, 1, dtype=torch.bool))[0]
            shown.append(example)
        else:
            shown.append(shown.pop(row - seen))
        order = torch.cat([others, torch.tensor([row])])[None]
        return Context(torch.cat([starts[others], own])[None], *_padded(shown, starts[:0]), order, seen)

    @torch.no_grad()
    def _updated(self, progress: Progress | None = None) -> Rows:
        """Return the prototypes of all classes, computed together."""
        self._renew()
        self.updates = self._kept = None
        if RowUpdates.can_follow(self.model, len(self.names)):
            self.updates = RowUpdates.of(self.model, self.seen, self._starts, None, progress)
            return self.updates.all_prototypes()
        return Rows.of(self.model.joint_prototypes(self.context())[0])

    def _renew(self) -> None:
        """Give the operators the relations of the present classes."""
        if self.relations:
            renew_relations(
                self.model, self.variant, {label: relation.similarities for label, relation in self.relations.items()}
            )

    def _shown(self, count: int) -> list[Tensor]:
        """Return the embedded examples [K, D] of the first `count` added classes if an operator needs them, else none."""
        needed, empty = _sees_support(self.model), self.model.prototypes[:0]
        return [self.model.embed(examples) if needed else empty for examples in self.support[:count]]

    def _starts_of(self, examples: Sequence[Tensor]) -> Tensor:
        """Return the initial prototypes [N, D] of classes from the examples [K, D] of each; without any, zero."""
        if not examples:
            return self.model.prototypes[:0]
        counts = torch.tensor([len(part) for part in examples])
        vectors = self.model.embed(torch.cat(list(examples))) if counts.any() else self.model.prototypes[:0]
        vectors = normalise(vectors) if self.model.normalise_support else vectors
        sums = vectors.new_zeros(len(examples), vectors.shape[1])
        sums = sums.index_add(0, torch.arange(len(examples)).repeat_interleave(counts), vectors)
        return sums / counts.clamp(min=1)[:, None]

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosine [n, V] of features [n, D] to every prototype.

        Of few classes they are in float64, so that no image affects another.
        """
        linear = Linear(self._unit_rows())
        portion = max(1, NUMBERS_AT_ONCE // len(self.names))
        parts = [
            torch.cat([queries @ rows.T for _, rows in linear.weights], 1)
            for queries in torch.split(self._directions(features), portion)
        ]
        return torch.cat(parts)

    def _unit_rows(self) -> Rows:
        """Return the prototypes [V, D] with length 1."""
        kind = torch.float64 if len(self.names) <= MOST_IN_DOUBLE else self._rows.blocks[0].dtype
        if self._units is None or self._units.blocks[0].dtype != kind:
            self._units = self._rows.mapped(lambda block: normalise(block.to(kind)))
        return self._units

    def _directions(self, features: Tensor) -> Tensor:
        """Return features [n, D], embedded and with length 1."""
        return normalise(self.model.embed(features).double()).to(self._unit_rows().blocks[0])

    def likeness(self, features: Tensor) -> Tensor:
        """Return the likeness [n] of features [n, D]: the largest cosine to a prototype, before both are centred.

        Centring removes what all classes share, which tells images of no class apart from the others.
        """
        best = find_best(Linear(self._unit_rows()), self._directions(features), likeness=self._likeness(features))
        assert best.likeness is not None
        return best.likeness.double()

    def _likeness(self, features: Tensor) -> Likeness:
        r"""Return what makes likeness of cosines: :math:`\cos(z, c + r \bar p)`, which they and what follows determine."""
        centre, radius = self.centred.centre.double(), self.centred.radius.double()
        lengths = self.model.embed(features).double().norm(dim=1)
        sizes = features.double().norm(dim=1)
        across = features.double() @ centre
        scale = torch.where(sizes > 0, 1 / sizes.clamp(min=torch.finfo(torch.float64).tiny), 0.0)

        def likeness(cosines: Tensor, start: int, images: slice) -> Tensor:
            units = self._unit_rows()
            block = next(rows for first, rows in units if first == start)
            along = block.double() @ centre
            length = (centre.square().sum() + 2 * radius * along + radius.square() * block.double().square().sum(1)).sqrt()
            inverse = torch.where(length > 0, 1 / length.clamp(min=torch.finfo(torch.float64).tiny), 0.0)
            kind = cosines.dtype
            image, other = (radius * lengths * scale)[images, None].to(kind), (across * scale)[images, None].to(kind)
            both = torch.addcmul(other, image, cosines)
            both = torch.addcmul(both, (radius * scale)[images, None].to(kind), along.to(kind)[None])
            return both.mul_(inverse.to(kind)[None])

        return likeness

    def logits(self, features: Tensor, offsets: Tensor | float = 0.0) -> Tensor:
        """Return the logits [n, V] of features [n, D], with offsets [V] on the classes."""
        return self.temperature * self.cosines(features) + offsets

    def answers(self, features: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index [n] of the best class of features [n, D] and the likeness [n]."""
        best = self.best(features, offsets, like=True)
        assert best.likeness is not None
        return best.classes[:, 0], best.likeness

    def best(
        self, features: Tensor, offsets: Tensor | None, count: int = 1, probable: bool = False, like: bool = False
    ) -> Best:
        """Return the best classes of features [n, D] with their logits, without keeping all logits.

        Args:
            features: The features.
            offsets: What prior and bias add to the logits [V].
            count: The number of classes.
            probable: Whether the sum over all classes is asked for, which probabilities need.
            like: Whether the likeness is asked for.

        """
        units, queries, temperature = self._unit_rows(), self._directions(features), self.temperature
        moved = offsets / temperature if offsets is not None and bool(offsets.any()) else None
        linear = Linear(units, None if moved is None else moved.to(queries))
        if not like:
            best = find_best(linear, queries, count, probable, scale=temperature)
            return replace(best, logits=temperature * best.logits)
        of_cosines = self._likeness(features)

        def likeness(logits: Tensor, start: int, images: slice) -> Tensor:
            part = logits if moved is None else logits - moved[start : start + logits.shape[1]].to(logits)
            return of_cosines(part, start, images)

        best = find_best(linear, queries, count, probable, likeness, temperature)
        assert best.likeness is not None
        return replace(best, logits=temperature * best.logits, likeness=best.likeness.double())

    def best_indexed(self, features: Tensor, offsets: Tensor | None, count: int = 1) -> Best:
        """Return the best classes of features [n, D], and their likeness, among those that an index names.

        The index is made when it is first used. The arguments are those of `best`.
        """
        units, queries = self._unit_rows(), self.temperature * self._directions(features)
        moved = None if offsets is None or not bool(offsets.any()) else offsets
        if self._index is None:
            self._index = ClassIndex.of(units)
        linear = Linear(units, None if moved is None else moved.to(queries))
        best = self._index.best(linear, queries, max(count, CANDIDATES))
        named = best.classes.clamp(min=0)
        chosen = normalise(self.centred.back(self._rows.take(named.flatten())).double()).view(*named.shape, -1)
        likeness = (chosen @ normalise(features.double())[:, :, None])[..., 0].masked_fill(best.classes < 0, -torch.inf).amax(1)
        return replace(best, classes=named[:, :count], logits=best.logits[:, :count], likeness=likeness)


def _sees_support(model: GraphPrototypeNetwork) -> bool:
    return any(component.sees_support for component in model.components())


def _padded(support: Sequence[Tensor], empty: Tensor) -> tuple[Tensor, Tensor]:
    """Return the examples [1, N, K, D] of all added classes with their mask [1, N, K]."""
    most = max((len(examples) for examples in support), default=0)
    padded, mask = empty.new_zeros(1, len(support), most, empty.shape[1]), torch.zeros(1, len(support), most, dtype=torch.bool)
    for index, examples in enumerate(support):
        padded[0, index, : len(examples)], mask[0, index, : len(examples)] = examples, True
    return padded, mask
