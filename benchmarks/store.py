"""Building and opening the store of a dataset's images, against all cores decoding the same files in a bare loop.

    python benchmarks/store.py [--root PATH] [--rounds 3]

miniImageNet at --root or PROTOGRAPH_DATA. Ratios and memory are what matters; seconds are this machine's.
"""

import argparse
import os
import resource
import tempfile
import time
from multiprocessing import Pool
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from protograph._internal.progress import Silent
from protograph.data import open_dataset
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE
from protograph.data.reading import read_images


def decode(file: str) -> int:
    with Image.open(file) as image:
        return int(np.asarray(image.convert("RGB")).shape[0])


def seconds(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PROTOGRAPH_CACHE"] = cache
        dataset = open_dataset("mini-imagenet", chosen.root)
        # Before the bare loop, whose processes are copies of this one.
        own, child = (resource.getrusage(who).ru_maxrss / 2**10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        opening = median(seconds(lambda: open_dataset("mini-imagenet", chosen.root)) for _ in range(5))
        assert dataset.images is not None
        names = list(dataset.images.names)
        folder = next(path.parent for path in _places(chosen.root, Path(cache)) if path.name == names[0])

        def build(round_: int) -> None:
            os.environ["PROTOGRAPH_CACHE"] = f"{cache}/{round_}"
            read_images(folder, names, IMAGE_SIZE, IMAGE_NORMALISATION, Silent())

        files = [f"{folder}/{name}" for name in names]
        bare, built = [], []
        for round_ in range(chosen.rounds):
            with Pool(os.cpu_count()) as pool:
                pool.map(decode, files[:256])  # started, so that only decoding is timed
                bare.append(seconds(lambda pool=pool: pool.map(decode, files, chunksize=128)))
            built.append(seconds(lambda round_=round_: build(round_)))
        store_opening = median(seconds(lambda: build(0)) for _ in range(5))
    workers = os.cpu_count() or 1
    peak = own + workers * child
    print(f"{len(names)} images, {workers} cores")
    print(f"bare loop            {median(bare):7.2f} s  {len(names) / median(bare):8.0f} images/s")
    print(f"building the store   {median(built):7.2f} s  {len(names) / median(built):8.0f} images/s")
    print(f"ratio                {median(bare) / median(built):7.2f}")
    print(f"opening the store    {store_opening:7.2f} s; the whole dataset with its split {opening:.2f} s")
    print(f"peak memory          {peak:7.0f} MB at the most: {own:.0f} + {workers} workers of {child:.0f} or less")


def _places(root: Path | None, cache: Path) -> list[Path]:
    """Where the images lie: under the root, or unpacked from its archives."""
    base = root or Path(os.environ["PROTOGRAPH_DATA"])
    return [path for place in (base, *cache.glob("unpacked-*")) for path in place.rglob("n*.jpg")]


if __name__ == "__main__":
    main()
