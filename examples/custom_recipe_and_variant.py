"""Define an operator, a variant and a recipe of your own, and train with them on the built-in letters.

protograph train --plugin examples/custom_recipe_and_variant.py --variant gcgpn-uniform --recipe brief
"""

import torch

import protograph as pg


class Uniform(pg.Operator):
    """Relates every class to every other one alike."""

    labels = ("uniform",)

    def forward(self, context: pg.Context) -> torch.Tensor:
        """Return the weights [V, V] of every pair of classes."""
        count = context.classes.shape[1]
        return torch.full((count, count), 1 / count, device=context.classes.device)


pg.register_operator("uniform", lambda parts: Uniform())
pg.register_variant(pg.Variant("gcgpn-uniform", (pg.Op("uniform"), *pg.AUX), "relates every class to every other one alike"))
pg.register_recipe("brief", pg.Recipe("brief", epochs=1, steps=5, validation_episodes=20), "five steps, to try a model")
