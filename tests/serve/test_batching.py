import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from served import encoder, photograph

from protograph import Classifier
from protograph.serve.batching import MOST, Batcher, batch_size, encode_pixels
from protograph.serve.model_host import ModelHost, Opening, Served
from protograph.serve.refusals import Refusal
from protograph.serve.uploads import Upload


def batching(model: Path, work: Callable[[Batcher, Served, list[int]], Awaitable[None]]) -> None:
    async def scenario() -> None:
        sizes: list[int] = []
        host = ModelHost(Opening(model), lambda version, what: None)
        batcher = Batcher(lambda images, unreadable: sizes.append(images + unreadable), 10**6)
        try:
            await work(batcher, host.served, sizes)
        finally:
            batcher.close()
            host.close()
        with pytest.raises(Refusal, match="the server is stopping"):
            await batcher.encode([], host.served)

    asyncio.run(scenario())


def test_images_of_many_requests_are_encoded_together(model: Path) -> None:
    images = [photograph(("red", "green", "blue")[index % 3], index) for index in range(100)]
    wanted = Classifier.load(model).predictions(images)

    async def work(batcher: Batcher, served: Served, sizes: list[int]) -> None:
        one_each = [batcher.encode([Upload("x", image)], served, predict=True) for image in images]
        results = [result for (result,) in await asyncio.gather(*one_each)]
        for row, result in enumerate(results):
            assert result.predictions is not None
            assert result.predictions.labels[result.row] == wanted.labels[row]
            chances = result.predictions.probabilities[result.row]
            assert np.allclose(chances, wanted.probabilities[row], atol=1e-3)
        assert sum(sizes) == 100
        assert max(sizes) <= MOST
        assert len(sizes) < 50

    batching(model, work)


def test_each_image_is_answered_by_the_state_it_was_asked_of(model: Path, tmp_path: Path) -> None:
    other = Classifier.load(model).rename_class("red", "scarlet")
    other.save(tmp_path / "other.pg")

    async def work(batcher: Batcher, served: Served, sizes: list[int]) -> None:
        second = Served(Classifier.load(tmp_path / "other.pg"), served.encoder, "v", served.stamp)
        asked = [batcher.encode([Upload("x", photograph("red", 1))], state, True) for state in (served, second) * 5]
        labels = [part.predictions.labels[part.row] for (part,) in await asyncio.gather(*asked) if part.predictions]
        assert labels == ["red", "scarlet"] * 5

    batching(model, work)


def test_a_defect_reaches_whoever_asked_and_the_workers_go_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(batcher: Batcher, served: Served, sizes: list[int]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("protograph.serve.batching.encode_pixels", lambda encoder, pixels: 1 / 0)
            for _ in range(5):
                with pytest.raises(ZeroDivisionError):
                    await batcher.encode([Upload("x", photograph("red", 1))] * 3, served)
        (result,) = await batcher.encode([Upload("x", photograph("red", 1))], served)
        assert result.features is not None
        assert result.predictions is None
        assert await batcher.encode([], served) == []

    batching(model, work)


@pytest.mark.parametrize(
    ("waiting", "idle", "size"),
    [(1, 2, 1), (5, 2, 3), (15, 1, 15), (16, 2, 16), (20, 2, 16), (40, 2, 16), (64, 2, 32), (99, 1, 32)],
)
def test_workers_share_what_waits_but_take_full_batches(waiting: int, idle: int, size: int) -> None:
    assert batch_size(waiting, idle, 16) == size


@pytest.mark.parametrize("count", [1, 11, 12, 15, 16, 17, 31])
def test_filling_a_batch_up_changes_no_features(count: int) -> None:
    opened = encoder()
    pixels = [opened.prepare(photograph("red", index)) for index in range(count)]
    features = encode_pixels(opened, pixels)
    assert features.shape == (count, opened.features)
    alone = torch.cat([opened.encode_pixels(image[None]) for image in pixels])
    assert torch.allclose(features, alone, atol=1e-4)
