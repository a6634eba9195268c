import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from served import encoder, photographs

from protograph import Classifier, InputError
from protograph.classifier import segmented_file
from protograph.classifier.estimator import Classifier as Loaded
from protograph.serve.model_host import ModelHost, Opening, same_encoder

Heard = list[tuple[str, str | None]]


def host_of(model: Path, work: Callable[[ModelHost, Heard], Awaitable[None]]) -> None:
    async def scenario() -> None:
        heard: Heard = []
        host = ModelHost(Opening(model), lambda version, what: heard.append((version, what)))
        try:
            await work(host, heard)
        finally:
            host.close()

    asyncio.run(scenario())


def test_the_encoder_is_opened_once_however_often_the_file_changes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(host: ModelHost, heard: Heard) -> None:
        first = await host.current()
        opened = []
        monkeypatch.setattr("protograph.encoders.base.KeptEncoder.opened", lambda self: opened.append(self))
        features = first.encoder.encode(photographs("blue", 2))
        before, after, _ = await host.change("added", lambda birds: birds.add_class("blue", features), first.encoder)
        assert before is first
        with Classifier.edit(model) as other:
            other.remove_class("red")
        last = await host.current()
        assert last.classifier.classes_.tolist() == ["blue", "green"]
        assert last.encoder is after.encoder is first.encoder
        assert last.classifier.encoder_ is first.encoder
        assert not opened
        assert heard == [(after.version, "added"), (last.version, "removed 'red'")]
        assert first.classifier.classes_.tolist() == ["green", "red"]  # who asked before goes on with what was

    host_of(model, work)


