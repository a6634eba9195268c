"""Matching Networks."""

import torch
from torch import Tensor

from protograph.nn.classify import normalise
from protograph.nn.few_shot.base import FewShotMethod


class MatchingNetworks(FewShotMethod):
    r"""Matching Networks: a query attends to all examples, and a class gets the attention that its examples get,

    .. math:: p(n \mid z) = \sum_i a_{n,i}, \quad a_{n,i} = \frac{e^{\cos(z, z_{n,i})}}{\sum_{m,j} e^{\cos(z, z_{m,j})}}.

    Logits are the logarithms of these sums.

    Vinyals, Blundell, Lillicrap, Kavukcuoglu, Wierstra, "Matching Networks for One Shot Learning", NeurIPS 2016. On
    miniImageNet: 64 channels. Optimiser, learning rate and length of training are left open; here they are those of
    Prototypical Networks. The full context embeddings, an LSTM over the support in some order and one over each query's
    attention, are left out: they depend on that order, and with them there would be no joint label space. The numbers that
    the paper quotes, 46.6 / 60.0, are with them and with fine-tuning; without both, the authors have 41.2 / 56.2.
    """

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N]."""
        classes, shots = support.shape[1:3]
        cosines = normalise(queries) @ normalise(support).flatten(1, 2).mT  # [E, Q, N * K]
        missing = ~mask.flatten(1)[:, None, :]
        attention = cosines.masked_fill(missing, -torch.inf)
        return torch.logsumexp(attention.view(*attention.shape[:2], classes, shots), -1)
