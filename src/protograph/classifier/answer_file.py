"""A table of answers that is written as they come, and continued after a kill: .csv for spreadsheets, .jsonl for programs.

Until it is complete, the table is called NAME.part, and NAME.part.json says how far it goes and what it was begun with. What a
killed process wrote behind that point is cut off, so the table ends as if nothing had happened.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import is_folder, unfinished, write_json

ANSWER_SUFFIXES = (".csv", ".jsonl")
STATE_FORMAT = 1
DIGITS = 6  # of numbers in the table
FORMULA_SIGNS = "=+-@\t\r\n＝＋－＠"  # with which a cell begins that a spreadsheet computes
TABLE_DEPENDS_ON = {  # what the contents depend on -> what to say where it is no longer the same
    "model": "the model file has changed",
    "images": "images were added, removed or changed",
    "top": "--top was another",
    "protograph": "another version of protograph was at work",
    "plugins": "other plugins were named",
}


@dataclass(frozen=True)
class Answer:
    """The answer about one image.

    Attributes:
        file: The image, as the user named it.
        label: Its class, or the label of unknown images; None if the image cannot be read.
        likeness: How like some class it is; None if it cannot be read.
        nearest: The most probable classes with their probabilities.
        problem: Why it cannot be read.

    """

    file: str
    label: Any = None
    likeness: float | None = None
    nearest: Sequence[tuple[Any, float]] = ()
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the answer as plain values."""
        if self.problem is not None:
            return {"file": self.file, "problem": self.problem}
        nearest = [{"class": label, "probability": probability} for label, probability in self.nearest]
        return {"file": self.file, "class": self.label, "likeness": self.likeness, "nearest": nearest}


@dataclass
class _State:
    """What NAME.part.json holds: what the table was begun with, how many answers it has, and in how many bytes."""

    begun_with: dict[str, Any]
    total: int
    answers: int = 0
    bytes: int = 0
    unreadable: int = 0
    classes: Counter[str] = field(default_factory=Counter)


