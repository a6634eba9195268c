"""What bounds the accuracy on seen classes: how many images they have, one more JPEG, the width of the network, how images
are changed in training, our kernels.

    python benchmarks/seen.py [--dataset mini-imagenet] [--root PATH] [--only images jpeg width changes kernels] [--quick]

A cosine classifier over the seen classes by the `fast` recipe, measured after its last epoch on images that are held out of
their training images. Test images are not looked at. The tables go into SEEN.md beside this script; runs that are finished
are not trained again.
"""

import argparse
import hashlib
import io
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protograph.data import Dataset, ImageStore, Pool, open_dataset
from protograph.data.splits import divide_images, draw_by_index
from protograph.device import best_device, best_precision
from protograph.evaluation.metrics import PAPER_MEASURES as MEASURES
from protograph.evaluation.metrics import extract
from protograph.training.recipes import STRONG, default_backbone
from protograph.training.run_config import configure
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model
from protograph.training.stages import train
from report import Section, measure_sections, options

HEAD = """# What bounds the accuracy on seen classes

Written by `benchmarks/seen.py`, section by section as each is measured, and never typed. Below every section stand the machine,
the versions, the day and the command.
"""
WIDTHS = ("conv4-32", "conv4-64", "conv4-64-128", "conv4-128")
QUALITY, SHIFT = 85, 3  # of one more JPEG; its blocks lie elsewhere than those of the first


@dataclass(frozen=True)
class Study:
    """What is measured, and on what.

    held: images of each class that are never trained on
    counts: images of each class that are, in the section `images`; the last one in all others
    changes: to the recipe
    """

    dataset: Dataset
    root: Path | None
    runs: Path
    held: int = 100
    counts: tuple[int, ...] = (100, 200, 300, 400)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def divided(self, count: int) -> tuple[Dataset, Pool]:
        """The dataset with `count` training images of each class, and the pool of those held out."""
        kept, held = {}, {}
        for class_id, rows in zip(self.dataset.train.classes.tolist(), self.dataset.train.by_class(), strict=True):
            name, own = self.dataset.classes[class_id], rows.tolist()
            rest, _, held[class_id] = divide_images(own, name, 0, self.held, seed=1)
            kept[class_id] = draw_by_index(rest, count, 1, name, "trained on")
        mark = hashlib.sha256(f"{self.dataset.fingerprint} {self.held} {count}".encode()).hexdigest()[:16]
        return replace(self.dataset, train=Pool.from_members(kept), fingerprint=mark), Pool.from_members(held)

    def row(
        self,
        name: str,
        count: int,
        backbone: str | None = None,
        store: ImageStore | None = None,
        recipe: str = "fast",
        changes: Mapping[str, Any] | None = None,
    ) -> dict[str, object]:
        """Train, and measure on images that were trained on and on others."""
        dataset, held = self.divided(count)
        if store is not None:
            dataset = replace(dataset, store=store, fingerprint=f"{dataset.fingerprint[:-5]}again")
        device, own = best_device(), changes or {}
        every = {**self.changes, **own}
        config = configure(dataset, "cosine", recipe=recipe, backbone=backbone, changes=every, precision=best_precision(device))
        marks = [*(["again"] if store is not None else []), *([recipe] if recipe != "fast" else []), *own]
        folder = self.runs / "-".join([config.backbone, str(count), *marks])  # shared by sections
        train(config, dataset, folder, device)
        model = trained_model(Run.open(folder), dataset, "last").to(device)
        right = {}
        for what, pool in (("trained on", dataset.train), ("held out", held)):
            rows = torch.cat([own[: self.held] for own in pool.by_class()]).to(device)
            targets = torch.cat(
                [torch.full((len(own[: self.held]),), c) for c, own in zip(pool.classes, pool.by_class(), strict=True)]
            )
            with torch.inference_mode():
                found = model.seen_logits(extract(model, dataset.store.to(device), rows)).argmax(1).cpu()
            right[what] = 100 * (found == targets).double().mean().item()
        return {"": name, **{f"right of those {what}, %": f"{value:.2f}" for what, value in right.items()}}


def images(study: Study) -> Iterator[Section]:
    rows = [study.row(f"{count} images", count) for count in study.counts]
    errors = [100 - float(str(row["right of those held out, %"])) for row in rows]
    notes = []
    if min(errors[-2:]) > 0:
        (one, two), (few, many) = errors[-2:], study.counts[-2:]
        power = math.log(one / two) / math.log(many / few)
        gain = {n: two - two * (many / n) ** power for n in (500, 600)}
        notes.append(
            f"Errors fall by the power {power:.2f} of the number of images between the last two rows. If that went on, 500 "
            f"would have {gain[500]:.1f} points more than {many}, and 600 another {gain[600] - gain[500]:.1f}."
        )
    yield Section("images", f"Of each of {study.dataset.seen} classes; {study.held} others are held out.", rows, notes)


