"""Hostile inputs of each kind. An input is made by a seed, and read as a user would have it read."""

import io
import json
import pickle
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attack import mutation
from attack.guard import QUICK_SECONDS, Watch, watched
from attack.hostile_features import attack_features, attack_list, attack_shards, write_right_inputs
from kept import SPARSE, blobs
from paper.made_up import make_run
from protograph import AttributeRelation, Classifier
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph._internal.sealed import seal, unseal
from protograph._internal.segments import MAGIC, SEAL, NewSegment, Reader, Segment, write_segment
from protograph._internal.unpickle import read_pickled_arrays
from protograph.classifier import segmented_file
from protograph.classifier.history import history
from protograph.classifier.inspection import inspect_model
from protograph.classifier.model_file import append_model, pack
from protograph.classifier.segmented_file import BASE_METADATA, CHANGES, VALUES, append_return, list_segments
from protograph.cli.compare import comparison_of_runs
from protograph.cli.display import visible
from protograph.data.datasets.features import read_features, read_vectors
from protograph.data.reading import read_columns, unpacked
from protograph.encoders.preparation import Preparation
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, entry_path, read_ledger, record_run, scores
from protograph.paper.published import Cell
from protograph.paper.tables import last_epoch_rows, learned_rows
from protograph.paper.trials import read_trials, trial_of, write_trials
from protograph.relations import AttributeRelation as Attributes
from protograph.relations import EdgeRelation, EmbeddingRelation, MatrixRelation, WordNetRelation
from protograph.report.document import plain_text
from protograph.report.run_page import measures_block
from protograph.training.run_folder import Checkpoint, Run
from relations.wordnet_files import write_wordnet