def test_changes_are_appended_to_a_large_file_and_seen(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
    monkeypatch.setattr(segmented_file, "LARGEST_APPENDED", 1000)
    Classifier.load(model).save(model)
    beginning = model.read_bytes()

    async def work(host: ModelHost, heard: Heard) -> None:
        first = await host.current()
        features = first.encoder.encode(photographs("blue", 2))
        _, after, _ = await host.change("added", lambda birds: birds.add_class("blue", features), first.encoder)
        with Classifier.edit(model) as other:
            other.remove_class("red")
        last = await host.current()
        _, undone, what = await host.step(Classifier.undo, "undone")
        assert what == "undone: removed 'red'"
        assert undone.version == after.version != last.version
        assert undone.classifier.classes_.tolist() == ["blue", "green", "red"]
        assert [version for version, _ in heard] == [after.version, last.version, after.version]
        assert last.classifier.classes_.tolist() == ["blue", "green"]  # who asked before goes on with what was

    host_of(model, work)
    assert model.read_bytes().startswith(beginning)


def test_a_file_that_cannot_be_read_any_more_is_served_as_it_was(model: Path) -> None:
    async def work(host: ModelHost, heard: Heard) -> None:
        content, first = model.read_bytes(), host.served
        model.write_bytes(content[: len(content) // 2])
        assert await host.current() is first
        with pytest.raises(InputError, match=r"is damaged|is not a model file"):
            await host.change("x", lambda birds: birds.remove_class("red"))
        model.unlink()
        assert await host.current() is first
        with pytest.raises(InputError, match="there is no model file"):
            await host.change("x", lambda birds: birds.remove_class("red"))
        model.write_bytes(content)
        again = await host.current()
        assert again is not first
        assert again.version == first.version
        assert not heard

    host_of(model, work)


def test_a_new_version_without_a_history_is_announced_all_the_same(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: Path) -> None:
        raise InputError("there is no model file")

    async def work(host: ModelHost, heard: Heard) -> None:
        monkeypatch.setattr("protograph.serve.model_host.history", gone)
        Classifier.load(model).rename_class("red", "scarlet").save(model)
        served = await host.current()
        assert heard == [(served.version, None)]

    host_of(model, work)


def test_features_of_another_encoder_are_refused(model: Path) -> None:
    async def work(host: ModelHost, heard: Heard) -> None:
        features, old = torch.randn(2, host.served.encoder.features), host.served.encoder
        other = Classifier(encoder()).fit([*photographs("red", 2), *photographs("blue", 2)], ["a", "a", "b", "b"])
        other.encoder_.preparation = type(old.preparation)(  # type: ignore[union-attr]
            **{**old.preparation.to_dict(), "interpolation": "bicubic"}
        )
        other.save(model)
        with pytest.raises(InputError, match=r"birds.pg has another encoder now: send the images again"):
            await host.change("x", lambda birds: birds.add_class("c", features), old)
        assert not same_encoder(other.encoder_, old)

    usual = encoder().preparation
    try:
        host_of(model, work)
    finally:
        encoder().preparation = usual


def test_changes_of_two_writers_follow_one_another_and_readers_go_on(model: Path) -> None:
    async def work(host: ModelHost, heard: Heard) -> None:
        features = host.served.encoder.encode(photographs("blue", 1))
        stop = asyncio.Event()
        seen: set[tuple[str, ...]] = set()

        async def read() -> None:
            while not stop.is_set():
                served = await host.current()
                labels = tuple(served.classifier.classes_.tolist())
                assert len(served.classifier.predict(features)) == 1
                assert len(served.classifier.prototypes_) == len(labels)
                seen.add(labels)
                await asyncio.sleep(0.001)

        def add(index: int) -> Awaitable[Any]:
            return host.change(f"added s{index}", lambda birds: birds.add_class(f"s{index}", features))

        def command() -> None:
            for index in range(5):
                with Classifier.edit(model) as birds:
                    birds.add_class(f"c{index}", features)

        reader, other = asyncio.create_task(read()), threading.Thread(target=command)
        other.start()
        await asyncio.gather(*(add(index) for index in range(5)))
        await asyncio.to_thread(other.join)
        stop.set()
        await reader
        wanted = {"red", "green", *(f"{letter}{index}" for letter in "cs" for index in range(5))}
        assert {*(await host.current()).classifier.classes_.tolist()} == wanted
        assert all({"red", "green"} <= {*labels} <= wanted for labels in seen)

    host_of(model, work)


def test_notes_of_a_change_are_told(model: Path) -> None:
    async def work(host: ModelHost, heard: Heard) -> None:
        import warnings

        def noted(birds: Loaded) -> None:
            warnings.warn_explicit("Corrupt EXIF data", UserWarning, "/lib/PIL/TiffImagePlugin.py", 1)
            warnings.warn("class 'x' is taken as unrelated", stacklevel=1)
            birds.rename_class("red", "x")

        _, _, notes = await host.change("renamed", noted)
        assert notes == ["class 'x' is taken as unrelated"]

    host_of(model, work)


def test_a_classifier_of_features_is_not_served(tmp_path: Path) -> None:
    Classifier().fit(torch.eye(4).numpy(), ["a", "a", "b", "b"]).save(tmp_path / "f.pg")
    with pytest.raises(InputError, match="was fitted on features, so it cannot be shown images"):
        ModelHost(Opening(tmp_path / "f.pg"), lambda version, what: None)


def test_paths_that_a_file_names_are_opened_only_where_the_user_names_them(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    load = Classifier.load

    def loading(path: Path, backbone_weights: Path | None = None, relations: tuple[str, ...] = ()) -> Classifier:
        asked.append((backbone_weights, relations))
        return load(path)

    monkeypatch.setattr(Classifier, "load", loading)

    async def run() -> None:
        host = ModelHost(Opening(model, Path("weights.pth"), ("embeddings:words.txt",)), lambda version, what: None)
        await host.change("nothing", lambda classifier: None)
        host.close()

    asyncio.run(run())
    assert len(asked) >= 3, "at the start, for the change, and anew behind it"
    assert set(asked) == {(Path("weights.pth"), ("embeddings:words.txt",))}