def jpeg(study: Study) -> Iterator[Section]:
    count = study.counts[-1]
    again = encoded_again(study.dataset.store, study.dataset.train.all_images())
    rows = [study.row(f"{count} images", count), study.row("encoded again", count, store=again)]
    about = (
        f"Images of seen classes encoded once more as JPEG, quality {QUALITY}, colours at half the resolution, blocks "
        f"shifted by {SHIFT} pixels."
    )
    yield Section("jpeg", about, rows)


def encoded_again(store: Any, rows: Tensor) -> ImageStore:
    """The same images, some of them after one more JPEG."""
    pixels = store.pixels.clone()
    for row in rows.tolist():
        image = pixels[row]
        wide = np.pad(image.permute(1, 2, 0).numpy(), ((SHIFT, 0), (SHIFT, 0), (0, 0)), mode="edge")
        packed = io.BytesIO()
        Image.fromarray(wide.squeeze()).save(packed, "JPEG", quality=QUALITY, subsampling="4:2:0")
        read = np.atleast_3d(np.asarray(Image.open(packed)))[SHIFT:, SHIFT:]
        image.copy_(torch.from_numpy(read.copy()).permute(2, 0, 1))
    return ImageStore(pixels, store.normalisation)


def width(study: Study) -> Iterator[Section]:
    rows = [study.row(name, study.counts[-1], name) for name in WIDTHS]
    yield Section("width", f"Networks of other widths, {study.counts[-1]} images of each class.", rows)


def changes(study: Study) -> Iterator[Section]:
    count, all_of_them = study.counts[-1], STRONG.image_changes
    usual = default_backbone(study.dataset.name, "fast")
    rows = [study.row("as it is", count)]
    rows += [study.row(f"{name} {value:g}", count, changes={name: value}) for name, value in all_of_them.items()]
    rows += [
        study.row("all of them", count, changes=all_of_them),
        study.row("all of them, twice as long", count, usual, recipe=STRONG.name),
        study.row("all of them, twice as long, conv4-128", count, "conv4-128", recipe=STRONG.name),
    ]
    about = (
        f"Training images changed as the `strong` recipe does, {count} of each class; {usual} but in the last row. Twice as "
        "long is by that recipe itself."
    )
    yield Section("changes", about, rows)


def kernels(study: Study) -> Iterator[Section]:
    """Through the command, since the variable is read when it starts."""
    rows = []
    ways = {
        "as it is": ({}, "auto"),
        "PyTorch's own steps": ({"PROTOGRAPH_PLAIN": "1"}, "auto"),
        "these in float32": ({"PROTOGRAPH_PLAIN": "1"}, "float32"),
    }
    for name, (variables, precision) in ways.items():
        folder = study.runs / name.replace(" ", "-").replace("'", "")
        changes = {"epochs": 4, **study.changes}
        words = [f"--dataset={study.dataset.name}", "--variant=cosine", "--recipe=fast", f"--precision={precision}", "--json"]
        words += [f"--set={setting}={value}" for setting, value in changes.items()] + [f"--out={folder}"]
        words += [f"--root={study.root}"] if study.root else []
        command = [sys.executable, "-m", "protograph", "train", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **variables})
        run = Run.open(folder)
        last = run.history[-1]
        measures = {f"validation {MEASURES[key]}": last["validation"][key]["mean"] for key in ("seen_seen", "novel_novel")}
        rows.append({"": name, "precision": run.config.precision, "last loss": last["loss"], **measures})
    about = "A training of a third of the length, by our kernels and recorded steps, and without. All images, one seed."
    yield Section("kernels", about, rows)


SECTIONS: dict[str, Callable[[Study], Iterator[Section]]] = {
    "images": images,
    "jpeg": jpeg,
    "width": width,
    "changes": changes,
    "kernels": kernels,
}


def make_study(given: argparse.Namespace, runs: Path) -> Study:
    dataset = open_dataset(given.dataset, given.root)
    if given.quick:
        changes = {"epochs": 1, "steps": 2, "batch_size": 8, "validation_episodes": 2}
        return Study(dataset, given.root, runs, held=3, counts=(4, 8), changes=changes)
    return Study(dataset, given.root, runs)


def main() -> None:
    measure_sections(options(__doc__, SECTIONS, "SEEN.md", "runs/seen"), SECTIONS, make_study, HEAD)


if __name__ == "__main__":
    main()
