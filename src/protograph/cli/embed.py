"""The verb embed."""

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.wording import counted
from protograph.cli.classifier import tell
from protograph.cli.display import ShownProgress, reported
from protograph.cli.options import RETRIES, AsJson, Device, Plugins, Retries, SkipBad, find_device, load_plugins
from protograph.data.feature_shards import ShardKind
from protograph.data.image_list import list_images
from protograph.encoders import BACKBONE_NAMES, open_encoder, strongest_backbone
from protograph.encoders.embedding import IMAGES_PER_SHARD, Embedding, EmbedResult, ShardSettings, Share, embed

EMBED_ENGINES = ("local", "ray")
PROBLEMS_NAMED = 20  # images that cannot be read, one line each; the shards name all


@reported
def embed_command(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES",
            help="What `fit` takes: a folder of class folders, a .csv or .jsonl of paths and labels; also such a .parquet, a "
            ".tar as webdataset writes it, or a folder of these.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the shards; the same command continues there.", show_default=False)],
    backbone: Annotated[
        str | None,
        typer.Option(
            help=f"Frozen network for the images: {BACKBONE_NAMES}. (default: efficientnet-lite0)", show_default=False
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Edge in pixels of the images that EfficientNet-Lite sees. (default: its own)", show_default=False),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="The share of this process: every N-th shard, from the I-th on. N processes together make all shards.",
        ),
    ] = "1/1",
    images_per_shard: Annotated[
        int, typer.Option(help="Images in each shard; a kill loses one shard of each process.", min=1, max=10**6)
    ] = IMAGES_PER_SHARD,
    kind: Annotated[
        str, typer.Option("--format", help="Of the shards: safetensors, or parquet, which needs pyarrow.")
    ] = "safetensors",
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="Take the images of a folder at any depth, without classes, for `predict`.")
    ] = False,
    engine: Annotated[
        str,
        typer.Option(help="Where to run: local, or ray for the cluster of RAY_ADDRESS, whose machines share folders."),
    ] = "local",
    retries: Retries = RETRIES,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Turn any number of images into features, in shards that others read.

    `fit`, `train`, `predict` and `evaluate` read them. The images pass through a frozen network once. Several processes share
    the work by --shard, on one machine or on many that share folders; which of them makes which shard depends on the list of
    images alone. A shard is complete or absent: after a kill, the same command makes what is missing, and the shards are the
    same to the last bit.

    Examples:
        protograph embed birds --out features
        protograph embed birds --out features --shard 3/16
        protograph embed photos --out features --unlabelled
    """
    if kind not in get_args(ShardKind):
        raise unknown_name("format", kind, get_args(ShardKind))
    check_engine(engine, retries)
    share = parse_share(shard)
    load_plugins(plugin)
    progress = ShownProgress(quiet=as_json)
    name = backbone or strongest_backbone()
    encoder = open_encoder(name, device=find_device(device), size=size)
    listed = list_images(images, not unlabelled, skip_bad, progress)
    settings = ShardSettings(images_per_shard, kind)  # type: ignore[arg-type]
    embedding = Embedding.opened(listed, encoder, name, out, settings, skip_bad)
    make_shards = None
    if engine == "ray":
        from protograph.cli.ray_embedding import ShardOrder, ray_shards

        paths = [path.resolve() for path in plugin or ()]
        order = ShardOrder(listed.resolved(), name, size, device, paths, out.resolve(), settings, skip_bad)
        make_shards = ray_shards(order, retries)
    result = embed(embedding, share, progress, make_shards)
    for problem in list(result.problems.values())[:PROBLEMS_NAMED]:
        progress.say(f"left out: {problem}")
    tell(embed_summary(result, out), embed_line(result, out), as_json)


def check_engine(engine: str, retries: int) -> None:
    """Raise an `InputError` unless the engine is known and makes use of the options."""
    if engine not in EMBED_ENGINES:
        raise unknown_name("engine", engine, EMBED_ENGINES)
    if engine == "local" and retries != RETRIES:
        raise InputError(f"--retries {retries} would be ignored with --engine local: leave it out")


def parse_share(text: str) -> Share:
    """Return the share that `--shard` names."""
    number, _, of = text.partition("/")
    if not (number.isascii() and number.isdigit() and of.isascii() and of.isdigit()):
        raise InputError(f"--shard takes I/N, such as 3/16, not '{text}'")
    return Share(int(number), int(of))


def embed_summary(result: EmbedResult, out: Path) -> dict[str, Any]:
    """Return what was done as plain values."""
    return {
        "folder": str(out),
        "images": result.images,
        "continued": result.continued,
        "shards": result.shards,
        "shards_missing": result.missing,
        "unreadable": result.problems,
    }


def embed_line(result: EmbedResult, out: Path) -> str:
    """Return what was done in one line."""
    bad = f"; {counted(len(result.problems), 'image')} cannot be read" if result.problems else ""
    rest = f"; {counted(result.missing, 'shard')} of other shares are missing" if result.missing else ""
    return f"wrote {counted(result.shards, 'shard')} of {counted(result.images, 'image')} into {out}{bad}{rest}"
