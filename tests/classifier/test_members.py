import numpy as np
import pytest
import torch

from protograph.classifier import gaussian_fitting, members
from protograph.classifier.gaussian_fitting import class_statistics
from protograph.classifier.members import Members


def test_members_are_the_images_of_each_class() -> None:
    targets = torch.tensor([2, 0, 2, 2, 0])
    found = Members.of(targets, 3)
    assert dict(found) == {0: [1, 4], 1: [], 2: [0, 2, 3]}
    assert Members.listed([[1, 4], [], [0, 2, 3]]) == found
    assert Members.listed(found) is found
    with pytest.raises(KeyError):
        found[3]


def test_statistics_of_portions_are_those_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    targets = torch.from_numpy(np.repeat(np.arange(6), 5))
    features = torch.from_numpy(generator.normal(size=(30, 7)).astype(np.float32)) + targets[:, None]
    together = class_statistics(features, Members.of(targets, 6), 0.5)
    monkeypatch.setattr(members, "FEATURES_AT_ONCE", 40)
    for exact in (1500, 3):
        monkeypatch.setattr(gaussian_fitting, "LARGEST_EXACT", exact)
        parts = class_statistics(features, Members.of(targets, 6), 0.5)
        assert parts.counts == together.counts
        assert parts.spread.freedom == together.spread.freedom
        torch.testing.assert_close(parts.means, together.means)
        scatter, expected = (part.spread.rows.T @ part.spread.rows for part in (parts, together))
        torch.testing.assert_close(scatter, expected, atol=1e-5, rtol=1e-4)
