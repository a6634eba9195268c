"""How fast `protograph embed` is beside a bare loop, and what is left of it after kills: `python benchmarks/embedding.py`.

The benchmark makes photographs of 500 x 375 pixels. The bare loop decodes and encodes the same files in batches, by one
thread for each core, and keeps nothing. Both run in turns. Where other programs take the cores at the same time, rates mean
little, but the processor's time for each image is nearly the same.

Then `protograph embed` is killed by SIGKILL at random moments and started again, until it ends by itself. Its shards are
compared with those of a call that nobody disturbed, to the last bit.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from encoding import write_photographs
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Silent
from protograph.data.feature_shards import read_manifest
from protograph.data.image_list import list_images
from protograph.encoders import ImageEncoder, open_encoder
from protograph.encoders.base import BATCH
from protograph.encoders.embedding import Embedding, ShardSettings, Share, embed
from report import Section

CPU = torch.device("cpu")
PHOTOGRAPHS = 500  # different ones
KILLED_WITH = "conv4"  # a small network: more of the time is spent on files, where a kill could do harm


def make_images(root: Path, count: int) -> None:
    """Make photographs in four folders: each of some many times, with a comment of its own, so that no two files are equal."""
    originals = root.with_name("originals")
    originals.mkdir(parents=True)
    contents = [path.read_bytes() for path in write_photographs(originals, min(count, PHOTOGRAPHS))]
    for number in range(count):
        path = root / str(4 * number // count) / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        comment = f"{number:012d}".encode()
        original = contents[number % len(contents)]
        path.write_bytes(original[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2) + comment + original[2:])


def bare_loop(encoder: ImageEncoder, files: Sequence[Path]) -> None:
    """Decode and encode files by all cores, and keep nothing."""
    size, threads = BATCH["cpu"], torch.get_num_threads()
    batches = [files[start : start + size] for start in range(0, len(files), size)]

    def work(batch: Sequence[Path]) -> None:
        pixels = torch.stack([encoder.preparation.read(file, str(file)) for file in batch])
        encoder.encode_pixels(pixels)

    with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
        for _ in pool.map(work, batches):
            pass
    torch.set_num_threads(threads)


def cost(work: Callable[[], object], images: int) -> tuple[float, float]:
    """The seconds, and the seconds of the processor, that some work takes for each image."""
    began, began_processor = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began) / images, (time.process_time() - began_processor) / images


def measure(root: Path, names: Sequence[str], scratch: Path) -> Section:
    """Embed all images and run the bare loop, in turns of one quarter of the images each."""
    keep_freed_memory()
    rows = []
    for name in names:
        encoder = open_encoder(name, device=CPU)
        totals = dict.fromkeys(("wall", "processor", "bare wall", "bare processor"), 0.0)
        quarters = sorted(root.iterdir())
        for quarter in quarters:
            listed = list_images(quarter, False, False, Silent())
            files = sorted(quarter.iterdir())
            bare_loop(encoder, files[: 4 * BATCH["cpu"]])  # warm

            embedding = Embedding.opened(listed, encoder, name, scratch / f"{name}-{quarter.name}", ShardSettings(), False)
            wall, processor = cost(partial(embed, embedding, Share(), Silent()), len(files))
            bare_wall, bare_processor = cost(partial(bare_loop, encoder, files), len(files))
            for key, value in zip(totals, (wall, processor, bare_wall, bare_processor), strict=True):
                totals[key] += value / len(quarters)
        row: dict[str, object] = {"encoder": name, "px": encoder.preparation.shape[1]}
        row |= {"images/s": 1 / totals["wall"], "bare loop, images/s": 1 / totals["bare wall"]}
        row |= {"ratio": totals["bare wall"] / totals["wall"], "processor, ms": 1000 * totals["processor"]}
        row |= {"bare loop, ms": 1000 * totals["bare processor"], "ratio ": totals["bare processor"] / totals["processor"]}
        rows.append(row)
    count = sum(len([*quarter.iterdir()]) for quarter in root.iterdir())
    about = "From files to shards, past the cache, by the CPU alone, beside a bare loop of decoding and encoding."
    notes = [
        f"{count} JPEGs of 500 x 375 pixels, {torch.get_num_threads()} threads, batches of {BATCH['cpu']}, shards of "
        f"{ShardSettings().images_per_shard}; embedding and bare loop in turns.",
        f"processor: the time of all cores for an image; the load at the end was {os.getloadavg()[0]:.1f}.",
    ]
    return Section("Embedding", about, rows, notes)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but unfinished ones, which a killed process leaves."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def kill(root: Path, kills: int, scratch: Path, seed: int) -> str:
    """Kill `protograph embed` at random moments, and compare the shards with undisturbed ones."""
    drawn = random.Random(seed)
    words = ["embed", str(root), "--unlabelled", f"--backbone={KILLED_WITH}", "--images-per-shard=512", "--json"]

    def begun(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "protograph", *words, f"--out={out}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    began = time.monotonic()
    assert not begun(scratch / "undisturbed").wait()
    undisturbed = time.monotonic() - began
    done, out = 0, scratch / "killed"
    while done < kills:
        process = begun(out)
        time.sleep(drawn.uniform(0.3, 1.7) * undisturbed / kills + 2)  # it takes about two seconds to begin
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
    before = len(contents(out)) - 1
    assert not begun(out).wait()
    same = "the same, to the last bit" if contents(out) == contents(scratch / "undisturbed") else "DIFFERENT"
    shards = read_manifest(out).shards
    return (
        f"`protograph embed` with {KILLED_WITH} was killed {done} times at random moments and started again; {before} of "
        f"{shards} shards were there after the last kill. Beside those of a call that nobody disturbed, the shards are {same}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=20_000, help="how many images to make")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--encoder", action="append", help="repeatable (default: efficientnet-lite0 and conv4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=Path, help="where the images are, or are made; by default a folder that is removed")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        root = arguments.images or scratch / "images"
        if not root.exists():
            make_images(root, arguments.most)
        print(measure(root, arguments.encoder or ["efficientnet-lite0", "conv4"], scratch).markdown())
        if arguments.kills:
            print(kill(root, arguments.kills, scratch, arguments.seed))


if __name__ == "__main__":
    main()
