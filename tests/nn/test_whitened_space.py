import math

import numpy as np
import pytest
import torch

from protograph.nn.whitened_space import FeatureSpread, WhitenedSpace


def some_classes() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    stretch = torch.tensor([3.0, 1.0, 0.3, 0.1])
    return [
        torch.randn(4, generator=generator) * 4 + torch.randn(count, 4, generator=generator) * stretch for count in (6, 9, 4)
    ]


def unit(row: np.ndarray) -> np.ndarray:
    return row / math.sqrt(sum(float(value) ** 2 for value in row))


def naive(classes: list[torch.Tensor], shrinkage: float) -> tuple[np.ndarray, np.ndarray, list[list[np.ndarray]]]:
    """Centre, whitening matrix and aligned rows, with loops in float64."""
    rows = [[unit(row) for row in features.double().numpy()] for features in classes]
    centre = sum(sum(of_class) / len(of_class) for of_class in rows) / len(rows)
    moved = [[unit(row - centre) for row in of_class] for of_class in rows]
    covariance, freedom = np.zeros((4, 4)), 0
    for of_class in moved:
        mean = sum(of_class) / len(of_class)
        for row in of_class:
            covariance += np.outer(row - mean, row - mean)
        freedom += len(of_class) - 1
    covariance /= freedom
    shrunk = (1 - shrinkage) * covariance / (np.trace(covariance) / 4) + shrinkage * np.eye(4)
    values, vectors = np.linalg.eigh(shrunk)
    return centre, vectors @ np.diag(values**-0.5) @ vectors.T, moved


@pytest.mark.parametrize("shrinkage", [0.05, 0.6, 1.0])
def test_features_are_centred_whitened_and_shrunk(shrinkage: float) -> None:
    classes = some_classes()
    space = WhitenedSpace(4)
    means = space.fit(FeatureSpread.of(classes), shrinkage)
    centre, matrix, moved = naive(classes, shrinkage)
    for features, rows, mean in zip(classes, moved, means, strict=True):
        expected = np.stack([row @ matrix for row in rows])
        np.testing.assert_allclose(space(features).numpy(), expected, atol=2e-5)
        np.testing.assert_allclose(mean.numpy(), expected.mean(0), atol=1e-6)
    np.testing.assert_allclose(space.centre.numpy(), centre, atol=1e-6)


def test_without_shrinkage_the_spread_within_classes_is_the_same_in_all_directions() -> None:
    classes = some_classes()
    space = WhitenedSpace(4).double()
    means = space.fit(FeatureSpread.of(classes), 0.0)
    residuals = torch.cat([space(features.double()) - mean for features, mean in zip(classes, means, strict=True)])
    covariance = residuals.T @ residuals
    torch.testing.assert_close(covariance / covariance[0, 0], torch.eye(4).double(), atol=1e-8, rtol=0)


def test_classes_of_one_image_have_no_spread_to_whiten() -> None:
    spread = FeatureSpread.of([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])])
    assert torch.equal(spread.whitening(0.5), torch.eye(2).double())
