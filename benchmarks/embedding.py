"""How fast `protograph embed` is beside a bare loop, what is left of it after kills, and the same by Ray Data.

    python benchmarks/embedding.py                              # made-up photographs of 500 x 375 pixels
    python benchmarks/embedding.py --images mini-imagenet       # your own JPEGs, in a folder at any depth

speed   The bare loop decodes and encodes the same files in batches, by one thread for each core, and keeps nothing. Both run
        in turns. Where other programs take the cores at the same time, rates mean little, but the processor's time for each
        image is nearly the same.
kills   `protograph embed` is killed by SIGKILL at random moments and started again, until it ends by itself. Its shards are
        compared with those of a call that nobody disturbed, to the last bit.
ray     `protograph embed --engine ray` on a cluster of two nodes in this machine, compared likewise.

The tables are kept in benchmarks/EMBEDDING.md.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from report import Section, write

CPU = torch.device("cpu")
PHOTOGRAPHS = 500  # different ones
KILLED_WITH = "conv4"  # a small network: more of the time is spent on files, where a kill could do harm
SECTIONS = {"speed": "Speed", "kills": "Kills", "ray": "Ray Data"}
HEAD = "# Features of many images\n\nWhat `python benchmarks/embedding.py` measured.\n"


def make_images(root: Path, count: int) -> str:
    """Make photographs in four folders: each of some many times, with a comment of its own, so that no two files are equal."""
    originals = root.with_name("originals")
    originals.mkdir(parents=True)
    contents = [path.read_bytes() for path in write_photographs(originals, min(count, PHOTOGRAPHS))]
    for number in range(count):
        comment = f"{number:012d}".encode()
        original = contents[number % len(contents)]
        content = original[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2) + comment + original[2:]
        quarter_file(root, number, count).write_bytes(content)
    return f"{count:,} made-up JPEGs of 500 x 375 pixels"


def take_images(source: Path, root: Path, most: int) -> str:
    """Copy JPEGs of a folder, at any depth, into four folders."""
    files = sorted(source.rglob("*.jpg"))[:most]
    for number, file in enumerate(files):
        shutil.copyfile(file, quarter_file(root, number, len(files)))
    return (
        f"{len(files):,} JPEGs of {source.name}, {sum(file.stat().st_size for file in files) / len(files) / 1000:.1f} KB each"
    )


def quarter_file(root: Path, number: int, count: int) -> Path:
    path = root / str(4 * number // count) / f"{number:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


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


@dataclass(frozen=True)
class Images:
    """The images: four folders of them, and what they are in words."""

    root: Path
    about: str

    def command(self, out: Path, *words: str) -> list[str]:
        """The command that embeds all of them into a folder."""
        fixed = ("--unlabelled", f"--backbone={KILLED_WITH}", "--images-per-shard=512", "--json", "--device=cpu")
        return [sys.executable, "-m", "protograph", "embed", str(self.root), f"--out={out}", *fixed, *words]

    def undisturbed(self, scratch: Path) -> tuple[Mapping[str, bytes], float]:
        """The shards that a call nobody disturbs makes, and the seconds it takes, again where they are made already."""
        began = time.monotonic()
        subprocess.run(self.command(scratch / "undisturbed"), stdout=subprocess.DEVNULL, check=True)
        return contents(scratch / "undisturbed"), time.monotonic() - began


def measure(images: "Images", names: Sequence[str], scratch: Path) -> Section:
    """Embed all images and run the bare loop, in turns of one quarter of the images each."""
    keep_freed_memory()
    rows = []
    for name in names:
        encoder = open_encoder(name, device=CPU)
        totals = dict.fromkeys(("wall", "processor", "bare wall", "bare processor"), 0.0)
        quarters = sorted(images.root.iterdir())
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
    about = "From files to shards, past the cache, by the CPU alone, beside a bare loop of decoding and encoding."
    notes = [
        f"{images.about}; {torch.get_num_threads()} threads, batches of {BATCH['cpu']}, shards of "
        f"{ShardSettings().images_per_shard}; embedding and bare loop in turns.",
        f"processor: the time of all cores for an image; the load at the end was {os.getloadavg()[0]:.1f}.",
    ]
    return Section(SECTIONS["speed"], about, rows, notes)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but unfinished ones, which a killed process leaves."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def same(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str:
    return "the same, to the last bit" if ours == theirs else "DIFFERENT"


def kill(images: Images, kills: int, scratch: Path, seed: int) -> Section:
    """Kill `protograph embed` at random moments, and compare the shards with undisturbed ones."""
    drawn = random.Random(seed)
    expected, seconds = images.undisturbed(scratch)
    _, beginning = images.undisturbed(scratch)
    done, out = 0, scratch / "killed"
    while done < kills:
        process = subprocess.Popen(images.command(out), stdout=subprocess.DEVNULL)
        time.sleep(beginning + drawn.uniform(0.3, 1.7) * max(0, seconds - beginning) / kills)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
    before = len(contents(out)) - 1
    subprocess.run(images.command(out), stdout=subprocess.DEVNULL, check=True)
    row = {"kills": done, "shards after the last kill": before, "shards": read_manifest(out).shards}
    about = "`protograph embed`, killed by SIGKILL at random moments and started again, beside a call that nobody disturbed."
    return Section(SECTIONS["kills"], about, [{**row, "compared": same(contents(out), expected)}], [notes_on(images)])


def ray(images: Images, scratch: Path) -> Section:
    """Embed by Ray Data on two nodes of this machine, and compare the shards with those of the local engine."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"}
    from ray.cluster_utils import Cluster

    expected, _ = images.undisturbed(scratch)
    node = {"num_cpus": 1, "object_store_memory": 200_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        command, variables = images.command(scratch / "ray", "--engine=ray"), {**os.environ, "RAY_ADDRESS": cluster.address}
        subprocess.run(command, env=variables, stdout=subprocess.DEVNULL, check=True)
    finally:
        cluster.shutdown()
    shards = read_manifest(scratch / "ray").shards
    rows = [{"nodes": 2, "shards": shards, "compared": same(contents(scratch / "ray"), expected)}]
    about = "`protograph embed --engine ray` on a cluster of two nodes in this machine, beside `--engine local`."
    return Section(SECTIONS["ray"], about, rows, [notes_on(images)])


def notes_on(images: Images) -> str:
    return f"{images.about}; the network is {KILLED_WITH}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--most", type=int, default=20_000, help="how many images to take")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--encoder", action="append", help="repeatable (default: efficientnet-lite0 and conv4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs at any depth; by default photographs are made up")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("EMBEDDING.md"))
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        about = take_images(given.images, root, given.most) if given.images else make_images(root, given.most)
        images = Images(root, about)
        sections = {
            "speed": partial(measure, images, given.encoder or ["efficientnet-lite0", "conv4"]),
            "kills": lambda scratch: kill(images, given.kills, scratch, given.seed),
            "ray": partial(ray, images),
        }
        for name in given.only:
            with TemporaryDirectory() as scratch:
                section = sections[name](Path(scratch))
            print(section.markdown())
            write(section, given.out, [*SECTIONS.values()], HEAD)


if __name__ == "__main__":
    main()
