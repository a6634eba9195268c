"""Speed on the built-in letters, as ratios, on this machine: `make bench`.

Training: images per second of the whole step (episodes drawn, images gathered and augmented, backbone, graph block, loss,
backward, optimiser) against the bare backbone's forward, backward and optimiser step on one batch of as many images held in
memory.

Evaluation: 600 test episodes through cached features against a loop that runs the backbone in every episode, and against a
loop over episodes on cached features.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from protograph._internal.memory import keep_freed_memory
from protograph.data import open_dataset
from protograph.device import best_device
from protograph.episodes import fixed_episodes, seeded
from protograph.evaluation.metrics import EVALUATION_SEED, episode_measures, evaluation_spec, extract, measure
from protograph.training.loop import (
    configure,
    make_model,
    make_optimiser,
    training_spec,
    training_step,
)
from protograph.training.run import environment
from protograph.variants import find_variant


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Median time of one call, after a warm-up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def training_ratio(repeats: int = 15) -> dict[str, float]:
    device = best_device()
    dataset = open_dataset("letters")
    config = configure(dataset, "gcgpn-aux")
    model = make_model(config, dataset).to(device)
    model.backbone.to(memory_format=torch.channels_last)
    optimiser = make_optimiser(model, config.recipe)
    spec = training_spec(dataset, config.recipe, config.shots).to(device)
    store = dataset.store.to(device)
    recipe, variant = config.recipe, find_variant(config.variant)
    steps = iter(range(1_000_000))

    def whole() -> None:
        generator = seeded(0, "bench", next(steps), device=device)
        training_step(model, optimiser, store, dataset.augmentation, spec, recipe.episodes, generator, variant)

    images = recipe.episodes * (recipe.ways * (config.shots + recipe.novel_queries) + recipe.seen_queries)
    bare = make_model(config, dataset).backbone.to(device).train()
    bare.to(memory_format=torch.channels_last)
    bare_optimiser = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batch = store.gather(torch.arange(images, device=device))

    def backbone() -> None:
        bare_optimiser.zero_grad(set_to_none=True)
        bare(batch).square().mean().backward()
        bare_optimiser.step()

    # Alternating rounds, so that both meet the same state of the machine.
    rounds = [(seconds(whole, repeats), seconds(backbone, repeats)) for _ in range(3)]
    step, alone = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {
        "images_per_step": images,
        "step_images_per_s": images / step,
        "bare_backbone_images_per_s": images / alone,
        "ratio_to_bare_backbone": alone / step,
    }


@torch.inference_mode()
def evaluation_ratio(episodes: int = 600, looped: int = 30) -> dict[str, float]:
    device = best_device()
    dataset = open_dataset("letters")
    config = configure(dataset, "gcgpn-aux")
    model = make_model(config, dataset).to(device).eval()
    spec = evaluation_spec(dataset, "test", config.recipe.ways, config.shots, config.recipe.test_queries)
    drawn = fixed_episodes(spec, EVALUATION_SEED, episodes)
    store = dataset.store.to(device)
    part = drawn.slice(0, looped).to(device)
    layers = model.backbone.blocks  # as plain torch layers

    def backbone_in_every_episode() -> None:
        for index in range(looped):
            one = part.slice(index, index + 1)
            support = layers(store.gather(one.support.flatten())).view(*one.support.shape, -1)
            queries = layers(store.gather(one.queries.flatten())).view(*one.queries.shape, -1)
            episode_measures(model(support, one.mask, queries, one.classes, one.seen), one.targets, one.seen)

    scale = episodes / looped
    loop = scale * seconds(backbone_in_every_episode, 2)
    images = drawn.images()
    features = extract(model, store, images.to(device))
    cached = drawn.among(images).to(device)

    def loop_on_cached_features() -> None:
        for index in range(looped):
            one = cached.slice(index, index + 1)
            logits = model(features[one.support], one.mask, features[one.queries], one.classes, one.seen)
            episode_measures(logits, one.targets, one.seen)

    ours = seconds(lambda: measure(model, store, drawn), 3)
    extraction = seconds(lambda: extract(model, store, images.to(device)), 3)
    cached_loop = scale * seconds(loop_on_cached_features, 3)
    return {
        "seconds_for_600_episodes": ours,
        "of_which_features_s": extraction,
        "ratio_to_backbone_in_every_episode": loop / ours,
        "ratio_to_loop_on_cached_features": (cached_loop + extraction) / ours,
    }


def main() -> None:
    evaluated = evaluation_ratio()  # first: its loop meets memory as it usually is
    keep_freed_memory()  # as training does
    results = {"environment": environment(), "training": training_ratio(), "evaluation": evaluated}
    if "--json" in sys.argv:
        print(json.dumps(results, indent=2))
        return
    for title, values in results.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:38} {value:.4g}" if isinstance(value, float) else f"  {name:38} {value}")


if __name__ == "__main__":
    main()
