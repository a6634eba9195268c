"""Shards of features made by Ray Data: an encoder for each worker, on machines that share folders."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph.cli.cluster import check_machines, connect
from protograph.cli.options import find_device, load_plugins
from protograph.data.image_list import ImageList
from protograph.encoders import open_encoder
from protograph.encoders.embedding import Embedding, MakeShards, ShardSettings

MOST_BLOCKS = 10_000  # tasks that Ray Data plans; of more shards, a task makes several


@dataclass(frozen=True)
class ShardOrder:
    """What a worker needs to make shards: the list of images, the encoder by name, and the form of the shards.

    Attributes:
        images: The images, whose paths all machines see.
        backbone: The encoder, as the user names it.
        size: The edge in pixels of the images that it sees, or None.
        device: The device, as the user names it.
        plugins: Plugin files that are loaded first.
        folder: The folder of the shards, absolute.
        settings: The form of the shards.
        skip_bad: Whether images that cannot be read are left out.

    """

    images: ImageList
    backbone: str
    size: int | None
    device: str
    plugins: Sequence[Path]
    folder: Path
    settings: ShardSettings
    skip_bad: bool


class ShardMaker:
    """A worker of Ray Data, which opens the encoder once.

    Args:
        reference: The order, as Ray keeps it.

    """

    def __init__(self, reference: Any) -> None:
        import ray

        order: ShardOrder = ray.get(reference[0])
        load_plugins(order.plugins)
        encoder = open_encoder(order.backbone, device=find_device(order.device), size=order.size)
        self._embedding = Embedding.opened(order.images, encoder, order.backbone, order.folder, order.settings, order.skip_bad)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Make the shard of a batch of one row, and return it, how many images it has, and names and reasons of bad ones.

        A mistake of the user is returned, not raised: Ray would wrap it.
        """
        (index,) = batch["shard"].tolist()
        try:
            problems = self._embedding.make(index, lambda count: None)
        except InputError as error:
            return {"shard": [index], "images": [0], "names": [[""]], "reasons": [[str(error)]]}
        return {
            "shard": [index],
            "images": [len(self._embedding.manifest.rows(index))],
            "names": [[*problems]],
            "reasons": [[*problems.values()]],
        }


def ray_shards(order: ShardOrder, retries: int) -> MakeShards:
    """Return what makes shards on the cluster of RAY_ADDRESS, or on one that is started on this machine.

    Each worker takes a CPU or, where the cluster has GPUs and the device allows it, a GPU.

    Args:
        order: What to make.
        retries: How often workers may die. What was not done then is begun again.

    Raises:
        InputError: Ray is not installed, or a machine does not see the folders.

    """
    ray = connect()
    try:
        from ray import data
    except ImportError as error:
        ray.shutdown()
        raise InputError('--engine ray needs Ray Data: pip install "protograph[ray]"') from error
    try:
        check_machines(ray, order.folder, [order.images.source.resolve()])
    except BaseException:
        ray.shutdown()
        raise

    def make_shards(shards: Sequence[int], advance: Callable[[int], None]) -> dict[str, str]:
        problems: dict[str, str] = {}
        waiting, deaths = [*shards], 0
        try:
            while waiting:
                try:
                    for row in _rows(ray, data, order, waiting):
                        if row["names"] and row["names"][0] == "":
                            raise InputError(row["reasons"][0])
                        waiting.remove(row["shard"])
                        problems |= dict(zip(row["names"], row["reasons"], strict=True))
                        advance(row["images"])
                except ray.exceptions.RayTaskError:  # not a death: it would happen again
                    raise
                except ray.exceptions.RayError:
                    deaths += 1
                    if deaths > retries:
                        raise
        except ray.exceptions.RayError as error:
            reason = next(iter(str(getattr(error, "cause", None) or error).strip().splitlines()), type(error).__name__)
            times = f" {deaths} times" if deaths > 1 else ""
            raise InputError(
                f"a worker of the cluster failed{times} ({reason}): correct the cause and run the same command again"
            ) from error
        finally:
            ray.shutdown()
        return problems

    return make_shards


def _rows(ray: Any, data: Any, order: ShardOrder, shards: Sequence[int]) -> Any:
    """Return what the workers answer, as it comes."""
    for name in ("ray.data", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what goes wrong is said in one line
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    resources = ray.cluster_resources()
    gpu = order.device != "cpu" and (order.device != "auto" or resources.get("GPU", 0) > 0)
    workers = int(resources.get("GPU" if gpu else "CPU", 0))
    if not workers:
        raise InputError(f"the cluster has no {'GPU' if gpu else 'CPU'}: choose another --device")
    rows = data.from_items([{"shard": index} for index in shards], override_num_blocks=min(len(shards), MOST_BLOCKS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of options that Ray Data passes on to its workers
        answers = rows.map_batches(
            ShardMaker,
            fn_constructor_args=([ray.put(order)],),  # in a list, since Ray would copy a bare reference's value to every task
            batch_size=1,
            compute=data.ActorPoolStrategy(min_size=1, max_size=min(workers, len(shards))),
            num_cpus=1,
            num_gpus=1 if gpu else 0,
            max_restarts=0,  # Ray would write to the terminal that it cannot promise them
            max_task_retries=0,
        )
    return answers.iter_rows()
