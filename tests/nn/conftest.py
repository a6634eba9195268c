import pytest
import torch

from protograph.nn.operators import Context


@pytest.fixture
def context():
    """Two episodes in float64: E 2, S 4 of T 6 training classes, N 3, K 2, D 5; class ids 0 to 8."""
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    support = torch.randn(2, 3, 2, 5, generator=generator, dtype=torch.float64)
    classes = torch.tensor([[0, 3, 5, 1, 8, 6, 7], [4, 2, 1, 0, 7, 8, 3]])
    return Context(prototypes, support, torch.ones(2, 3, 2, dtype=torch.bool), classes, seen=4)
