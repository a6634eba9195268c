"""The joint label space a classifier keeps: learned classes, added classes, and the prototypes of all.

Shapes: S seen, N added, V = S + N, K examples, D features, n images.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.nn.backbones import Centred
from protograph.nn.classify import CosineClassifier, normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context
from protograph.relations import ClassHint, KeptRelation
from protograph.variants import Variant, renew_relations

PORTION = 4096  # images that are compared with the prototypes at a time


class JointSpace:
    """Seen classes first, as they were learned, then the added ones in the order they came.

    Args:
        model: with a backbone that takes features and at most centres them, and one learned prototype per seen class
        variant: what the model is
        names: of all classes
        relations: what is known of all classes, by label
        support: features [K, D] of the examples of each added class; K may be 0
        prototypes: [V, D], where they are known already

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
        """S."""
        return len(self.names) - len(self.support)

    @property
    def temperature(self) -> float:
        """Of the cosine classifier."""
        assert isinstance(self.model.classifier, CosineClassifier)
        return self.model.classifier.temperature.item()

    @property
    def centred(self) -> Centred:
        """What features pass first."""
        assert isinstance(self.model.backbone, Centred)
        return self.model.backbone

    def place(self, name: str) -> int:
        """Where a class stands."""
        if name not in self.names:
            raise InputError(f"there is no class '{name}': there are {_listed(self.names)}")
        return self.names.index(name)

    def add(self, name: str, examples: Tensor, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Add a class from its examples [K, D] and hints by relation label; `only_new` leaves all other classes as they are."""
        if name in self.names:
            raise InputError(f"there is a class '{name}' already: remove or rename it, or choose another name")
        grown, known = {}, False
        for label, relation in self.relations.items():
            grown[label], answered = relation.added(name, self.names, hints.get(label))
            known |= answered
        if not len(examples) and not known:
            raise InputError(
                f"nothing is known of class '{name}': give at least one example, or how it relates to other classes"
            )
        self.relations, self.names, self.support = grown, [*self.names, name], [*self.support, examples]
        self._starts = [*self._starts, self._start(examples)]
        updated = self._updated()
        self.prototypes = torch.cat([self.prototypes, updated[-1:]]) if only_new else updated

    def remove(self, name: str, only_new: bool = False) -> None:
        """Forget a class, seen or added; `only_new` leaves all others alone."""
        place = self.place(name)
        if len(self.names) == 1:
            raise InputError(f"class '{name}' is the last one: a classifier needs at least one")
        added = place - self.seen
        if added < 0:
            self.model.forget(place)
        else:
            del self.support[added], self._starts[added]
        del self.names[place]
        self.relations = {label: relation.removed(place) for label, relation in self.relations.items()}
        if only_new:
            self._renew()  # the operators look at what is left, even where prototypes stay
            self.prototypes = torch.cat([self.prototypes[:place], self.prototypes[place + 1 :]])
        else:
            self.prototypes = self._updated()

    def rename(self, old: str, new: str) -> None:
        """Call a class otherwise; nothing else changes."""
        place = self.place(old)
        if new in self.names:
            raise InputError(f"there is a class '{new}' already: choose another name for '{old}'")
        self.names[place] = new

    def context(self, count: int | None = None) -> Context:
        """What the operators look at: one episode of all classes, or of the first `count`, with all seen ones among them."""
        count = len(self.names) if count is None else count
        learned, added = self.model.learned(), count - self.seen
        prototypes = torch.cat([learned, *self._starts[:added]])[None]
        return Context(prototypes, *_padded(self._shown(added), learned[:0]), torch.arange(count)[None], self.seen)

    def context_as_new(self, row: int) -> Context:
        """What the operators would look at had one class come last.

        Of a seen class the examples are not kept: it acts as new with its learned prototype as its only example.
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
        """Let the operators look at the relations of the classes there are now."""
        if self.relations:
            renew_relations(
                self.model, self.variant, {label: relation.similarities for label, relation in self.relations.items()}
            )

    def _shown(self, count: int) -> list[Tensor]:
        """Embedded examples [K, D] of the first `count` added classes, where an operator looks at them; else none."""
        asked, empty = _sees_support(self.model), self.model.prototypes[:0]
        return [self.model.embed(examples) if asked else empty for examples in self.support[:count]]

    def _start(self, examples: Tensor) -> Tensor:
        """The initial prototype [1, D] of a class from its examples [K, D]; without any, zero."""
        centred = self.model.embed(examples)
        return self.model.initial(centred[None, None], torch.ones(1, 1, len(examples), dtype=torch.bool))[0]

    def cosines(self, features: Tensor) -> Tensor:
        """Features [n, D] -> cosine [n, V] to every prototype, in float64, so that no image depends on its neighbours."""
        prototypes = normalise(self.prototypes.double())
        parts = [normalise(self.model.embed(part).double()) @ prototypes.T for part in torch.split(features, PORTION)]
        return torch.cat(parts)

    def likeness(self, features: Tensor) -> Tensor:
        """Features [n, D] -> how like some class each [n] is: the largest cosine to a prototype before both were centred.

        What all classes share tells images of none of them apart.
        """
        prototypes = normalise(self.centred.back(self.prototypes).double())
        parts = [(normalise(part.double()) @ prototypes.T).max(1).values for part in torch.split(features, PORTION)]
        return torch.cat(parts)

    def logits(self, features: Tensor, bias: float = 0.0) -> Tensor:
        """Features [n, D] -> logits [n, V], with a bias on the added classes."""
        logits = self.temperature * self.cosines(features)
        logits[:, self.seen :] += bias
        return logits


def _sees_support(model: GraphPrototypeNetwork) -> bool:
    return any(component.sees_support for component in model.components())


def _padded(support: Sequence[Tensor], empty: Tensor) -> tuple[Tensor, Tensor]:
    """Examples [1, N, K, D] of all added classes with their mask [1, N, K]."""
    most = max((len(examples) for examples in support), default=0)
    padded, mask = empty.new_zeros(1, len(support), most, empty.shape[1]), torch.zeros(1, len(support), most, dtype=torch.bool)
    for place, examples in enumerate(support):
        padded[0, place, : len(examples)], mask[0, place, : len(examples)] = examples, True
    return padded, mask


def _listed(names: Sequence[str], most: int = 10) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more
