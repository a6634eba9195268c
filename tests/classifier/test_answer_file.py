import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED
from protograph.classifier.answer_file import Answer, AnswerFile

BEGUN: dict[str, Any] = {"model": "m", "images": "i", "top": 2, "protograph": "1", "plugins": []}


def answer(number: int) -> Answer:
    return Answer(f"{number}.jpg", "owl", 0.5 + number, (("owl", 0.75), ("cat", 0.25)))


def opened(path: Path, total: int = 4, nearest: int = 2, **changes: Any) -> AnswerFile:
    return AnswerFile(path, total, nearest, {**BEGUN, **changes})


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


def test_a_table_has_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "answers.csv"
    table = opened(path)
    assert [*tmp_path.iterdir()] == [], "nothing before the first answer"
    table.add([answer(0), Answer("bad.jpg", problem="it is empty")])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["answers.csv.part", "answers.csv.part.json"]
    table.add([answer(2), answer(3)])
    table.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["answers.csv"]
    assert rows(path) == [
        ["file", "class", "likeness", "class_1", "probability_1", "class_2", "probability_2", "problem"],
        ["0.jpg", "owl", "0.500000", "owl", "0.750000", "cat", "0.250000", ""],
        ["bad.jpg", "", "", "", "", "", "", "it is empty"],
        ["2.jpg", "owl", "2.500000", "owl", "0.750000", "cat", "0.250000", ""],
        ["3.jpg", "owl", "3.500000", "owl", "0.750000", "cat", "0.250000", ""],
    ]
    assert (table.unreadable, table.classes, table.done) == (1, {"owl": 3}, 4)
    with pytest.raises(InputError, match=r"answers\.csv exists: choose another --out, or remove it"):
        opened(path)


def test_json_lines_hold_names_as_they_are(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.jpg")
    table = opened(tmp_path / "a.jsonl", 3)
    table.add(
        [Answer("=1+1.jpg", "=cmd", 1 / 3, (("=cmd", 1 / 3),)), Answer("Käfer.jpg", 7, 0.0, ()), Answer(odd, problem="x")]
    )
    table.finish()
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"file": "=1+1.jpg", "class": "=cmd", "likeness": 0.333333, "nearest": [{"class": "=cmd", "probability": 0.333333}]},
        {"file": "Käfer.jpg", "class": 7, "likeness": 0.0, "nearest": []},
        {"file": odd, "problem": "x"},
    ]
    assert "Käfer" in lines[1]


@pytest.mark.parametrize("sign", [*"=+-@\t\r\n＝＋－＠"])
def test_no_cell_is_taken_for_a_formula(sign: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv", 1, 1)
    table.add([Answer(f"{sign}1.jpg", f"{sign}cmd", -0.5, ((f"{sign}cmd", 1.0),))])
    table.finish()
    (_, cells) = rows(tmp_path / "a.csv")
    assert cells == [f"./{sign}1.jpg", f"'{sign}cmd", "-0.500000", f"'{sign}cmd", "1.000000", ""]
    assert Path(cells[0]) == Path(f"{sign}1.jpg"), "the same file"


def test_numbers_and_other_names_stay_as_they_are(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv", 2, 1)
    names = ["/tmp/-x, y.jpg", 'a\'b "c".jpg']
    table.add([Answer(names[0], -1, 0.0, ((-1, 1.0),)), Answer(names[1], "it's", 0.0, (("x=y", 1.0),))])
    table.finish()
    assert [(row[0], row[1], row[3]) for row in rows(tmp_path / "a.csv")[1:]] == [
        (names[0], "-1", "-1"),
        (names[1], "it's", "x=y"),
    ]


def test_bytes_that_are_not_utf_8_are_shown(tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv", 1, 0)
    table.add([Answer(os.fsdecode(b"caf\xe9.jpg"), "owl", 0.0)])
    table.finish()
    assert rows(tmp_path / "a.csv")[1][0] == "caf\\udce9.jpg"


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("garbage", [b"", b"half a li", b"x\n" * 1000])
def test_a_killed_table_continues_where_it_was_noted(garbage: bytes, suffix: str, tmp_path: Path) -> None:
    whole, path = tmp_path / f"whole.{suffix}", tmp_path / f"killed.{suffix}"
    for file in (whole, path):
        table = opened(file)
        for start in (0, 2):
            if file == path:
                table = opened(file)
                assert table.done == start
                if table.part.exists():
                    with table.part.open("ab") as part:
                        part.write(garbage)
            table.add([answer(start), answer(start + 1)])
        table.finish()
    assert path.read_bytes() == whole.read_bytes()


def test_a_kill_before_the_first_note_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    table = opened(path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            table.add([answer(0)])
    again = opened(path, 1, top=3)
    assert again.done == 0
    again.add([answer(1)])
    again.finish()
    assert [row[0] for row in rows(path)] == ["file", "1.jpg"]


def test_a_kill_after_the_last_answer_only_tidies_up(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table = opened(path, 1)
    table.add([answer(0)])
    table.part.rename(path)
    (tmp_path / f".{table.notes.name}.12345678{UNFINISHED}").touch()  # killed while it wrote the notes
    again = opened(path, 1)
    assert (again.done, again.classes) == (1, {"owl": 1})
    again.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "other"}, "the model file has changed since it was begun; undo that, or remove"),
        ({"images": "other"}, "images were added, removed or changed since"),
        ({"top": 3}, "--top was another"),
        ({"protograph": "2"}, "another version of protograph"),
        ({"plugins": ["x"]}, "other plugins were named"),
    ],
)
def test_what_has_changed_since_is_named(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    table = opened(tmp_path / "a.csv")
    table.add([answer(0)])
    with pytest.raises(InputError, match=rf"a\.csv\.part cannot be continued: {named}"):
        opened(tmp_path / "a.csv", **changes)
    assert opened(tmp_path / "a.csv").done == 1


def test_files_that_are_not_its_own_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    part = path.with_name("a.csv.part")
    part.write_text("mine")
    with pytest.raises(InputError, match=r"a\.csv\.part exists: choose another --out"):
        opened(path)
    part.unlink()
    opened(path).add([answer(0)])
    path.write_text("mine")
    with pytest.raises(InputError, match=r"a\.csv exists: choose another --out"):
        opened(path)
    path.unlink()
    part.write_text("cut")
    with pytest.raises(InputError, match=r"a\.csv\.part was cut short: remove .*a\.csv\.part and a\.csv\.part\.json"):
        opened(path)
    path.with_name("a.csv.part.json").write_text("{}")
    with pytest.raises(InputError, match=r"a\.csv\.part\.json is damaged .*: remove"):
        opened(path)


def test_names_that_a_table_cannot_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write answers to .*a\.xlsx: give a name that ends in \.csv or \.jsonl"):
        opened(tmp_path / "a.xlsx")
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(InputError, match="is a folder: name a file"):
        opened(tmp_path / "a.csv")
