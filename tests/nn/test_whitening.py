import numpy as np
import pytest
import torch
from torch import Tensor

from protograph.nn import whitening
from protograph.nn.whitening import Whitening, WithinSpread, strongest_rows


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns"), [(4, 9), (30, 6)])
def test_the_strongest_rows_have_the_scatter_of_all(rows: int, columns: int) -> None:
    matrix = rand(rows, columns)
    kept = strongest_rows(matrix)
    torch.testing.assert_close(kept.T @ kept, matrix.T @ matrix)
    products = kept @ kept.T
    torch.testing.assert_close(products, torch.diag(products.diagonal()), atol=1e-9, rtol=0)
    first = strongest_rows(matrix, 2)
    squares = torch.linalg.eigvalsh(matrix.T @ matrix).flip(0)
    torch.testing.assert_close(first.square().sum(1), squares[:2])


def test_a_large_matrix_is_sketched_alike_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = rand(60, 8) * torch.tensor([9.0, 7, 5, 1, 0.1, 0.1, 0.1, 0.1])
    exact = strongest_rows(matrix, 3)
    monkeypatch.setattr(whitening, "LARGEST_EXACT", 5)
    state = torch.random.get_rng_state()
    sketch = strongest_rows(matrix, 3)
    assert torch.equal(sketch, strongest_rows(matrix, 3))
    assert torch.equal(torch.random.get_rng_state(), state)
    scatter = exact.T @ exact  # the sketch is computed in float32
    assert (sketch.T @ sketch - scatter).norm() < 1e-4 * scatter.norm()


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("strength", [0.5, 20.0])
def test_vectors_are_whitened_by_the_shrunk_covariance(power: float, strength: float) -> None:
    residuals, centre, features = 0.1 * rand(40, 5), 0.1 * rand(5, seed=1), rand(7, 5, seed=2)
    spread = WithinSpread.of(residuals, 36)
    scatter = (residuals.T @ residuals).numpy()
    shrunk = (scatter + strength * np.trace(scatter) / 36 / 5 * np.eye(5)) / (36 + strength)
    values, vectors = np.linalg.eigh(shrunk)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    done = Whitening.of(power, centre, spread, strength).embed(features)
    for image, vector in zip(features.numpy(), done.numpy(), strict=True):
        powered = np.sign(image) * np.abs(image) ** power
        aligned = powered / np.linalg.norm(powered) - centre.numpy()
        whitened = root @ (aligned / np.linalg.norm(aligned))
        np.testing.assert_allclose(vector, whitened / np.linalg.norm(whitened), atol=1e-6)


def test_spread_left_out_counts_evenly_in_the_other_directions() -> None:
    residuals = rand(50, 6) * torch.tensor([5.0, 4, 1, 1, 1, 1])
    rows = strongest_rows(residuals, 2)
    rest = residuals.square().sum().item() - rows.square().sum().item()
    whitening_matrix = (
        Whitening.of(1.0, torch.zeros(6), WithinSpread(rows, rest, 45), 3.0).whiten(torch.eye(6).double()).numpy()
    )
    basis = (rows / rows.norm(dim=1, keepdim=True)).numpy()
    floor = 3.0 * residuals.square().sum().item() / 45 / 6
    inside = [float(row.square().sum()) + floor for row in rows]
    for direction, value in zip(basis, inside, strict=True):
        image = whitening_matrix @ direction
        np.testing.assert_allclose(image / np.linalg.norm(image), direction, atol=1e-5)
        other = np.linalg.svd(basis)[2][-1]  # a direction that is left out
        ratio = np.linalg.norm(whitening_matrix @ other) / np.linalg.norm(image)
        assert ratio == pytest.approx((value / (rest / 4 + floor)) ** 0.5, rel=1e-4)


def test_what_examples_explain_of_themselves_is_the_mean_of_their_leverages() -> None:
    residuals = rand(20, 5)
    spread, strength = WithinSpread.of(residuals, 16), 2.0
    scatter = residuals.T @ residuals
    inverse = torch.linalg.inv(scatter + strength * scatter.trace() / 16 / 5 * torch.eye(5))
    leverages = [float(row @ inverse @ row) for row in residuals]
    assert spread.explained(strength) == pytest.approx(sum(leverages))


def test_more_residuals_join_a_spread_and_none_leave_it_as_it_is() -> None:
    first, second = rand(9, 4), rand(6, 4, seed=1)
    joined = WithinSpread.of(first, 8).with_residuals(second, 5)
    assert joined.freedom == 13
    torch.testing.assert_close(joined.rows.T @ joined.rows, first.T @ first + second.T @ second)
    assert joined.with_residuals(second[:0], 0) is joined


def test_without_spread_features_are_only_centred() -> None:
    features = rand(3, 4)
    for spread in (WithinSpread.of(torch.zeros(0, 4), 0), WithinSpread.of(torch.zeros(5, 4), 3)):
        done = Whitening.of(1.0, torch.zeros(4), spread, 2.0).embed(features)
        torch.testing.assert_close(done, features / features.norm(dim=1, keepdim=True))
