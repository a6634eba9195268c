"""The joint label space of a classifier: learned classes, added classes, and the prototypes of all.

Shapes: S seen, N added, V = S + N, K examples, D features, n images.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.classifier.naming import check_known, check_new_name, check_removable, class_index
from protograph.nn.backbones import Centred
from protograph.nn.classify import CosineClassifier, normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context
from protograph.relations import ClassHint, KeptRelation
from protograph.variants import Variant, renew_relations

IMAGES_AT_ONCE = 4096  # that are compared with the prototypes


class JointSpace:
    """Seen classes, as they were learned, and added ones behind them, in the order they were added.

    Args:
        model: The model, with a backbone that at most centres features, and one learned prototype per seen class.
        variant: The variant that the model was built from.
        names: The names of all classes.
        relations: The relations of all classes, by label.
        support: For each added class, the features [K, D] of its examples; K may be 0.
        prototypes: The prototypes [V, D], if they are already computed.

    """

    def __init__(
        self,
        model: GraphPrototypeNetwork,
        variant: Variant,
        names: Sequence[str],
        relations: Mapping[str, KeptRelation],
        support: Sequence[Tensor] = (),
        prototypes: Tensor | None = None,
    ) -> None:
        self.model, self.variant = model.eval().requires_grad_(False), variant
        self.names, self.relations, self.support = list(names), dict(relations), list(support)
        self._starts = [self._start(examples) for examples in self.support]
        self.prototypes = self._updated() if prototypes is None else prototypes

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
        self.relations, self.names, self.support = grown, [*self.names, name], [*self.support, examples]
        self._starts = [*self._starts, self._start(examples)]
        updated = self._updated()
        self.prototypes = torch.cat([self.prototypes, updated[-1:]]) if only_new else updated

    def add_all(
        self, examples: Mapping[str, Tensor], hints: Mapping[str, Mapping[str, ClassHint]], only_new: bool = False
    ) -> None:
        """Add classes from features [K, D] by name."""
        for name, features in examples.items():
            self.add(name, features, hints.get(name, {}), only_new)

    def add_examples(self, name: str, examples: Tensor, only_new: bool = False) -> None:
        """Add features [K, D] to the examples of an added class; the prototype of a fitted class was learned and stays so."""
        added = self.index(name) - self.seen
        if added < 0:
            raise InputError(
                f"class '{name}' was learned by training variant '{self.variant.name}', which takes no further examples: fit "
                "again"
            )
        self._set_support(added, torch.cat([self.support[added], examples]))
        self._update(self.seen + added if only_new else None)

    def remove_examples(self, name: str, rows: Collection[int], images: Tensor | None, only_new: bool = False) -> None:
        """Remove the examples of an added class at some indices; `images` serves Gaussian spaces alone."""
        added = self.index(name) - self.seen
        if added < 0:
            raise InputError(
                f"class '{name}' was learned by training variant '{self.variant.name}', so no example of it can be removed: "
                "fit again"
            )
        stay = [index for index in range(len(self.support[added])) if index not in rows]
        self._set_support(added, self.support[added][stay])
        self._update(self.seen + added if only_new else None)

    def relate(self, name: str, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Say anew how a class relates, by hints for some relations; `only_new` leaves all other classes as they are."""
        row, relations, known = self.index(name), dict(self.relations), False
        for label, hint in hints.items():
            relations[label], answered = relations[label].retold(row, self.names, hint)
            known |= answered
        if row >= self.seen:
            check_known(name, len(self.support[row - self.seen]), known or hints.keys() != relations.keys())
        self.relations = relations
        self._update(row if only_new else None)

    def _set_support(self, added: int, examples: Tensor) -> None:
        """Give an added class these examples [K, D]."""
        self.support[added] = examples
        self._starts[added] = self._start(examples)

    def _update(self, only: int | None = None) -> None:
        """Compute all prototypes, or only that of one class."""
        updated = self._updated()
        if only is not None:
            prototypes = self.prototypes.clone()
            prototypes[only] = updated[only]
            updated = prototypes
        self.prototypes = updated

    def remove(self, name: str, only_new: bool = False) -> None:
        """Remove a class, seen or added; `only_new` leaves all other prototypes as they are."""
        index = check_removable(self.names, name)
        added = index - self.seen
        if added < 0:
            self.model.forget(index)
        else:
            del self.support[added], self._starts[added]
        del self.names[index]
        self.relations = {label: relation.removed(index) for label, relation in self.relations.items()}
        if only_new:
            self._renew()  # the operators see the remaining classes, even where prototypes stay
            self.prototypes = torch.cat([self.prototypes[:index], self.prototypes[index + 1 :]])
        else:
            self.prototypes = self._updated()

    def rename(self, old: str, new: str) -> None:
        """Rename a class. Nothing else changes."""
        index = self.index(old)
        check_new_name(self.names, new)
        self.names[index] = new

    def context(self, count: int | None = None) -> Context:
        """Return what the operators see: one episode of all classes, or of the first `count`, which include all seen ones."""
        count = len(self.names) if count is None else count
        learned, added = self.model.learned(), count - self.seen
        prototypes = torch.cat([learned, *self._starts[:added]])[None]
        return Context(prototypes, *_padded(self._shown(added), learned[:0]), torch.arange(count)[None], self.seen)

    def context_as_new(self, row: int) -> Context:
        """Return what the operators would see if the class of this row had been added last.

        The examples of a seen class are not kept: it acts as new with its learned prototype as its only example.
        """
        learned, added = self.model.learned(), row - self.seen
        starts, shown = list(self._starts), self._shown(len(self.support))
        if added < 0:
            example = learned[row : row + 1]
            starts.append(self.model.initial(example[None, None], torch.ones(1, 1, 1, dtype=torch.bool))[0])
            shown.append(example)
            learned = torch.cat([learned[:row], learned[row + 1 :]])
        else:
            starts.append(starts.pop(added))
            shown.append(shown.pop(added))
        order = torch.tensor([[*range(row), *range(row + 1, len(self.names)), row]])
        return Context(torch.cat([learned, *starts])[None], *_padded(shown, learned[:0]), order, len(learned))

    @torch.no_grad()
    def _updated(self) -> Tensor:
        self._renew()
        updated: Tensor = self.model.joint_prototypes(self.context())[0]
        return updated

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

    def _start(self, examples: Tensor) -> Tensor:
        """Return the initial prototype [1, D] of a class from its examples [K, D]; without any, zero."""
        centred = self.model.embed(examples)
        return self.model.initial(centred[None, None], torch.ones(1, 1, len(examples), dtype=torch.bool))[0]

    def cosines(self, features: Tensor) -> Tensor:
        """Return the cosine [n, V] of features [n, D] to every prototype, in float64, so that no image affects another."""
        prototypes = normalise(self.prototypes.double())
        parts = [normalise(self.model.embed(part).double()) @ prototypes.T for part in torch.split(features, IMAGES_AT_ONCE)]
        return torch.cat(parts)

    def likeness(self, features: Tensor) -> Tensor:
        """Return the likeness [n] of features [n, D]: the largest cosine to a prototype, before both are centred.

        Centring removes what all classes share, which tells images of no class apart from the others.
        """
        prototypes = normalise(self.centred.back(self.prototypes).double())
        parts = [(normalise(part.double()) @ prototypes.T).max(1).values for part in torch.split(features, IMAGES_AT_ONCE)]
        return torch.cat(parts)

    def logits(self, features: Tensor, offsets: Tensor | float = 0.0) -> Tensor:
        """Return the logits [n, V] of features [n, D], with offsets [V] on the classes."""
        return self.temperature * self.cosines(features) + offsets

    def answers(self, features: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index [n] of the best class of features [n, D] and the likeness [n]."""
        return self.logits(features, offsets).argmax(1), self.likeness(features)


def _sees_support(model: GraphPrototypeNetwork) -> bool:
    return any(component.sees_support for component in model.components())


def _padded(support: Sequence[Tensor], empty: Tensor) -> tuple[Tensor, Tensor]:
    """Return the examples [1, N, K, D] of all added classes with their mask [1, N, K]."""
    most = max((len(examples) for examples in support), default=0)
    padded, mask = empty.new_zeros(1, len(support), most, empty.shape[1]), torch.zeros(1, len(support), most, dtype=torch.bool)
    for index, examples in enumerate(support):
        padded[0, index, : len(examples)], mask[0, index, : len(examples)] = examples, True
    return padded, mask
