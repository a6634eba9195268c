"""Hostile inputs for all that reads or writes many images: files and shards of features, lists of images, tars."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import torch
from PIL import Image
from safetensors.torch import save

from attack import mutation
from protograph._internal import sealed
from protograph._internal.progress import Silent
from protograph.data.datasets.features import open_features, read_features, read_vectors
from protograph.data.feature_shards import TEXT, EncoderNotes, Manifest, Shard, ShardKind, ShardReader
from protograph.data.image_list import list_images
from protograph.data.splits import DATASET_PARTS
from protograph.data.tar_images import TarMember
from protograph.encoders.preparation import Preparation

if TYPE_CHECKING:
    from attack.hostile import Attack

Act = Callable[[], object]
FORMS = ("csv", "jsonl", "parquet", "metadata.csv", "metadata.jsonl", "parts", "tar", "tar", "tars")  # of lists of images
KINDS: tuple[ShardKind, ...] = ("safetensors", "parquet")
COMPRESSIONS = ("none", "snappy", "gzip", "zstd", "brotli")
MEMBER_NAMES = (
    "1.png", "1.cls", "1.json", "2.png", "2.cls", "2.json", "3.jpg", "a/1.png", "1.left.png", "../1.png", "/1.png", "a\\1.png",
    ".png", "4", "5.png/6.png",
)  # fmt: skip
PAX_HEADERS = ("size", "path", "linkpath", "mtime", "uid", "GNU.sparse.map", "GNU.sparse.size", "hdrcharset", "GNU.sparse.name")
PREPARATION = Preparation((3, 8, 8), (0.0,) * 3, (1.0,) * 3, (8, 8))
CLASSES, OF_CLASS, FEATURES = 14, 6, 3


def write_right_inputs(folder: Path) -> None:
    """Write a folder of shards in each format, files of features, and images with what lists them."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(CLASSES * OF_CLASS, FEATURES)).astype(np.float32)
    labels = [f"c{row % CLASSES:02d}" for row in range(len(vectors))]
    names = [f"{label}/{row}.png" for row, label in enumerate(labels)]
    for kind in KINDS:
        manifest = Manifest(EncoderNotes("conv4", "0" * 32, 84, FEATURES), "1" * 32, len(vectors), 30, kind, True)
        shards = folder / f"shards-{kind}"
        shards.mkdir()
        (shards / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        for index in range(manifest.shards):
            rows = slice(manifest.rows(index).start, manifest.rows(index).stop)
            parts = ["train" if row % 3 else "test" for row in manifest.rows(index)]
            shard = Shard(torch.tensor(vectors[rows]), names[rows], labels[rows], parts, {}, [100] * len(names[rows]))
            manifest.path(shards, index).write_bytes(shard.content(manifest, index))
    splits = [DATASET_PARTS[row // CLASSES % 3 if row % CLASSES < 6 else 3 + row % 2] for row in range(len(vectors))]
    columns = {"label": labels, "split": [split.replace("_", "-") for split in splits]}
    np.savez(folder / "parts.npz", vectors=vectors, labels=np.array(labels), split=np.array(columns["split"]))
    parquet.write_table(arrow.table({**columns, "vector": vectors.tolist()}), folder / "features.parquet")
    images = folder / "images"
    for number in range(4):
        path = images / f"c{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (6, 6, 3), np.uint8)).save(path)


def hostile_column(random: Random, count: int) -> Any:
    """Return a column of Parquet of an unexpected type, with about as many cells."""
    count = max(0, count + random.choice((0, 0, 0, 0, -1, 1)))
    match random.randrange(9):
        case 0:
            return arrow.nulls(count)
        case 1:
            return arrow.array([random.choice(mutation.TEXTS).encode("utf-8", "replace").decode() for _ in range(count)])
        case 2:
            return arrow.array([random.choice((b"", b"\xff", b"c00", b"a\0")) for _ in range(count)], arrow.binary())
        case 3:
            return arrow.array([random.choice((0, -1, 7, None, 2**62)) for _ in range(count)], arrow.int64())
        case 4:
            return arrow.array([random.choice((0.5, float("nan"), float("inf"), 1e300)) for _ in range(count)])
        case 5:
            cells = ([], [1.0] * FEATURES, [1.0], [None] * FEATURES, None, [float("nan")] * FEATURES)
            return arrow.array([random.choice(cells) for _ in range(count)], arrow.list_(arrow.float32()))
        case 6:
            return arrow.array([[[0.5]]] * count, arrow.list_(arrow.list_(arrow.float64())))
        case 7:
            return arrow.array(["same"] * count).dictionary_encode()
        case _:
            return arrow.array([random.choice((True, False, None)) for _ in range(count)])


def mutated_parquet(random: Random, content: bytes) -> bytes:
    """Return a Parquet file with a column of another type, name or length, or with other bytes."""
    if random.random() < 0.3:
        return mutation.mutate_bytes(random, content)
    table = parquet.read_table(io.BytesIO(content))
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    metadata = dict(table.schema.metadata or {})
    if random.random() < 0.03:  # 2 GB in a small file
        columns = dict.fromkeys(columns, arrow.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["n" * 20_000]))
    elif TEXT.encode() in metadata and random.random() < 0.5:
        text = mutation.dumped(mutation.mutate_json(random, json.loads(metadata[TEXT.encode()])))
        vectors = torch.tensor(columns["vector"].to_pylist())
        numbers = torch.tensor([int(label[1:]) for label in columns["label"].to_pylist()])
        encoded = text.encode(errors="replace")
        digest = sealed.tensors_digest(encoded.decode(), {"vectors": vectors, "labels": numbers})
        metadata |= {TEXT.encode(): encoded, b"digest": digest.encode()}
    if random.random() < 0.7:
        name = random.choice(sorted(columns))
        match random.randrange(5):
            case 0:
                del columns[name]
            case 1:
                columns[random.choice(("vector", "label", "split", "path", "class", "x"))] = columns.pop(name)
            case _:
                columns[name] = hostile_column(random, len(table))
    rows = min((len(column) for column in columns.values()), default=0)  # a file has as many cells in all columns
    changed = arrow.table({name: column[:rows] for name, column in columns.items()}).replace_schema_metadata(metadata)
    target = io.BytesIO()
    parquet.write_table(changed, target, compression=random.choice(COMPRESSIONS))
    return target.getvalue()


def resealed(random: Random, content: bytes, manifest: str = "") -> bytes:
    """Return a shard with its text or tensors changed, or only its manifest, and its checksum computed anew."""
    text, tensors = sealed.unseal(content, TEXT)
    values = json.loads(text)
    if manifest:
        values["manifest"] = manifest
    else:
        values = mutation.mutate_json(random, values) if random.random() < 0.7 else values
        tensors = mutation.mutate_tensors(random, tensors) if random.random() < 0.5 else tensors
    classes = mutation.dumped(mutation.mutate_json(random, values.get("classes"))) if isinstance(values, dict) else "[]"
    try:
        return sealed.seal(tensors, TEXT, mutation.dumped(values), classes=classes)
    except UnicodeEncodeError:  # no file holds such a text
        return content[:-1]


def attack_shards(attack: "Attack", random: Random) -> Act:
    """A folder of shards with its manifest or a shard changed, exchanged or missing."""
    kind = random.choice(("safetensors", "safetensors", "parquet"))
    folder = attack.place / "features"
    shutil.copytree(attack.inputs / f"shards-{kind}", folder)
    manifest = folder / "manifest.json"
    shards = sorted(folder.glob(f"*.{kind}"))
    shard = random.choice(shards)
    match random.randrange(8):
        case 0 | 1:
            values = mutation.mutate_json(random, json.loads(manifest.read_text()))
            manifest.write_text(mutation.dumped(values), errors="replace")
            if kind == "safetensors":  # the shards belong to what it says now
                try:
                    digest = msgspec.convert(values, Manifest).digest()
                except (msgspec.ValidationError, UnicodeEncodeError, ValueError):
                    digest = "0"
                for path in shards:
                    path.write_bytes(resealed(random, path.read_bytes(), digest))
        case 2:
            file = random.choice((manifest, shard))
            file.write_bytes(mutation.mutate_bytes(random, file.read_bytes()))
        case 3:
            shard.unlink()
            if random.random() < 0.5:
                shard.mkdir()
        case 4:
            shard.write_bytes(random.choice(shards).read_bytes())
        case _:
            shard.write_bytes((mutated_parquet if kind == "parquet" else resealed)(random, shard.read_bytes()))
    return read_as_features(random, folder)


def attack_features(attack: "Attack", random: Random) -> Act:
    """A file of features as .safetensors, .parquet or .npz, with the part of each vector."""
    match random.randrange(3):
        case 0:
            return read_as_features(
                random, attack.hostile_file("own.parquet", mutated_parquet(random, attack.right("features.parquet")))
            )
        case 1:
            arrays = dict(np.load(io.BytesIO(attack.right("parts.npz"))))
            name = random.choice(sorted(arrays))
            for _ in range(random.randint(1, 3)):
                arrays[name][random.randrange(len(arrays[name]))] = random.choice(
                    ("nan", "inf", "1e30") if name == "vectors" else ("train", "seen-test", "novel-test", "c00", "c13", "")
                )
            target = io.BytesIO()
            np.savez(target, **{key: array for key, array in arrays.items() if key == "vectors" or random.random() < 0.9})
            return read_as_features(random, attack.hostile_file("own.npz", target.getvalue()))
        case _:
            labels = torch.arange(CLASSES * OF_CLASS) % CLASSES
            tensors = {"vectors": torch.randn(len(labels), FEATURES, generator=torch.manual_seed(0)), "labels": labels}
            classes = mutation.mutate_json(random, [f"c{number:02d}" for number in range(CLASSES)])
            metadata = {"classes": json.dumps(classes)} if random.random() < 0.7 else {}
            content = save(mutation.mutate_tensors(random, tensors), metadata)
            content = mutation.mutate_bytes(random, content) if random.random() < 0.3 else content
            return read_as_features(random, attack.hostile_file("own.safetensors", content))


def read_as_features(random: Random, path: Path) -> Act:
    """Return one of the ways in which features are read, each with a check of what it gives."""
    skip_bad = random.random() < 0.5

    def labelled() -> None:
        vectors, labels, parts = read_features(path)
        assert vectors.ndim == 2
        assert vectors.dtype == np.float32
        assert len(vectors) == len(labels) == len(labels if parts is None else parts)
        assert all(isinstance(text, str) for text in (*labels, *(parts or ())))

    def unlabelled() -> None:
        names, vectors = read_vectors(path, skip_bad, Silent())
        assert len(names) == len(vectors) > 0
        assert np.isfinite(vectors).all()
        assert all(isinstance(name, str) for name in names)

    def trained() -> None:
        dataset = open_features(path, Silent(), skip_bad)
        for part in DATASET_PARTS:
            pool = getattr(dataset, part)
            assert pool.counts.min() > 0
            assert dataset.store.gather(pool.images[pool.images >= 0]).isfinite().all()

    def in_turn() -> None:
        reader = ShardReader(path)
        assert len(reader.vectors(0, len(reader.names))) == len(reader.names)

    ways: list[Act] = [labelled, unlabelled, trained, *([in_turn] if path.is_dir() else [])]
    return random.choice(ways)


def attack_list(attack: "Attack", random: Random) -> Act:
    """A list of images: a table beside them or in their folder, class folders, or a tar."""
    folder = attack.place / "images"
    shutil.copytree(attack.inputs / "images", folder)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    rows = [{"file_name": name, "label": name[:2]} for name in names]
    source, form = folder, random.choice(FORMS)
    if form == "parts":
        odd_parts(random, folder)
    elif form in ("tar", "tars"):
        source = attack.place / ("own.tar" if form == "tar" else "tars")
        for number in range(1 if form == "tar" else 3):
            attack.hostile_file("own.tar" if form == "tar" else f"tars/{number}.tar", hostile_tar(random, folder / names[0]))
    else:
        name = f"images/{form}" if form.startswith("metadata") else f"images/own.{form}"
        path = attack.hostile_file(name, hostile_table(random, rows, form))
        source = folder if form.startswith("metadata") else path
    labelled, skip_bad = random.random() < 0.7, random.random() < 0.5

    def act() -> None:
        listed = list_images(source, labelled, skip_bad, Silent())
        assert len(listed.digest()) == 32
        assert len({image.name for image in listed.images}) == len(listed.images)
        assert all((image.label is None) != listed.labelled for image in listed.images)
        for image in listed.resolved().images:
            assert image.size() >= 0 or skip_bad
            contents = image.contents.read() if isinstance(image.contents, TarMember) else image.contents
            assert PREPARATION.read(contents, image.name).shape == (3, 8, 8)

    return act


def hostile_table(random: Random, rows: list[dict[str, str]], form: str) -> bytes:
    """Return a table of images with cells, lines or columns changed."""
    if form.endswith("csv"):
        lines = ["file_name,label", *(f"{row['file_name']},{row['label']}" for row in rows)]
        return mutation.mutate_text(random, "\n".join(lines))
    if form.endswith("jsonl"):
        changed = mutation.mutate_json(random, rows)
        content = "\n".join(map(mutation.dumped, changed if isinstance(changed, list) else [changed])).encode(errors="replace")
        return mutation.mutate_bytes(random, content, 1) if random.random() < 0.2 else content
    target = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows), target)
    return mutated_parquet(random, target.getvalue())


