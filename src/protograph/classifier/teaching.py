"""What changes a classifier: classes and examples that come and go."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress, Silent
from protograph._internal.wording import counted
from protograph.classifier.answering import Answering
from protograph.classifier.base import is_whole
from protograph.classifier.gaussian_fitting import enough_to_calibrate, fit_space
from protograph.classifier.gaussian_space import FITTED, GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import as_label
from protograph.classifier.members import Members
from protograph.classifier.state import State
from protograph.classifier.thumbnails import Examples, Thumbnails
from protograph.relations import ClassHint, parse_hints

MOST_NAMED = 3  # classes that a description of a change names


class Teaching(Answering):
    """The methods of a `Classifier` that change what it knows. Each is all or nothing."""

    def add_class(self, name: Any, examples: Any = (), relations: Any = None) -> Self:
        """Add a class from its examples, without training, and return the classifier.

        Args:
            name: The label of the class.
            examples: Images, features [K, D], or `Examples`. Without any, relations alone make the prototype.
            relations: Similarities to other classes ({class: s}, the same in both directions), a name or text by which the
                relation's source knows the class, or its attributes as a vector; for several relations, a dict of these by
                label. By default the source is asked for the class's name. A pair with no known similarity has no edge or, in
                a dense relation, the lowest similarity of two seen classes. A class that the source does not know causes a
                warning.

        Raises:
            InputError: The class exists, or nothing is known of it.

        """
        return self.add_classes({name: examples}, {name: relations})

    def add_classes(self, examples: Mapping[Any, Any], relations: Mapping[Any, Any] | None = None) -> Self:
        """Add classes from their examples with one update for all, and return the classifier; after an error none is added.

        Args:
            examples: Images, features [K, D], or `Examples` by label; they may be empty where relations say enough.
            relations: What is known of a class by label, as in `add_class`.

        Raises:
            InputError: A class exists, or nothing is known of it.

        """
        check_is_fitted(self)
        relations = relations or {}
        labels = {name: as_label(name, self._state.sample) for name in examples}
        self._check_names([str(label) for label in labels.values()])
        given = {str(labels[name]): self._examples(part) for name, part in examples.items()}
        features = {name: part.features for name, part in given.items()}
        with self._changes.held:
            state = self._state
            hints = {str(labels[name]): self._hints(relations.get(name), state.space) for name in examples}
            space = state.space.copied()
            space.add_all(features, hints, self._only_new())
            kept = self._with_features(state.kept, features)
            thumbnails = with_thumbnails(state, given)
            new = list(labels.values())
            settled = self._settled(state.changed(space, kept, thumbnails, lambda known: known.extended(new), new))
            self._change_to(settled, added({name: len(part) for name, part in features.items()}))
        return self

    def add_examples(self, name: Any, examples: Any) -> Self:
        """Add examples to a class, fitted or added, without training, and return the classifier.

        Args:
            name: The label of the class.
            examples: Images, features [K, D], or `Examples`.

        Raises:
            InputError: There is no such class, or it was learned by training a variant.

        """
        check_is_fitted(self)
        label = str(as_label(name, self._state.sample))
        self.space_.index(label)
        given = self._examples(examples)
        features = given.features
        if not len(given):
            raise InputError(f"no examples are given for class '{name}': give at least one")
        with self._changes.held:
            state = self._state
            space = state.space.copied()
            space.add_examples(label, features, self._only_new())
            kept = self._with_features(state.kept, {label: features})
            thumbnails = with_thumbnails(state, {label: given})
            settled = self._settled(state.changed(space, kept, thumbnails))
            self._change_to(settled, f"added {counted(len(features), 'example')} to '{label}'")
        return self

    def remove_examples(self, name: Any, indices: Sequence[int]) -> Self:
        """Remove some examples of a class, without training, and return the classifier.

        What a fitted image taught of how images spread around their classes stays until `refit`.

        Args:
            name: The label of the class.
            indices: The indices of these examples, in the order of `thumbnails_of` and of `check_examples`.

        Raises:
            InputError: There is no such class or example, none would be left, or the features of a fitted image were not kept.

        """
        check_is_fitted(self)
        label = str(as_label(name, self._state.sample))
        with self._changes.held:
            state = self._state
            row, space = state.space.index(label), state.space.copied()
            count = space.examples(row)
            rows = check_indices(indices, count, label)
            images = state.kept.get(label)
            whole = images is not None and len(images) == count
            space.remove_examples(label, rows, images if whole else None, self._only_new())
            stay = [index for index in range(count or 0) if index not in rows]
            kept = {other: part for other, part in state.kept.items() if other != label}
            if images is not None and whole:
                kept[label] = images[stay]
            thumbnails = dict(state.thumbnails)
            if shown := thumbnails.get(label):
                thumbnails[label] = tuple(shown[index] for index in stay)
            settled = self._settled(state.changed(space, kept, thumbnails))
            self._change_to(settled, f"removed {counted(len(rows), 'example')} of '{label}'")
        return self

    def relate(self, name: Any, relations: Any = None) -> Self:
        """Say anew how a class relates to others, and return the classifier.

        A relation that nothing is said to stays as it is. A Gaussian classifier without relations begins one with the first
        similarities that it is told. Until it is fitted anew, that one places classes without examples only.

        Args:
            name: The label of the class.
            relations: The forms that `add_class` takes. `{}` says that it is similar to none. By default the relations'
                sources are asked for the class's name once more.

        Raises:
            InputError: There is no such class, or the relations cannot be told this.

        """
        check_is_fitted(self)
        label = str(as_label(name, self._state.sample))
        with self._changes.held:
            state = self._state
            space = state.space.copied()
            space.index(label)
            if isinstance(relations, Mapping) and not space.relations and isinstance(space, GaussianSpace):
                space.relate_by_hand()
            told = {} if relations is None and not space.relations else relations
            hints = self._hints(told, space) if told is not None else dict.fromkeys(space.relations, ClassHint())
            space.relate(label, hints, self._only_new())
            settled = self._settled(state.changed(space, state.kept, state.thumbnails))
            self._change_to(settled, f"told how '{label}' relates")
        return self

    def remove_class(self, name: Any) -> Self:
        """Remove a class, fitted or added, and return the classifier."""
        check_is_fitted(self)
        name = str(as_label(name, self._state.sample))
        with self._changes.held:
            state = self._state
            index, space = state.space.index(name), state.space.copied()
            space.remove(name, self._only_new())
            kept = {other: features for other, features in state.kept.items() if other != name}
            thumbnails = {other: part for other, part in state.thumbnails.items() if other != name}
            settled = self._settled(state.changed(space, kept, thumbnails, lambda labels: labels.without(index)))
            self._change_to(settled, f"removed '{name}'")
        return self

    def rename_class(self, old: Any, new: Any) -> Self:
        """Rename a class and return the classifier. Its prototype stays."""
        check_is_fitted(self)
        old, label = str(as_label(old, self._state.sample)), as_label(new, self._state.sample)
        self._check_names([str(label)])
        with self._changes.held:
            state = self._state
            row, space = state.space.index(old), state.space.copied()
            space.rename(old, str(label))
            kept = {str(label) if name == old else name: features for name, features in state.kept.items()}
            thumbnails = {str(label) if name == old else name: part for name, part in state.thumbnails.items()}
            changed = state.changed(space, kept, thumbnails, lambda labels: labels.renamed(row, label), [label])
            self._change_to(changed, f"renamed '{old}' to '{label}'")
        return self

    def refit(self, progress: Progress | None = None) -> Self:
        """Fit anew on the features that are kept, those of added classes among them, and return the classifier.

        Added classes then count as fitted, except those without examples. It takes a classifier fitted with
        `keep_features=True`.

        Args:
            progress: What shows how far the fitting is.

        Raises:
            InputError: No features are kept.

        """
        check_is_fitted(self)
        with self._changes.held:
            state = self._state
            if not state.kept or not all_features_kept(state):
                raise InputError(
                    "the features of its images were not kept: fit with keep_features=True (`fit --keep-features`)"
                )
            self._change_to(self._refitted(state, self.unknown, progress or Silent()), "fitted anew")
        return self

    def _refitted(self, state: State, rate: float | None, progress: Progress) -> State:
        """Return the state fitted anew on its kept features, to answer a share of images as unknown."""
        space, kept = state.space, state.kept
        order = [row for row in state.order.tolist() if space.names[row] in kept]
        order += [row for row in range(len(state.labels)) if space.names[row] not in kept]
        names, labels = [space.names[row] for row in order], [state.labels[row] for row in order]
        fitted = [name for name in names if name in kept]
        features = torch.cat([kept[name] for name in fitted])
        counts = torch.tensor([len(kept[name]) for name in fitted], dtype=torch.long)
        rows = Members(torch.arange(len(features)), counts)
        relations = {label: relation.reordered(order) for label, relation in space.relations.items()}
        space = fit_space(features, rows, names, relations, rate, self.seed, progress)
        threshold = None if rate is None else space.settings.limits[FITTED]
        return State.of(space, labels, state.in_space.dtype.str, kept, threshold, thumbnails=state.thumbnails)

    def _settled(self, state: State) -> State:
        """Return the state after a change: fitted anew where there are few enough images for that."""
        if not self.refit_up_to or self._only_new():
            return state
        counts = [len(features) for features in state.kept.values()]
        if not counts or sum(counts) > self.refit_up_to or not all_features_kept(state):
            return state
        return self._refitted(state, self.unknown if enough_to_calibrate(counts, self.unknown) else None, Silent())

    def _with_features(self, kept: Mapping[str, Tensor], examples: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the kept features with those [K, D] of new examples by class name; none, where none are kept."""
        if not self.keep_features:
            return kept
        grown = {name: torch.cat([kept.get(name, part[:0]), part]) for name, part in examples.items() if len(part)}
        return {**kept, **grown}

    def _hints(self, relations: Any, space: JointSpace | GaussianSpace) -> dict[str, ClassHint]:
        if relations is not None and not space.relations:
            reason, way_out = "was fitted without relations", "fit it with relations, such as wordnet"
            if isinstance(space, GaussianSpace):
                way_out += ", or say how an existing class relates to others (relate, `protograph relate`)"
            elif not space.variant.needs_relation:
                reason = f"is of variant '{space.variant.name}', which uses no relations"
            raise InputError(f"this classifier {reason}, so it cannot be told how a class relates: {way_out}")
        return parse_hints(relations, space.relations)


