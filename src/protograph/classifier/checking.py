"""Whether a classifier was taught enough: every kept image, asked as if it had not been an example.

Shapes: q images of one class, V classes, D features.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from protograph._internal.progress import Progress
from protograph.classifier.labels import Array
from protograph.classifier.leave_one_out import answers_without, kept_examples
from protograph.classifier.state import State

ENOUGH = 0.8  # share of a class's left-out images that is right, from which it counts as learned
FEWEST_ASKED = 5  # images of a class; with fewer, right answers do not tell that it is learned
LEAST_DOUBTFUL = 0.9  # probability of another class, from which an image may have the wrong label
MOST_IN_A_SENTENCE = 10  # classes in one sentence

LEARNED, NEEDS_IMAGES, TOO_FEW, NOT_ASKED = "learned", "needs images", "too few to tell", "not asked"


@dataclass(frozen=True)
class AskedImage:
    """One example, asked as if it had not been one.

    Attributes:
        label: Its class.
        index: Its place among the examples of its class.
        answer: The answer, which may be the label of unknown images.
        probability: The probability of the most probable class.
        own_probability: The probability of its own class.

    """

    label: Any
    index: int
    answer: Any
    probability: float
    own_probability: float


@dataclass(frozen=True)
class ClassCheck:
    """What leaving out each of its examples says of a class.

    Attributes:
        label: The class.
        added: Whether it was added, not fitted.
        examples: The number of its examples; None where it is not known.
        asked: How many of them were left out and asked.
        right: How many of these were right.
        taken_for: The wrong answers with their numbers, the most frequent ones first.
        verdict: "learned", "needs images", "too few to tell" or "not asked".

    """

    label: Any
    added: bool
    examples: int | None
    asked: int
    right: int
    taken_for: tuple[tuple[Any, int], ...]
    verdict: str

    @property
    def accuracy(self) -> float | None:
        """The share of right answers, if any image was asked."""
        return self.right / self.asked if self.asked else None


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes that are taken for one another.

    Attributes:
        first: The class that is more often taken for the other one.
        second: The other class.
        times: How many images of the first were taken for the second.
        asked: How many images of the first were asked.
        times_back: How many images of the second were taken for the first.
        asked_back: How many images of the second were asked.

    """

    first: Any
    second: Any
    times: int
    asked: int
    times_back: int
    asked_back: int


