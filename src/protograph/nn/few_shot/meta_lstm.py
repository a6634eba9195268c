"""Meta-LSTM: optimisation as a model."""

import math

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from protograph.nn.few_shot.adaptation import AdaptedNetwork, AdaptingMethod, NetworkWeights
from protograph.nn.few_shot.base import OF_SUPPORT

COMPRESSION = 10.0  # p of the inputs' logarithms
REMEMBER, LEARN = 5.0, -4.5  # biases of the forget and the input gate at the start: keep the weights, and step little
SPREAD = 0.01  # of the LSTM's other weights at the start


class MetaLstm(AdaptingMethod):
    r"""Meta-LSTM: an LSTM whose cell state is the network's weights, and whose gates are learned of gradient and loss,

    .. math:: \theta_t = f_t \circ \theta_{t-1} - i_t \circ \nabla_{\theta_{t-1}} L_t.

    The gates f and i of each weight see the state of a second LSTM, whose inputs are the weight's gradient and the loss, both
    as logarithm and sign; they also see the weight, and themselves one step before. All weights share both LSTMs. Gradients and
    losses count as constants, as its authors assume, and the initial weights are learned too.

    Ravi, Larochelle, "Optimization as a Model for Few-Shot Learning", ICLR 2017. On miniImageNet: 32 channels, 20 hidden units,
    12 updates at one shot and 5 at five shots, Adam at 0.001, one episode of 15 queries a class a step. Batch norm of queries
    uses statistics gathered in training; here they are those of the support. How weights are set up beyond the gates'
    biases is left open; here the LSTMs' are uniform within 0.01. So is gradient clipping, which is left out.

    Args:
        network: The network.
        steps: Updates of the weights; 0: 12 at one shot and 5 at more, as published.
        hidden: Units of the second LSTM.

    """

    def __init__(self, network: AdaptedNetwork, steps: int = 0, hidden: int = 20) -> None:
        super().__init__(network, OF_SUPPORT)
        self.steps, self.hidden = steps, hidden
        self.inputs = nn.Linear(4 + hidden, 4 * hidden)  # of all four gates of the second LSTM
        self.forget = nn.Linear(hidden + 2, 1)
        self.learn = nn.Linear(hidden + 2, 1)
        for layer in (self.inputs, self.forget, self.learn):
            nn.init.uniform_(layer.weight, -SPREAD, SPREAD)
            nn.init.zeros_(layer.bias)
        nn.init.constant_(self.forget.bias, REMEMBER)
        nn.init.constant_(self.learn.bias, LEARN)

    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the weights after the updates on one episode."""
        weights = self.initial()
        shapes = {name: value.shape for name, value in weights.items()}
        flat = flattened(weights)
        state = cell = flat.new_zeros(len(flat), self.hidden)
        forget, learn = flat.new_zeros(len(flat)), flat.new_zeros(len(flat))
        for _ in range(self.steps or (12 if len(support) == self.ways else 5)):
            gradients, loss = grad_and_value(self.support_loss)(unflattened(flat, shapes), support, labels, shares)
            gradient = flattened(gradients).detach()
            seen = torch.cat([compressed(gradient), compressed(loss.detach().expand(len(flat)))], 1)
            state, cell = self.recur(seen, state, cell)
            forget = torch.sigmoid(self.forget(torch.cat([state, flat[:, None], forget[:, None]], 1)))[:, 0]
            learn = torch.sigmoid(self.learn(torch.cat([state, flat[:, None], learn[:, None]], 1)))[:, 0]
            flat = forget * flat - learn * gradient
        return unflattened(flat, shapes)

    def recur(self, inputs: Tensor, state: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next state and cell [P, H] of the second LSTM for its inputs [P, 4]."""
        gates = self.inputs(torch.cat([inputs, state], 1))
        let_in, keep, let_out, new = torch.split(gates, self.hidden, 1)
        cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.tanh(new)
        return torch.sigmoid(let_out) * torch.tanh(cell), cell


def compressed(values: Tensor) -> Tensor:
    r"""Return numbers [P] as pairs [P, 2] of similar size: logarithm and sign, or for numbers near 0 the number, magnified,

    .. math:: x \mapsto \Big(\frac{\ln |x|}{p}, \operatorname{sign} x\Big) \text{ if } |x| \ge e^{-p},
              \text{ else } (-1, e^p x).
    """
    large = values.abs() >= math.exp(-COMPRESSION)
    logarithms = torch.where(large, values.abs(), 1.0).log() / COMPRESSION
    first = torch.where(large, logarithms, -1.0)
    return torch.stack([first, torch.where(large, values.sign(), math.exp(COMPRESSION) * values)], 1)


def flattened(weights: NetworkWeights) -> Tensor:
    """Return all weights as one vector [P]."""
    return torch.cat([value.flatten() for value in weights.values()])


def unflattened(vector: Tensor, shapes: dict[str, torch.Size]) -> NetworkWeights:
    """Return the weights of which `flattened` made a vector [P]."""
    parts = torch.split(vector, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
