"""A loop as few-shot libraries have it, to compare with: nothing in it is slow on purpose, and some things it is spared.

Images are files, decoded with PIL and transformed one by one by the workers of a DataLoader, an episode to a batch. Every
episode passes the network by itself, in float32 and eagerly; a step follows the gradients of several. Evaluation goes episode
by episode through the backbone. Spared are the drawing of episodes, done before, and the start of the workers: the clock runs
from the first batch on.
"""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from protograph._internal.files import cache_folder
from protograph.data import Augmentation, Dataset, ImageStore, Normalisation
from protograph.episodes import Episodes
from protograph.evaluation.metrics import episode_measures
from protograph.nn.model import GraphPrototypeNetwork


class ImageFiles(torch.utils.data.Dataset[Tensor]):
    """Image files as normalised tensors [C, H, W], padded, cropped and flipped at random with an `augmentation`."""

    def __init__(
        self, files: Sequence[Path], size: int, normalisation: Normalisation, augmentation: Augmentation | None
    ) -> None:
        self.files, self.size, self.augmentation = files, size, augmentation
        self.mode = "L" if len(normalisation.mean) == 1 else "RGB"
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (normalisation.mean, normalisation.std))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.files[index]) as file:
            image = file.convert(self.mode)
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if self.augmentation is not None:
            pad = self.augmentation.pad
            left, top = random.randint(0, 2 * pad), random.randint(0, 2 * pad)
            image = ImageOps.expand(image, pad).crop((left, top, left + self.size, top + self.size))
            if self.augmentation.flip and random.random() < 0.5:
                image = ImageOps.mirror(image)
        pixels = torch.from_numpy(np.atleast_3d(np.array(image))).permute(2, 0, 1).float().div_(255)
        return pixels.sub_(self.mean).div_(self.std)


def loader(images: ImageFiles, episodes: Episodes, workers: int) -> DataLoader[Tensor]:
    """One batch per episode: its support images, then its queries."""
    batches = torch.cat([episodes.support.flatten(1), episodes.queries], 1).tolist()
    return DataLoader(images, batch_sampler=batches, num_workers=workers, pin_memory=torch.cuda.is_available())


def train(
    model: GraphPrototypeNetwork,
    optimiser: torch.optim.Optimizer,
    batches: DataLoader[Tensor],
    episodes: Episodes,
    accumulated: int,
    device: torch.device,
) -> float:
    """Train on all episodes, with a step after every so many; seconds per episode."""
    model.train()

    def learn(index: int, images: Tensor, episode: Episodes) -> None:
        loss = cross_entropy(logits(model, images, episode)[0], episode.targets[0])
        (loss / accumulated).backward()
        if (index + 1) % accumulated == 0:
            optimiser.step()
            optimiser.zero_grad()

    return seconds_each(learn, batches, episodes, device)


@torch.no_grad()
def evaluate(model: GraphPrototypeNetwork, batches: DataLoader[Tensor], episodes: Episodes, device: torch.device) -> float:
    """Measure the model on all episodes; seconds per episode."""
    model.eval()
    accuracies = []

    def look(index: int, images: Tensor, episode: Episodes) -> None:
        measures = episode_measures(logits(model, images, episode), episode.targets, episode.seen)
        accuracies.append(measures["h_mean"].item())

    return seconds_each(look, batches, episodes, device)


def logits(model: GraphPrototypeNetwork, images: Tensor, episode: Episodes) -> Tensor:
    """Joint logits [1, Q, V] of one episode; support and queries pass the backbone one after the other."""
    support, queries = torch.split(images, [episode.support.numel(), episode.queries.numel()])
    features = model.backbone(support).view(*episode.support.shape, -1), model.backbone(queries)[None]
    return model(features[0], episode.mask, features[1], episode.classes, episode.seen)


def seconds_each(
    work: Callable[[int, Tensor, Episodes], None], batches: DataLoader[Tensor], episodes: Episodes, device: torch.device
) -> float:
    """Time for an episode, from the moment the first has been loaded."""
    placed = episodes.to(device)
    began = 0.0
    for index, images in enumerate(batches):
        began = began or time.perf_counter()
        work(index, images.to(device, non_blocking=True), placed.slice(index, index + 1))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / len(episodes)


def own_files(dataset: Dataset, rows: Sequence[int], root: Path) -> list[Path] | None:
    """The files behind some of a dataset's images, under `root` or where archives were unpacked; None if there are none."""
    if dataset.images is None:
        return None
    names = [dataset.images.names[row] for row in rows]
    for folder in (root, *cache_folder().glob("unpacked-*")):
        for found in folder.rglob(Path(names[0]).name):
            base = Path(str(found).removesuffix(names[0]))
            if all((base / name).is_file() for name in names):
                return [base / name for name in names]
    return None


def written_files(store: ImageStore, rows: Tensor, folder: Path) -> list[Path]:
    """Some of a store's images as JPEG files in a folder."""
    files = [folder / f"{row}.jpg" for row in rows.tolist()]
    for part, names in zip(torch.split(rows, 4096), (files[at : at + 4096] for at in range(0, len(files), 4096)), strict=True):
        for image, name in zip(store.pixels[part.to(store.pixels.device)].cpu().numpy(), names, strict=True):
            Image.fromarray(image.transpose(1, 2, 0).squeeze()).save(name, quality=90)
    return files
