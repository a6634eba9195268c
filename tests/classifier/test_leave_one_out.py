"""Images left out in closed form, against spaces that were made without them; test_checking.py has further comparisons."""

import pytest
import torch

from protograph.classifier import leave_one_out
from protograph.classifier.gaussian_fitting import class_statistics
from protograph.classifier.gaussian_space import GaussianSettings, GaussianSpace
from protograph.classifier.leave_one_out import LeaveOneOut, answers_without, in_all_directions, kept_examples

CLASSES, IMAGES, FEATURES, KEPT = 20, 6, 120, 20
SETTINGS = GaussianSettings(1.0, 30.0, 1.3, 12.0, 6.0, 2.0)
NAMES = [str(row) for row in range(CLASSES)]


def images_of_classes() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES + 1, 1, FEATURES, generator=generator)
    return centres + 1.5 * torch.randn(CLASSES + 1, IMAGES, FEATURES, generator=generator)


def space_of(classes: list[torch.Tensor]) -> GaussianSpace:
    """A space that keeps few directions, of fitted classes and a last one that is added."""
    *fitted, new = classes
    rows = torch.arange(sum(map(len, fitted))).split([len(part) for part in fitted])
    statistics = class_statistics(torch.cat(fitted), [part.tolist() for part in rows], 1.0, KEPT)
    space = GaussianSpace(SETTINGS, statistics, NAMES, {}, directions=KEPT)
    space.add("new", new, {})
    return space


def test_examples_are_left_out_of_all_directions_in_which_they_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave_one_out, "DIRECTIONS", KEPT)
    images = list(images_of_classes())
    space = space_of(images)
    examples = kept_examples(space, dict(zip(NAMES, images, strict=False)))
    zero = torch.zeros(CLASSES + 1, dtype=torch.float64)
    errors, of_kept, of_all = [], [], []
    for row, logits, _ in answers_without(space, examples, zero, only_new=False):
        rest = [part if index != row else part[1:] for index, part in enumerate(images)]
        expected = space_of(rest).logits(images[row][:1])[0, row]
        errors.append(logits[0, row] - expected)
        of_kept.append(LeaveOneOut.of(space).scores(row, examples[row])[0, row] - expected)
        of_all.append(space.logits(images[row][:1])[0, row] - expected)
    assert len(errors) == CLASSES + 1
    means = [torch.stack(values).abs().mean() for values in (errors, of_kept, of_all)]
    assert means[0] < 0.25 * means[1]
    assert means[0] < 0.6 * means[2]


def test_a_space_that_keeps_all_directions_stays() -> None:
    images = list(images_of_classes())
    space = space_of(images)
    assert in_all_directions(space, kept_examples(space, {})) is space