NAMES = ("a", "b", "c", "d", "e", "f")
MEMBER_TYPES = (*(tarfile.REGTYPE,) * 3, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
PICKLED_NAMES = (
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n",
)  # fmt: skip
PICKLED_CALLS = (
    b"(S'true'\ntR", b"(I9\nS'O8'\ntR", b")R", b"(tR", b"\x81", b"b", b"(S'O8'\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb",
)  # fmt: skip
TASK = Task(Cell("cub", 1, "gcgpn-aux"), "fast", 0)
FEW_SHOT_TASK = Task(Cell("cub", 1, "maml"), "fast", 0)
WARM_UP = 20  # inputs of each kind, in which all is imported that inputs may need
PREPARATION = Preparation((3, 8, 8), (0.0,) * 3, (1.0,) * 3, (8, 8))


class Attack:
    """Right inputs of all kinds in a folder, from which hostile ones are made.

    Args:
        folder: An empty folder.

    """

    def __init__(self, folder: Path) -> None:
        self.inputs, self.place = folder / "right", folder / "hostile"
        self.inputs.mkdir(parents=True)
        self.features, labels = blobs()
        self.queries = self.features[::7].astype(np.float32)
        self.models, self.small_model = self._models(labels), self._small_model()
        self.large_models = self._large_models()
        self.images = self._images()
        self.pickles = [pickle.dumps(content, protocol) for protocol in (0, 2, 4, 5) for content in self._pickled()]
        self._tables()
        self._folders()
        write_right_inputs(self.inputs)
        for kind, make in KINDS.items():  # what is imported late is imported now, unwatched
            for seed in range(WARM_UP):
                self._clear()
                with suppress(Exception):
                    make(self, Random(f"{kind} {seed}"))()

    def read(self, kind: str, seed: int, counted: bool = True) -> tuple[bool, Watch]:
        """Make the input of a seed, read it, and return whether it was answered, not refused, and what was seen.

        Args:
            kind: The kind of the input.
            seed: The seed.
            counted: Whether calls are counted from the start. Otherwise an input that takes long is read again, and then they
                are counted.

        Raises:
            BaseException: Whatever is neither a right answer nor an `InputError`.

        """
        self._clear()
        act = KINDS[kind](self, Random(f"{kind} {seed}"))
        answered = True
        with watched(self.place, counted=counted) as watch:
            try:
                act()
            except InputError:  # one line that ends, by its constructor
                answered = False
        if not counted and watch.seconds > QUICK_SECONDS:
            return self.read(kind, seed)
        return answered, watch

    def _clear(self) -> None:
        if self.place.exists():
            if not any(self.place.iterdir()):
                return
            shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()

    def _small_model(self) -> bytes:
        """Return a model file of two classes without relations: hostile names are read into it, whatever else it holds."""
        Classifier().fit(self.features[:12], ["a", "b"] * 6).save(self.inputs / "small.pg")
        return (self.inputs / "small.pg").read_bytes()

    def _models(self, labels: Any) -> list[bytes]:
        table = AttributeRelation(torch.eye(6, 3) + 0.1, list(NAMES))
        gaussian = Classifier(unknown=0.1, keep_features=True).fit(self.features, labels, {"look": table, "by hand": SPARSE})
        gaussian.add_class("x", self.features[:2], {"look": "a", "by hand": {"a": 0.5}}).add_examples("a", self.features[:3])
        variant = Classifier(variant="gcgpn-aux", steps=2).fit(self.features, labels, SPARSE)
        variant.add_class("x", self.features[:1], {"a": 0.5})
        floats = Classifier(variant="gcgpn-cos-aux", steps=0).fit(
            self.features.astype(np.float32), [float(ord(label)) for label in labels]
        )
        contents = []
        for index, classifier in enumerate((gaussian, variant, floats)):
            classifier.save(self.inputs / f"{index}.pg")
            contents.append((self.inputs / f"{index}.pg").read_bytes())
        return contents

    def _large_models(self) -> list[tuple[bytes, list[NewSegment]]]:
        """Return large model files with a few changes, and what their segments were written from."""
        read = []
        for index in range(len(self.models)):
            path = self.inputs / f"large-{index}.pg"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
                patch.setattr(segmented_file, "LARGEST_APPENDED", 1000)
                Classifier.load(self.inputs / f"{index}.pg").save(path)
                known = Classifier.load(path)
                first = known.classes_.tolist()[0]
                known.add_class(7.5 if known.classes_.dtype.kind == "f" else "y", self.features[:2]).save(path)
                known.remove_class(first).save(path)
                append_return(path, list_segments(path).segments[1].digest)
            listed = list_segments(path)
            numbers = {segment.digest: str(number) for number, segment in enumerate(listed.segments)}
            with path.open("rb", buffering=0) as file:
                reader = Reader(file, listed.stop)
            segments = [
                NewSegment(header.kind, numbers.get(header.on, ""), header.note, reader.tensors(segment), BASE_METADATA)
                for segment in listed.segments
                for header in (segment.header,)
            ]
            read.append((path.read_bytes(), segments))
        return read

    def _images(self) -> list[bytes]:
        random = np.random.default_rng(0)
        images = []
        for mode in ("RGB", "L", "P", "RGBA", "I;16"):
            array = random.integers(0, 255, (12, 10, {"RGB": 3, "RGBA": 4}.get(mode, 1)), dtype=np.uint8).squeeze()
            image = Image.fromarray(array.astype(np.uint16) if mode == "I;16" else array)
            image = image.convert("P") if mode == "P" else image
            for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"):
                content = io.BytesIO()
                try:
                    image.save(content, form)
                except (OSError, ValueError, KeyError):  # not every form has every mode
                    continue
                images.append(content.getvalue())
        return images

    def _pickled(self) -> list[Any]:
        array = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
        return [{"image_data": array, "class_dict": {"a": [0, 1]}}, {b"data": array, "labels": ["a", "b"], "n": np.float32(1)}]

    def _tables(self) -> None:
        np.savez(self.inputs / "features.npz", vectors=self.queries, labels=np.array(list("aabbccddeef")[: len(self.queries)]))
        np.savez(self.inputs / "matrix.npz", names=np.array(NAMES), similarities=np.eye(6))
        np.savez(self.inputs / "edges.npz", names=np.array(NAMES), similarities=np.ones(2), edges=np.array([[0, 1], [1, 2]]))
        numbers = "\n".join(f"{name},{row},{row % 3}.5,1e-3" for row, name in enumerate(NAMES))
        self.texts = {
            "attributes.csv": "class,wing,leg,tail\n" + numbers,
            "matrix.csv": "," + ",".join(NAMES) + "\n" + "\n".join(f"{name}," + ",".join("1" * 6) for name in NAMES),
            "words.txt": "6 3\n" + numbers.replace(",", " "),
            "edges.csv": "a,b,0.5\nb,c,1\nc,d,2\ne,f,0.1",
            "edges.graphml": '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="w" for="edge" attr.name="weight" '
            'attr.type="double"/><graph edgedefault="directed"><node id="a"/>\n<node id="b"/>\n<edge source="a" target="b">'
            '<data key="w">0.5</data></edge></graph></graphml>',
        }

    def _folders(self) -> None:
        record_run(self.inputs / "results", TASK, self._run("run", TASK, {}))
        self.entry = entry_path(self.inputs / "results", TASK)
        alone = {"novel_novel": {"mean": 48.0, "ci95": 0.8}}
        others = {"support": {"measures": alone}, "running": {"measures": alone}}
        self._run("few-shot run", FEW_SHOT_TASK, {"measures": alone, "statistics": "queries", "other_statistics": others})
        trial = "dataset,shots,variant,recipe,relations,changes,seed,epoch,joint_joint"
        self.texts["trials.csv"] = f"{trial}\nletters,1,gcgpn-aux,demo,base,rate=0.1,0,3,50.5"
        write_wordnet(self.inputs / "wordnet")

    def _run(self, name: str, task: Task, measured: dict[str, Any]) -> Path:
        """Write a run folder as a training leaves it behind, and return it."""
        run = make_run(self.inputs / name, task)
        measures = {**json.loads((run / "measures.json").read_text()), **measured}
        (run / "measures.json").write_text(json.dumps(measures))
        line = {"epoch": 1, "loss": 0.5, "rate": 0.1, "validation": measures["measures"]}
        (run / "epochs.jsonl").write_text(json.dumps(line) + "\n")
        Run.open(run).save(Checkpoint({"best.x": torch.ones(2), "last.x": torch.ones(2)}, 1, 1, 0.5, 1.0, [line]))
        return run

    def right(self, name: str) -> bytes:
        """Return a right input."""
        return (self.inputs / name).read_bytes()

    def hostile_file(self, name: str, content: bytes) -> Path:
        """Write a file, and return its path."""
        path = self.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path


Act = Callable[[], object]


def attack_model(attack: Attack, random: Random) -> Act:
    """A model file: its JSON, tensors or header changed and its checksum computed anew, or its bytes changed."""
    content = random.choice(attack.models)
    if random.random() < 0.15:
        content = mutation.mutate_bytes(random, content)
    else:
        text, tensors = unseal(content, "classifier")
        values = json.loads(text)
        if random.random() < 0.75:
            values = mutation.mutate_json(random, values)
        if random.random() < 0.4:
            tensors = mutation.mutate_tensors(random, tensors)
        text, version = mutation.dumped(values), random.choice(["1", "2", "3", "3", "3", "3", "99", "-1", "x", "٣"])
        try:
            content = seal(tensors, "classifier", text, format="protograph-classifier", version=version, protograph="0")
        except UnicodeEncodeError:  # no file holds such a text
            content = content[:-1]
    path = attack.hostile_file("model.pg", content)

    def act() -> None:
        with suppress(InputError):
            assert sum(tensor.size for tensor in inspect_model(path).tensors) <= 2 * len(content)
        classifier = Classifier.load(path)
        if len(classifier.classes_):
            check_answers(classifier, attack.queries)
        classifier.add_class(99.5 if classifier.classes_.dtype.kind == "f" else "new", attack.queries[:2])
        check_answers(classifier, attack.queries)
        classifier.save(path)
        check_answers(Classifier.load(path), attack.queries)

    return act


def check_answers(classifier: Classifier, queries: Any) -> None:
    """Assert that a classifier gives an answer about each query: probabilities of all classes, which sum to one."""
    if classifier.n_features_in_ != queries.shape[1]:
        return
    probabilities = classifier.predict_proba(queries)
    assert np.isfinite(probabilities).all()
    assert np.allclose(probabilities.sum(1), 1, atol=1e-3)
    assert len(set(classifier.classes_.tolist())) == probabilities.shape[1]
    assert len(classifier.predict(queries)) == len(queries)


def attack_large_model(attack: Attack, random: Random) -> Act:
    """A large model file: what its segments say, their tensors or headers changed, with right digests, or its bytes."""
    content, segments = random.choice(attack.large_models)
    path = attack.hostile_file("model.pg", b"")
    if random.random() < 0.15:
        path.write_bytes(mutation.mutate_bytes(random, content))
    else:
        write_mutated(random, path, segments)

    def act() -> None:
        with suppress(InputError):
            inspect_model(path)
        with suppress(InputError):
            history(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
            classifier = Classifier.load(path)
            if len(classifier.classes_):
                check_answers(classifier, attack.queries)
            classifier.add_class(99.5 if classifier.classes_.dtype.kind == "f" else "new", attack.queries[:2])
            append_model(path, pack(classifier._contents()))
            check_answers(Classifier.load(path), attack.queries)

    return act


def write_mutated(random: Random, path: Path, segments: list[NewSegment]) -> None:
    """Write segments of which a few are changed, dropped or repeated; `on` is the number of the state that is changed."""
    chosen = [segment for segment in segments if random.random() < 0.95]
    made: list[Segment] = []
    with path.open("r+b", buffering=0) as file:
        for segment in chosen:
            tensors, note, kind, on = dict(segment.tensors), segment.note, segment.kind, segment.on
            if random.random() < 0.5:
                name = VALUES if VALUES in tensors else CHANGES
                values = mutation.mutate_json(random, json.loads(bytes(tensors.pop(name).tolist()))) if name in tensors else {}
                if random.random() < 0.4:
                    tensors = mutation.mutate_tensors(random, tensors)
                text = mutation.dumped(values).encode(errors="replace")
                tensors[name] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            if random.random() < 0.1:
                note = mutation.mutate_json(random, note)
            if random.random() < 0.1:
                kind, on = random.choice(("base", "change", "return")), random.choice(("", "0", "1"))
            digest = made[int(on)].digest if on and int(on) < len(made) else ""
            note = note if isinstance(note, dict) else {"": note}
            try:
                new = NewSegment(kind, digest, note, tensors, BASE_METADATA)
                made.append(write_segment(file, new, made[-1] if made else None, random.choice((0, 2, 16))))
            except (KeyError, UnicodeEncodeError, ValueError):  # no file holds such a type, or such a text
                file.truncate(made[-1].stop if made else 0)
        if made and random.random() < 0.4:
            last = made[-1]
            file.seek(last.start)
            content = file.read()
            mutated = mutation.mutate_json(random, json.loads(content[8 : last.data - last.start]))
            text = mutation.dumped(mutated).encode(errors="replace")
            text += b" " * (-(8 + len(text)) % 64)
            data = content[last.data - last.start : -SEAL.size]
            length = 8 + len(text) + len(data) + SEAL.size
            seal_bytes = SEAL.pack(MAGIC, last.start, length, blake2b(text, digest_size=16).digest())
            file.seek(last.start)
            file.truncate()
            file.write(len(text).to_bytes(8, "little") + text + data + seal_bytes)


def attack_image(attack: Attack, random: Random) -> Act:
    """An image whose bytes were changed, cut, joined with another's, or given another size."""
    content = random.choice(attack.images)
    if random.random() < 0.2:
        other, at = random.choice(attack.images), random.randrange(len(content))
        content = content[:at] + other[random.randrange(len(other)) :]
    if random.random() < 0.2:
        content = resized(random, content)
    path = attack.hostile_file("image.png", mutation.mutate_bytes(random, content))

    def act() -> None:
        pixels = PREPARATION.read(path, "image")
        assert pixels.shape == (3, 8, 8)
        assert pixels.dtype == torch.uint8

    return act


def resized(random: Random, content: bytes) -> bytes:
    """Return an image with an extreme size in its header, where the header of its form says it."""
    width, height = (random.choice((0, 1, 30_000, 65_500, 2**31 - 1)) for _ in range(2))
    if content.startswith(b"\x89PNG"):
        head = b"IHDR" + struct.pack(">II", width, height) + content[24:29]
        return content[:12] + head + struct.pack(">I", zlib.crc32(head)) + content[33:]
    if content.startswith(b"GIF8"):
        return content[:6] + struct.pack("<HH", width % 65_536, height % 65_536) + content[10:]
    if content.startswith(b"BM"):
        return content[:18] + struct.pack("<II", width, height) + content[26:]
    return content


def attack_table(attack: Attack, random: Random) -> Act:
    """A table of features, attributes, word vectors or similarities."""
    name = random.choice(["features.npz", "matrix.npz", "edges.npz", "attributes.csv", "matrix.csv", "words.txt"])
    if name.endswith(".npz"):
        content = (attack.inputs / name).read_bytes()
        content = mutated_npz(random, content) if random.random() < 0.6 else mutation.mutate_bytes(random, content)
    else:
        content = mutation.mutate_text(random, attack.texts[name])
    path = attack.hostile_file(name, content)
    readers: dict[str, Act] = {
        "features.npz": lambda: (read_features(path), read_vectors(path, True, Silent())),
        "attributes.csv": lambda: (read_columns(path, "class"), check_matrix(Attributes.read(path).similarities(("a", "b")))),
        "words.txt": lambda: check_matrix(EmbeddingRelation.read(path).similarities(("a", "b"))),
    }
    return readers.get(name, lambda: check_matrix(MatrixRelation.read(path).similarities(("a", "b"))))


def check_matrix(similarities: torch.Tensor) -> None:
    """Assert that similarities are those of two classes."""
    assert similarities.shape == (2, 2)
    assert similarities.to_dense().isfinite().all()


def mutated_npz(random: Random, content: bytes) -> bytes:
    """Return an archive of arrays of which one has another header, or more zeros than it says."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as changed:
        for entry in archive.namelist():
            array = archive.read(entry)
            if random.random() < 0.5:
                shape = tuple(random.choice((0, 1, 2, 6, 11, 10**6, 2**40, -1)) for _ in range(random.randint(0, 3)))
                head = io.BytesIO()
                dtype = random.choice((*mutation.KINDS, "<f8", "<U1", "<i4"))
                np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
                array = head.getvalue() + array[128:] + bytes(random.choice((0, 0, 10**6)))
            if random.random() < 0.9:
                changed.writestr(random.choice((entry, entry, entry, "../x.npy")), array)
    return target.getvalue()


def attack_relation(attack: Attack, random: Random) -> Act:
    """A graph as CSV or GraphML, or a WordNet."""
    if random.random() < 0.3:
        folder = attack.place / "wordnet"
        shutil.copytree(attack.inputs / "wordnet", folder)
        file = folder / random.choice(["index.noun", "data.noun", "noun.exc"])
        file.write_bytes(mutation.mutate_bytes(random, file.read_bytes()))
        return lambda: check_matrix(WordNetRelation(folder).similarities(("crane", "finch")))
    name = random.choice(["edges.csv", "edges.graphml"])
    path = attack.hostile_file(name, mutation.mutate_text(random, attack.texts[name]))
    measure = random.choice(["path", "adjacency"])
    return lambda: check_matrix(EdgeRelation.read(path, measure=measure).similarities(("a", "b")))


def attack_archive(attack: Attack, random: Random) -> Act:
    """A .zip or .tar with members outside, links, devices, false sizes, or changed bytes."""
    content, names = io.BytesIO(), ["a/1.png", "../x", "/tmp/x", "a/../../x", "a", "a/b/../c", ".", "..\\x", "C:/x", "n" * 300]
    names.append(mutation.hostile_name(random))
    if suffix := random.choice(["", ".zip"]):
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for _ in range(random.randint(0, 4)):
                name = random.choice(names).encode(errors="replace").decode()
                entry = zipfile.ZipInfo(name or "x")
                entry.external_attr = random.choice((0, 0o120777 << 16, 0o100644 << 16))
                archive.writestr(entry, random.choice((b"x", b"/etc/passwd", bytes(10**5))))
    else:
        suffix = random.choice([".tar", ".tgz"])
        with tarfile.open(fileobj=content, mode="w:gz" if suffix == ".tgz" else "w") as packed:
            for _ in range(random.randint(0, 4)):
                member = tarfile.TarInfo(random.choice(names) or "x")
                member.type = random.choice(MEMBER_TYPES)
                member.linkname = random.choice(("/etc/passwd", "../x", "a"))
                member.mode = random.choice((0o644, 0o4777, 0))
                member.size = random.choice((1, 5)) if member.isreg() else 0
                packed.addfile(member, io.BytesIO(b"12345"))
    damaged = mutation.mutate_bytes(random, content.getvalue()) if random.random() < 0.4 else content.getvalue()
    path = attack.hostile_file(f"own{suffix}", damaged)
    cache = attack.place / "cache"

    def act() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PROTOGRAPH_CACHE", str(cache))
            folder = unpacked([path], Silent())
        assert all(not file.is_symlink() and (file.is_file() or file.is_dir()) for file in folder.rglob("*"))

    return act


def attack_pickle(attack: Attack, random: Random) -> Act:
    """A pickle of arrays with bytes and opcodes changed, or with names of code."""
    content = random.choice(attack.pickles)
    if random.random() < 0.4:
        place = random.randrange(len(content))
        content = content[:place] + random.choice(PICKLED_NAMES) + random.choice(PICKLED_CALLS) + content[place:]
    if random.random() < 0.8:
        content = mutation.mutate_bytes(random, content)
    path = attack.hostile_file("own.pkl", content)

    def act() -> None:
        assert isinstance(read_pickled_arrays(path), dict)

    return act


def attack_run(attack: Attack, random: Random, name: str = "run", task: Task = TASK) -> Act:
    """A run folder with a file changed, or missing."""
    folder = attack.place / "run"
    shutil.copytree(attack.inputs / name, folder)
    file = random.choice(sorted(path for path in folder.iterdir() if path.is_file()))
    if file.suffix == ".safetensors" and random.random() < 0.7:
        text, tensors = unseal(file.read_bytes(), "progress")
        values = mutation.mutate_json(random, json.loads(text))
        try:
            file.write_bytes(seal(mutation.mutate_tensors(random, tensors), "progress", mutation.dumped(values)))
        except UnicodeEncodeError:
            file.unlink()
    elif file.suffix == ".safetensors" or random.random() < 0.15:
        file.write_bytes(mutation.mutate_bytes(random, file.read_bytes()))
    elif file.suffix == ".jsonl":
        file.write_text(mutation.dumped(mutation.mutate_json(random, json.loads(file.read_text()))), errors="replace")
    else:
        file.write_text(mutation.dumped(mutation.mutate_json(random, json.loads(file.read_text()))), errors="replace")

    def read(run: Run) -> None:
        measures_block(run.measures or {"epoch": 0, "measures": {}})
        check_curves(run.history)
        run.load()
        _ = run.fingerprint

    def compare(run: Run) -> None:
        trial = trial_of(run)
        comparison_of_runs([(str(folder), *trial)])
        write_trials(attack.place / "trials.csv", [trial])
        assert len(read_trials(attack.place / "trials.csv")) == 1

    def record(_: Run) -> None:
        record_run(attack.place / "results", task, folder)
        assert len(read_ledger(attack.place / "results")) == 1

    uses = random.choice((read, compare, record))
    return lambda: uses(Run.open(folder))


def check_curves(history: list[dict[str, Any]]) -> None:
    """Assert that the curves of a run can be drawn, short of drawing them."""
    for epoch in history:
        _ = float(epoch["epoch"]), float(epoch["loss"])
        measures = epoch["validation"]
        _ = [float(measures["h_mean" if "h_mean" in measures else "novel_novel"][key]) for key in ("mean", "ci95")]


def attack_few_shot_run(attack: Attack, random: Random) -> Act:
    """A run folder of a few-shot method, which has measures by the statistics of batch norm."""
    return attack_run(attack, random, "few-shot run", FEW_SHOT_TASK)


def attack_ledger(attack: Attack, random: Random) -> Act:
    """A ledger with an entry or the trials changed."""
    results = attack.place / "results"
    shutil.copytree(attack.inputs / "results", results)
    if random.random() < 0.4:
        path = attack.hostile_file("results/trials.csv", mutation.mutate_text(random, attack.texts["trials.csv"]))
        return lambda: read_trials(path)
    file = results / attack.entry.relative_to(attack.inputs / "results")
    if random.random() < 0.15:
        file.write_bytes(mutation.mutate_bytes(random, file.read_bytes()))
    else:
        file.write_text(mutation.dumped(mutation.mutate_json(random, json.loads(file.read_text()))), errors="replace")
    return lambda: check_tables(read_ledger(results))


def check_tables(ledger: dict[Task, Entry]) -> None:
    """Assert that the tables of runs can be made of a ledger."""
    _ = list(learned_rows(ledger)), list(last_epoch_rows(ledger)), scores(ledger, "fast")


def attack_name(attack: Attack, random: Random) -> Act:
    """Names of classes and files."""
    names = [mutation.hostile_name(random) for _ in range(2)]
    model = attack.hostile_file("model.pg", attack.small_model)

    def act() -> None:
        for name in names:
            shown = visible(name)
            assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
            assert "\n" not in plain_text(name)
            shown.encode()
        classifier = Classifier.load(model)
        classifier.add_class(names[0], attack.queries[:1]).rename_class(names[0], names[1])
        classifier.save(model)
        assert Classifier.load(model).classes_.tolist() == classifier.classes_.tolist()
        assert names[1] in classifier.classes_.tolist()

    return act


# `make attack` numbers the inputs of these kinds by turns, so that this table stays as it is
KINDS: dict[str, Callable[[Attack, Random], Act]] = {
    "model files": attack_model,
    "images": attack_image,
    "tables": attack_table,
    "relations": attack_relation,
    "archives": attack_archive,
    "pickles": attack_pickle,
    "run folders": attack_run,
    "ledgers": attack_ledger,
    "names": attack_name,
    "few-shot runs": attack_few_shot_run,
    "shards": attack_shards,
    "features": attack_features,
    "image lists": attack_list,
    "large model files": attack_large_model,
}