@dataclass(frozen=True)
class ExampleCheck:
    """What the examples say of a classifier, each asked as if it had not been one.

    Attributes:
        accuracy: The mean over classes of the share of right answers; None where no image could be asked.
        classes: Every class, in the order of `classes_`.
        pairs: The confused pairs, the largest share of images first.
        images: Every image that was asked.
        unknown_label: The answer for images that are like no class.
        covers_fitted: Whether images of all fitted classes were asked.

    """

    accuracy: float | None
    classes: tuple[ClassCheck, ...]
    pairs: tuple[ConfusedPair, ...]
    images: tuple[AskedImage, ...]
    unknown_label: Any
    covers_fitted: bool

    @property
    def doubtful(self) -> tuple[AskedImage, ...]:
        """The images that another class is nearly sure of, so that their label may be wrong, the surest first."""
        wrong = [image for image in self.images if image.answer not in (image.label, self.unknown_label)]
        sure = [image for image in wrong if image.probability >= LEAST_DOUBTFUL]
        return tuple(sorted(sure, key=lambda image: -image.probability))

    def judged(self, verdict: str) -> list[ClassCheck]:
        """Return the classes of a verdict, those with the fewest right answers first."""
        return sorted((part for part in self.covered if part.verdict == verdict), key=lambda part: part.accuracy or 0.0)

    @property
    def covered(self) -> list[ClassCheck]:
        """The classes that this check is about: without images of fitted classes, the others."""
        return [part for part in self.classes if self.covers_fitted or part.added or part.asked]

    def verdict(self) -> str:
        """Return whether the classifier was taught enough, in plain words."""
        learned, needy, few, unasked = map(self.judged, (LEARNED, NEEDS_IMAGES, TOO_FEW, NOT_ASKED))
        count, kind = len(self.covered), "classes" if self.covers_fitted else "added classes"
        if len(self.classes) == 1:
            return f"This cannot be told yet: every image is taken for '{self.classes[0].label}', the only class."
        if self.accuracy is None:
            return "This cannot be told yet: there is no class of which an image can be left out."
        if len(learned) == count:
            return (
                f"Yes. {_all_of(count, kind)} learned: at least {100 * ENOUGH:.0f} % of the images left out of each were "
                f"recognised, {100 * self.accuracy:.1f} % in the mean over classes."
            )
        sentences = ["Not yet." if needy else "This cannot be told of all classes yet."]
        sentences.append(f"{len(learned)} of {count} {kind} {'is' if len(learned) == 1 else 'are'} learned.")
        if needy:
            sentences.append(f"{_named(needy)} need{'s' if len(needy) == 1 else ''} more images.")
        if few:
            sentences.append(f"{_named(few)} {_has(few)} too few images to tell.")
        if unasked:
            sentences.append(f"No image of {_named(unasked, 'or')} could be left out.")
        return " ".join(sentences)

    def advice(self) -> list[str]:
        """Return what to add, a sentence for each class or pair that needs it."""
        lines, paired = [], set()
        for part in self.judged(NEEDS_IMAGES):
            answer, times = part.taken_for[0]
            pair = frozenset((part.label, answer))
            if answer == self.unknown_label:
                line = f"'{part.label}' is answered as '{answer}' {_times(times, part.asked)}"
                lines.append(f"{line}: add images of it that differ from those it has")
            elif 2 * times < part.asked - part.right:
                line = (
                    f"'{part.label}' is recognised {_times(part.right, part.asked)}, and taken for {len(part.taken_for)} others"
                )
                lines.append(f"{line}: add more images of it")
            elif pair not in paired:
                paired.add(pair)
                lines.append(self._pair_advice(part.label, answer))
        if few := self.judged(TOO_FEW):
            lines.append(f"{_named(few)} {_has(few)} fewer than {FEWEST_ASKED} images: add some, so that it can be told")
        if single := [part for part in self.covered if part.examples == 1]:
            lines.append(f"{_named(single)} {_has(single)} one image alone, which cannot be left out: add some")
        if empty := [part for part in self.covered if part.examples == 0]:
            lines.append(f"{_named(empty)} {_has(empty)} no image: add some")
        return lines

    def notes(self) -> list[str]:
        """Return what this check does not cover, and images whose label may be wrong."""
        lines = []
        if not self.covers_fitted:
            lines.append(
                "this covers added classes only, because the images of fitted classes are not kept: fit with --keep-features "
                "(keep_features=True) to cover all"
            )
        for image in self.doubtful[:MOST_IN_A_SENTENCE]:
            line = (
                f"image {image.index + 1} of '{image.label}' is taken for '{image.answer}' at {100 * image.probability:.0f} %"
            )
            lines.append(f"{line}: look whether it is labelled right")
        return lines

    def _pair_advice(self, label: Any, answer: Any) -> str:
        counts = {part.label: dict(part.taken_for) for part in self.classes}
        asked = {part.label: part.asked for part in self.classes}
        line = f"'{label}' is taken for '{answer}' {_times(counts[label][answer], asked[label])}"
        if back := counts[answer].get(label, 0):
            line += f", and '{answer}' for '{label}' {_times(back, asked[answer])}"
        return f"{line}: add images of both that show how they differ"

    def as_json(self) -> dict[str, Any]:
        """Return the check as plain values, with the sentences."""
        classes = [
            {
                **asdict(part),
                "accuracy": part.accuracy,
                "taken_for": [{"class": answer, "images": times} for answer, times in part.taken_for],
            }
            for part in self.classes
        ]
        return {
            "verdict": self.verdict(),
            "accuracy": self.accuracy,
            "covers_fitted": self.covers_fitted,
            "advice": self.advice(),
            "notes": self.notes(),
            "classes": [_with_class(part) for part in classes],
            "pairs": [asdict(pair) for pair in self.pairs],
            "images": [_with_class(asdict(image)) for image in self.images],
        }