def check_indices(indices: Sequence[int], count: int | None, name: str) -> set[int]:
    """Return indices of examples to remove.

    Args:
        indices: The indices.
        count: The number of examples of the class; None of one that was learned by training.
        name: The class.

    Raises:
        InputError: There is none, one is none of an example, or no example would be left.

    """
    rows = list(indices)
    if not rows:
        raise InputError(f"no examples of class '{name}' are named: give at least one index")
    for index in rows:
        if not is_whole(index) or index < 0 or (count is not None and index >= count):
            raise InputError(f"class '{name}' has no example {index!r}: give indices from 0 to {(count or 1) - 1}")
    if count is not None and len(set(rows)) == count:
        raise InputError(f"class '{name}' would have no example left: remove the class instead")
    return {int(index) for index in rows}


def with_thumbnails(state: State, examples: Mapping[str, Examples]) -> dict[str, Thumbnails]:
    """Return the thumbnails of a state with those of new examples by class name."""
    names, thumbnails = state.space.names, dict(state.thumbnails)
    for name, part in examples.items():
        before = thumbnails.get(name)
        if before is None:
            row = names.find(name)
            before = (None,) * (0 if row is None else state.space.examples(row) or 0)
        thumbnails[name] = before + part.thumbnails
    return thumbnails


def added(counts: Mapping[str, int]) -> str:
    """Return what was changed, where classes were added from these numbers of examples."""
    if len(counts) > MOST_NAMED:
        return f"added {len(counts)} classes from {counted(sum(counts.values()), 'example')}"
    parts = [f"'{name}' from {counted(count, 'example') if count else 'relations'}" for name, count in counts.items()]
    return f"added {' and '.join([', '.join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)}"


def all_features_kept(state: State) -> bool:
    """Return whether the features of all images of all classes are kept."""
    space = state.space
    return all(len(state.kept.get(name, ())) == space.examples(row) for row, name in enumerate(space.names))