class AnswerFile:
    """A table of answers that grows.

    Args:
        path: The table, whose name ends in .csv or .jsonl.
        total: How many answers it will have.
        nearest: How many of the most probable classes it names for each image.
        begun_with: What its contents depend on, by the keys of `TABLE_DEPENDS_ON`.

    Raises:
        InputError: There is a table already, or one that was begun with something else.

    """

    def __init__(self, path: Path, total: int, nearest: int, begun_with: Mapping[str, Any]) -> None:
        check_answer_file(path)
        self.path, self.nearest = path, nearest
        self.part, self.notes = _unfinished(path)
        self._state = self._found(_State(dict(begun_with), total))

    @property
    def done(self) -> int:
        """The number of answers that are in the table."""
        return self._state.answers

    @property
    def unreadable(self) -> int:
        """The number of images that cannot be read."""
        return self._state.unreadable

    @property
    def classes(self) -> dict[str, int]:
        """The number of images by answer, the most frequent first."""
        return dict(sorted(self._state.classes.items(), key=lambda item: (-item[1], item[0])))

    def add(self, answers: Sequence[Answer]) -> None:
        """Append answers. After a crash, all or none of them are in the table."""
        state = self._state
        if not state.bytes:
            self._note()  # so that a part without notes is somebody else's
        content = (self._text(answers) if state.bytes else self._header() + self._text(answers)).encode()
        with self.part.open("r+b" if self.part.exists() else "wb") as file:
            file.seek(state.bytes)
            file.write(content)
            file.truncate()  # what a killed process wrote
            file.flush()
            os.fsync(file.fileno())
        state.bytes += len(content)
        state.answers += len(answers)
        state.unreadable += sum(answer.problem is not None for answer in answers)
        state.classes.update(str(answer.label) for answer in answers if answer.problem is None)
        self._note()

    def finish(self) -> None:
        """Give the complete table its name."""
        if self.part.exists():
            os.replace(self.part, self.path)
        for file in (self.notes, *unfinished(self.notes)):  # a kill leaves unfinished notes
            file.unlink(missing_ok=True)

    def _found(self, fresh: _State) -> _State:
        """Return the state of a table that was begun with the same, or of a new one."""
        way_out = f"remove {self.part} and {self.notes.name} to begin anew"
        if not self.notes.exists():
            return fresh
        state = self._read(way_out)
        if not state.answers and not self.path.exists():
            return fresh
        for key, change in TABLE_DEPENDS_ON.items():
            if state.begun_with.get(key) != fresh.begun_with.get(key):
                raise InputError(f"{self.part} cannot be continued: {change} since it was begun; undo that, or {way_out}")
        complete = state.answers == state.total and self.path.exists() and not self.part.exists()
        if self.path.exists() and not complete:
            raise InputError(f"{self.path} exists: choose another --out, or remove it")
        if not complete and state.bytes > (self.part.stat().st_size if self.part.exists() else 0):
            raise InputError(f"{self.part} was cut short: {way_out}")
        return state

    def _read(self, way_out: str) -> _State:
        try:
            values = json.loads(self.notes.read_text(encoding="utf-8"))
            if values.pop("format") != STATE_FORMAT:
                raise ValueError("another format")
            return _State(**{**values, "classes": Counter(values["classes"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self.notes} is damaged ({error}): {way_out}") from error

    def _note(self) -> None:
        write_json(self.notes, {"format": STATE_FORMAT, **vars(self._state)})

    def _header(self) -> str:
        if self.path.suffix.lower() == ".jsonl":
            return ""
        numbered = [name for number in range(1, self.nearest + 1) for name in (f"class_{number}", f"probability_{number}")]
        return _csv_line(["file", "class", "likeness", *numbered, "problem"])

    def _text(self, answers: Sequence[Answer]) -> str:
        if self.path.suffix.lower() == ".jsonl":
            return "".join(f"{json.dumps(_rounded(answer), ensure_ascii=not _is_text(answer))}\n" for answer in answers)
        return "".join(_csv_line(self._cells(answer)) for answer in answers)

    def _cells(self, answer: Answer) -> list[str]:
        file = f".{os.sep}{answer.file}" if answer.file.startswith(tuple(FORMULA_SIGNS)) else answer.file  # the same file
        if answer.problem is not None:
            return [file, "", "", *[""] * (2 * self.nearest), answer.problem]
        nearest = [cell for label, value in answer.nearest for cell in (_class_cell(label), f"{value:.{DIGITS}f}")]
        assert answer.likeness is not None
        return [file, _class_cell(answer.label), f"{answer.likeness:.{DIGITS}f}", *nearest, ""]


def _unfinished(path: Path) -> tuple[Path, Path]:
    """Return what a table is called until it is complete, and the notes on it."""
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")


def check_answer_file(path: Path) -> None:
    """Raise an `InputError` if a table of answers cannot have this name, or if there is one that nothing was noted on."""
    if path.suffix.lower() not in ANSWER_SUFFIXES:
        raise InputError(f"cannot write answers to {path}: give a name that ends in {' or '.join(ANSWER_SUFFIXES)}")
    if is_folder(path):
        raise InputError(f"{path} is a folder: name a file, such as {path / 'answers.csv'}")
    part, notes = _unfinished(path)
    for file in (path, part):
        if file.exists() and not notes.exists():
            raise InputError(f"{file} exists: choose another --out, or remove it")


def _class_cell(label: Any) -> str:
    """Return the name of a class as a spreadsheet shows it: an apostrophe keeps it from being computed."""
    text = str(label)
    return f"'{text}" if isinstance(label, str) and text.startswith(tuple(FORMULA_SIGNS)) else text


def _csv_line(cells: Sequence[str]) -> str:
    """Return a line of the table. Bytes of a file name that are not UTF-8 are shown by their numbers."""
    line = io.StringIO()
    csv.writer(line).writerow([cell.encode(errors="backslashreplace").decode() for cell in cells])
    return line.getvalue().removesuffix("\r\n") + "\n"  # so that a cell with either of them was quoted


def _rounded(answer: Answer) -> dict[str, Any]:
    values = answer.as_json()
    if answer.problem is None:
        values["likeness"] = round(values["likeness"], DIGITS)
        values["nearest"] = [{**entry, "probability": round(entry["probability"], DIGITS)} for entry in values["nearest"]]
    return values


def _is_text(answer: Answer) -> bool:
    """Return whether all of an answer can be written in UTF-8; JSON has escapes for the bytes of a name that cannot."""
    try:
        f"{answer.file}{answer.problem}".encode()
    except UnicodeEncodeError:
        return False
    return True
