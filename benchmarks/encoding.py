"""How fast images become features on this machine's CPU, beside the bare network.

    python benchmarks/encoding.py                       # made-up photographs of 500 x 375 pixels
    python benchmarks/encoding.py --images birds        # your own files, in a folder of class folders

The bare network gets the same batch again and again, ready in memory. It is run by all cores together and by one core for each
of several batches; the faster of the two counts. Encoding begins with files that are not in the cache. Where other programs
take the cores at the same time, rates mean little, but the processor's time for each image is nearly the same.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from protograph._internal.memory import keep_freed_memory
from protograph.data.labelled_images import list_class_folders
from protograph.encoders import ImageEncoder, open_encoder
from protograph.encoders.base import BATCH
from protograph.encoders.workers import cpu_workers
from report import Section

ENCODERS = (("efficientnet-lite0", 224), ("efficientnet-lite0", 128), ("efficientnet-lite2", 260), ("conv4", 84))
CPU = torch.device("cpu")


def write_photographs(folder: Path, count: int) -> list[Path]:
    """Write JPEGs of smooth colours with some noise, 500 x 375 pixels."""
    generator = np.random.default_rng(0)
    paths = []
    for index in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        noise = generator.normal(0, 8, (375, 500, 1))
        paths.append(folder / f"{index:04d}.jpg")
        Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """The median time of some work, and the least time of the processor for it."""
    times, processor = [], []
    for _ in range(repeats):
        began, began_processor = time.perf_counter(), time.process_time()
        work()
        times.append(time.perf_counter() - began)
        processor.append(time.process_time() - began_processor)
    return statistics.median(times), min(processor)


def bare_cost(encoder: ImageEncoder, files: Sequence[Path], repeats: int) -> tuple[float, float]:
    """Seconds, and seconds of the processor, for an image by the network alone, on a batch that is ready in memory."""
    size, passes = BATCH["cpu"], max(1, len(files) // BATCH["cpu"])
    pixels = torch.stack([encoder.preparation.read(file, str(file)) for file in files[:size]])
    inputs = encoder._inputs(pixels, None, 1)
    workers, threads = cpu_workers()

    def together() -> None:
        for _ in range(passes):
            encoder._forward(inputs)

    def side_by_side() -> None:
        with ThreadPoolExecutor(workers, initializer=lambda: torch.set_num_threads(threads)) as pool:
            list(pool.map(lambda _: encoder._forward(inputs), range(passes)))

    usual = torch.get_num_threads()
    encoder._forward(inputs)
    times = [seconds(work, repeats) for work in (together, side_by_side)]
    torch.set_num_threads(usual)
    return min(wall for wall, _ in times) / passes / size, min(processor for _, processor in times) / passes / size


def encoding_cost(encoder: ImageEncoder, files: Sequence[Path], repeats: int) -> tuple[float, float]:
    """Seconds, and seconds of the processor, for an image from its file to its features, with an empty cache each time."""

    def encode() -> None:
        with TemporaryDirectory() as cache:
            os.environ["PROTOGRAPH_CACHE"] = cache
            encoder.encode(files)

    wall, processor = seconds(encode, repeats)
    return wall / len(files), processor / len(files)


def measure(files: Sequence[Path], repeats: int) -> Section:
    keep_freed_memory()
    rows = []
    for name, size in ENCODERS:
        encoder = open_encoder(name, device=CPU, size=size)
        wall, processor = encoding_cost(encoder, files, repeats)
        bare_wall, bare_processor = bare_cost(encoder, files, repeats)
        row: dict[str, object] = {"encoder": name, "px": size}
        row |= {"images/s": 1 / wall, "bare, images/s": 1 / bare_wall, "ratio to bare": bare_wall / wall}
        row |= {"processor, ms": 1000 * processor, "bare, ms": 1000 * bare_processor, "ratio": bare_processor / processor}
        rows.append(row)
    about = "From files that are not in the cache to features in the cache, by the CPU alone."
    notes = [
        f"{len(files)} files, median of {repeats} times, {torch.get_num_threads()} threads, batches of {BATCH['cpu']}.",
        "bare: the network alone, on one such batch that is ready in memory, by all cores together or one for each batch.",
        f"processor: the time of all cores for an image; the load at the end was {os.getloadavg()[0]:.1f}.",
    ]
    return Section("Encoding", about, rows, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of class folders; by default photographs are made up")
    parser.add_argument("--most", type=int, default=320, help="how many images to take")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with TemporaryDirectory() as scratch:
        if arguments.images:
            listed = list_class_folders(arguments.images)
            files = [arguments.images / name for names in listed.values() for name in names][: arguments.most]
        else:
            files = write_photographs(Path(scratch), arguments.most)
        print(measure(files, arguments.repeats).markdown())


if __name__ == "__main__":
    main()
