import pytest
import torch
from torch import Tensor, nn

from protograph.data import Dataset
from protograph.nn.backbones import Conv4
from protograph.nn.model import GraphPrototypeNetwork
from protograph.variants import build, find_variant


class InDouble(nn.Module):
    """A backbone in float64, so that no order of summation can turn an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Conv4((4, 4, 8, 8), channels=1).double()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images.double())
        return features


@pytest.fixture(scope="module")
def model(toy: Dataset) -> GraphPrototypeNetwork:
    """Untrained, but with settled batch statistics and prototypes where the seen classes are."""
    similarities = {"kinship": toy.relations["kinship"].similarities(toy.classes)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = InDouble()
    made = build(find_variant("gcgpn-aux"), backbone, toy.store.image_shape, toy.seen, similarities).double()
    images = toy.train.images
    with torch.no_grad():
        for _ in range(20):
            made.train().embed(toy.store.gather(images.flatten()))
        features = made.eval().embed(toy.store.gather(images.flatten())).view(*images.shape, -1)
        made.prototypes.copy_(nn.functional.normalize(features, dim=-1).mean(1))
    return made