def odd_parts(random: Random, folder: Path) -> None:
    """Move class folders below folders of parts, with names that are and are not those of parts."""
    for number, name in enumerate(sorted(path.name for path in folder.iterdir())):
        part = folder / random.choice(("train", "test", "val", "validation", "Train", "train ", "other", "metadata.csv"))
        part.mkdir(exist_ok=True)
        odd_name = random.choice((name, name.upper(), f"{number}", "train", "x" * 200, "\udcff"))
        if not (part / odd_name).exists():
            (folder / name).rename(part / odd_name)
        if random.random() < 0.3:
            (part / random.choice(("1.png", "metadata.jsonl", "a.tar"))).write_bytes(random.randbytes(20))


def hostile_tar(random: Random, image: Path) -> bytes:
    """Return a tar as webdataset lays it out, with odd names, links, headers and labels."""
    form = random.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    target, pixels = io.BytesIO(), image.read_bytes()
    with tarfile.open(fileobj=target, mode=random.choice(("w", "w", "w", "w:gz")), format=form) as tar:
        for _ in range(random.randint(1, 5)):
            name = random.choice((*MEMBER_NAMES, *MEMBER_NAMES[:6] * 3, mutation.hostile_name(random)))
            member = tarfile.TarInfo(name if form != tarfile.USTAR_FORMAT else name.encode("ascii", "ignore").decode()[:90])
            content = pixels
            if ".json" in name:
                content = mutation.dumped(mutation.mutate_json(random, {"label": "owl", "width": 3})).encode(errors="replace")
            elif ".cls" in name:
                content = str(random.choice((*mutation.VALUES[:-1], "owl", "7"))).encode(errors="surrogateescape")
            if random.random() < 0.1:
                member.type = random.choice((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE))
                member.linkname = random.choice(("/etc/passwd", "../x", "1.png"))
            if form == tarfile.PAX_FORMAT and random.random() < 0.2:
                value = random.choice(("-1", "0", "9" * 30, "x", "1,2", "\0", "/etc/passwd", "1e9"))
                member.pax_headers = {random.choice(PAX_HEADERS): value}
            member.size = len(content) if member.isreg() else 0
            try:
                tar.addfile(member, io.BytesIO(content))
            except (ValueError, UnicodeError):  # this form has no such name
                continue
    content = target.getvalue()
    return mutation.mutate_bytes(random, content) if random.random() < 0.3 else content
