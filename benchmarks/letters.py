"""Measure the speed on the built-in letters as ratios: `make bench`.

Training: images per second of a training step (draw episodes, gather and augment images, backbone, graph block, loss,
backward, optimiser), compared with the forward, backward and optimiser step of the bare backbone on one batch of as many
images in memory.

Evaluation: 600 test episodes on cached features, compared with a loop that runs the backbone in every episode, and with a loop
over episodes on cached features.
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
from protograph.training.optimiser import make_optimiser
from protograph.training.run_config import configure
from protograph.training.run_folder import environment
from protograph.training.setup import make_model, training_spec
from protograph.training.step import TrainingStep
from protograph.variants import find_variant


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of one call, after a warm-up."""
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

    def full_step() -> None:
        generator = seeded(0, "bench", next(steps), device=device)
        TrainingStep(model, optimiser, store, dataset.augmentation, spec, recipe.episodes, variant)(generator)

    images = recipe.episodes * (recipe.ways * (config.shots + recipe.novel_queries) + recipe.seen_queries)
    bare = make_model(config, dataset).backbone.to(device).train()
    bare.to(memory_format=torch.channels_last)
    bare_optimiser = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    batch = store.gather(torch.arange(images, device=device))

    def backbone() -> None:
        bare_optimiser.zero_grad(set_to_none=True)
        bare(batch).square().mean().backward()
        bare_optimiser.step()

    # The rounds alternate, so that both are measured in the same state of the machine.
    rounds = [(seconds(full_step, repeats), seconds(backbone, repeats)) for _ in range(3)]
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
    first = drawn.slice(0, looped).to(device)
    layers = model.backbone.blocks  # as plain torch layers

    def backbone_in_every_episode() -> None:
        for index in range(looped):
            episode = first.slice(index, index + 1)
            support = layers(store.gather(episode.support.flatten())).view(*episode.support.shape, -1)
            queries = layers(store.gather(episode.queries.flatten())).view(*episode.queries.shape, -1)
            episode_measures(
                model(support, episode.mask, queries, episode.classes, episode.seen), episode.targets, episode.seen
            )

    scale = episodes / looped
    loop = scale * seconds(backbone_in_every_episode, 2)
    images = drawn.images()
    features = extract(model, store, images.to(device))
    cached = drawn.among(images).to(device)

    def loop_on_cached_features() -> None:
        for index in range(looped):
            episode = cached.slice(index, index + 1)
            logits = model(features[episode.support], episode.mask, features[episode.queries], episode.classes, episode.seen)
            episode_measures(logits, episode.targets, episode.seen)

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
    evaluated = evaluation_ratio()  # first, while memory is in its usual state
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