def check_examples(
    state: State,
    offsets: Tensor,
    named: Callable[[Tensor, Tensor], Array],
    unknown_label: Any,
    only_new: bool,
    progress: Progress,
) -> ExampleCheck:
    """Ask every example as if it had not been one.

    Args:
        state: The classifier's state.
        offsets: What prior and bias add to the logits [V].
        named: What answers [q] are called, by the index of the best class [q] and the likeness [q].
        unknown_label: The answer for images that are like no class.
        only_new: Whether an example tells of its own class alone, as with `update="novel"`.
        progress: What shows how far the check is.

    """
    space, labels = state.space, state.in_space.tolist()
    counts = [space.examples(row) for row in range(len(labels))]
    kept = kept_examples(space, state.kept)
    alone = len(labels) < 2  # then every answer is right, and none tells anything
    examples = {row: part for row, part in kept.items() if len(part) and (counts[row] or 0) > 1 and not alone}
    images: dict[int, list[AskedImage]] = {row: [] for row in range(len(labels))}
    with progress.task("leave out", sum(map(len, examples.values())), "images") as advance:
        for row, logits, likeness in answers_without(state.space.copied(), examples, offsets, only_new):
            probabilities, answers = logits.softmax(1), named(logits.argmax(1), likeness).tolist()
            largest, own = probabilities.max(1).values.tolist(), probabilities[:, row].tolist()
            first = (counts[row] or len(answers)) - len(answers)  # those that are not kept come first
            for index, (answer, probability, own_probability) in enumerate(zip(answers, largest, own, strict=True), first):
                images[row].append(AskedImage(labels[row], index, answer, probability, own_probability))
            advance(len(answers))
    classes = tuple(class_check(labels[row], row >= space.seen, counts[row], images[row]) for row in state.order.tolist())
    shares = [part.accuracy for part in classes if part.accuracy is not None]
    return ExampleCheck(
        sum(shares) / len(shares) if shares else None,
        classes,
        confused_pairs(classes, unknown_label),
        tuple(image for row in state.order.tolist() for image in images[row]),
        unknown_label,
        all(counts[row] == len(kept.get(row, ())) for row in range(space.seen)),
    )


def class_check(label: Any, added: bool, examples: int | None, images: Sequence[AskedImage]) -> ClassCheck:
    """Return what the answers about a class's images, each left out, say of it."""
    wrong = Counter(image.answer for image in images if image.answer != label)
    right = len(images) - wrong.total()
    if not images:
        verdict = NOT_ASKED
    elif right < ENOUGH * len(images):
        verdict = NEEDS_IMAGES
    else:
        verdict = LEARNED if len(images) >= FEWEST_ASKED else TOO_FEW
    return ClassCheck(label, added, examples, len(images), right, tuple(wrong.most_common()), verdict)


def confused_pairs(classes: Sequence[ClassCheck], unknown_label: Any) -> tuple[ConfusedPair, ...]:
    """Return the pairs of classes that are taken for one another, the largest share of images first."""
    asked = {part.label: part.asked for part in classes}
    times = {(part.label, answer): count for part in classes for answer, count in part.taken_for if answer != unknown_label}
    pairs = []
    for (label, answer), count in times.items():
        back = times.get((answer, label), 0)
        shares = count / asked[label], back / max(1, asked[answer])
        if shares[0] > shares[1] or (shares[0] == shares[1] and list(asked).index(label) < list(asked).index(answer)):
            pairs.append(ConfusedPair(label, answer, count, asked[label], back, asked[answer]))
    return tuple(sorted(pairs, key=lambda pair: (-pair.times / pair.asked, -pair.times)))


def _named(classes: Sequence[ClassCheck], conjunction: str = "and") -> str:
    """Return the names of classes in a sentence."""
    names = [f"'{part.label}'" for part in classes[:MOST_IN_A_SENTENCE]]
    if rest := len(classes) - len(names):
        names.append(f"{rest} more")
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {conjunction} {names[-1]}"


def _has(classes: Sequence[ClassCheck]) -> str:
    return "has" if len(classes) == 1 else "have"


def _all_of(count: int, kind: str) -> str:
    if count == 1:
        return f"The {kind.removesuffix('es')} is"
    return f"Both {kind} are" if count == 2 else f"All {count} {kind} are"


def _times(count: int, asked: int) -> str:
    return f"{count} time{'' if count == 1 else 's'} of {asked}"


def _with_class(values: dict[str, Any]) -> dict[str, Any]:
    """Return values whose label is called "class", as in the command's other results."""
    return {"class": values.pop("label"), **values}
