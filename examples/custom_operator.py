"""Define an operator with state per class: each training class learns what it helps, and how ready it is to help.

protograph train --plugin examples/custom_operator.py --variant gcgpn-patrons --set epochs=1 --set steps=5
"""

import torch
from torch import Tensor, nn

import protograph as pg


class Patrons(pg.Operator):
    """Every class is helped by seen ones: the softmax over n of <direction of prototype m, offer of n> + readiness of n.

    State is read for the seen rows of an episode alone: a class that acts as novel must not see its own.
    """

    labels = ("patrons",)
    sees_support = False

    def __init__(self, seen: int, features: int) -> None:
        super().__init__()
        self.offers = nn.Parameter(torch.randn(seen, features) / features**0.5)
        self.readiness = nn.Parameter(torch.zeros(seen, 1))

    def forget(self, row: int) -> None:
        """Drop the state of a training class, so that a fitted class can be removed."""
        self.offers, self.readiness = pg.without_row(self.offers, row), pg.without_row(self.readiness, row)

    def forward(self, context: pg.Context) -> pg.Weights:
        """Return the weights [E, V, S] that the seen columns have in all rows."""
        patrons = context.classes[:, : context.seen]
        scores: Tensor = pg.normalise(context.prototypes) @ self.offers[patrons].mT + self.readiness[patrons].mT
        return pg.Weights(scores.softmax(-1), slice(0, context.classes.shape[1]), slice(0, context.seen))


pg.register_operator("patrons", lambda parts: Patrons(parts.seen, parts.features))
pg.register_variant(pg.Variant("gcgpn-patrons", (pg.Op("patrons"), *pg.AUX), "each class learns what it helps"))
