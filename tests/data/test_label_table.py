import json
from pathlib import Path

import pytest

from protograph._internal.errors import InputError
from protograph.data import label_table
from protograph.data.label_table import LabelledName, check_present, read_label_table


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    "text",
    [
        "file_name,label\na/1.jpg,owl\nb.jpg,Käfer\n",
        "label,more,path\r\nowl,x,a/1.jpg\r\n\r\nKäfer,y,./b.jpg\r\n",
        "image;class\na/1.jpg;owl\nb.jpg; Käfer \n;\n",
        '"filename"\t"category"\n"a/1.jpg"\t"owl"\n"b.jpg"\t"Käfer"',
    ],
    ids=["plain", "other order", "semicolons", "tabs"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_tables_of_every_kind_say_the_same(text: str, encoding: str, tmp_path: Path) -> None:
    rows = read_label_table(write(tmp_path / "own.csv", text, encoding))
    assert [(row.name, row.label) for row in rows] == [("a/1.jpg", "owl"), ("b.jpg", "Käfer")]
    assert rows[0].line == 2


def test_labels_may_hold_separators_and_stand_on_several_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "own.csv", 'file_name,label\na.jpg,"owl, snowy"\n"b.jpg","two\nlines"\nc.jpg,x;y\n')
    assert [row.label for row in read_label_table(path)] == ["owl, snowy", "two\nlines", "x;y"]
    assert [row.line for row in read_label_table(path)] == [2, 4, 5]


def test_json_lines_name_classes_by_text_or_whole_number(tmp_path: Path) -> None:
    path = write(
        tmp_path / "metadata.jsonl", '{"file_name": "a.jpg", "label": "o\u2028wl"}\n\n{"label": 7, "file_name": "b.jpg"}\n'
    )
    assert read_label_table(path) == [LabelledName("a.jpg", "o\u2028wl", 1), LabelledName("b.jpg", "7", 3)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", r"own\.csv has no column of images, but nothing: call it 'file_name' on the first line"),
        ("a.jpg,owl\nb.jpg,owl\n", r"no column of images, but 'a\.jpg', 'owl': call it 'file_name'"),
        ("file_name,species\na.jpg,owl\n", r"no column of classes, but 'file_name', 'species': call it 'label'"),
        ("file_name,label,class\na,b,c\n", r"has 2 columns of classes \(label and class\): keep one, rename the other"),
        ("file_name,label,label\na,b,c\n", r"has 2 columns of classes \(label and label\): keep one"),
        ("file_name,path,label\na,b,c\n", r"has 2 columns of images \(file_name and path\)"),
        ("file_name,label\n", r"own\.csv names no images: write a line for each"),
        ("file_name,label\na.jpg,owl\nb.jpg,\n", r"line 3 of .*own\.csv has no label: give it one, or delete the line"),
        ("file_name,label\n,owl\n", r"line 2 of .*own\.csv names no image"),
        ("file_name,label\na.jpg\n", r"line 2 of .*own\.csv has 1 cells and the first line 2: .*that holds commas"),
        ("file_name;label\na.jpg;owl;x\n", r"line 2 of .* has 3 cells .*that holds semicolons"),
        (
            'file_name,label\na.jpg,"owl\n',
            r"own\.csv is not a readable \.csv file \(line 2: unexpected end of data\): repair it",
        ),
        ("file_name,label\na.jpg,owl\n./a.jpg,owl\n", r"lines 2 and 3 of .*own\.csv both name a\.jpg: keep one"),
        ("file_name,label\na.jpg,Owl\nb.jpg,owl\n", r"classes 'Owl' \(line 2\) and 'owl' \(line 3\) .*differ only in case"),
        ("file_name,label\n/data/a.jpg,owl\n", r"line 2 of .* names /data/a\.jpg by its absolute path: put the table beside"),
        ("file_name,label\nC:\\data\\a.jpg,owl\n", r"names C:\\data\\a\.jpg by its absolute path"),
        (
            "file_name,label\nx/../../a.jpg,owl\n",
            r"line 2 of .* names x/\.\./\.\./a\.jpg, which may lead out of .*without '\.\.'",
        ),
        ("file_name,label\na\0.jpg,owl\n", r"line 2 of .* zero byte"),
    ],
)
def test_a_mistake_in_a_table_is_named_by_its_line(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        read_label_table(write(tmp_path / "own.csv", text))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", r"line 2 of .*own\.jsonl is not JSON"),
        ("[1]", r"line 2 of .* is not a JSON object"),
        ("[" * 100_000, r"line 2 of .* is not JSON"),
        ('{"file_name": "b.jpg"}', r"line 2 of .*own\.jsonl has no 'label'"),
        ('{"file_name": "b.jpg", "label": null}', r"line 2 of .* has no label"),
        ('{"file_name": "b.jpg", "label": ["a", "b"]}', r"line 2 of .* has a list as its label: give the name of one class"),
        ('{"file_name": "b.jpg", "label": true}', r"line 2 of .* has a bool as its label"),
        ('{"file_name": 3, "label": "a"}', r"line 2 of .* names no image"),
        ('{"file_name": "b.jpg", "label": "\\ud800"}', r"line 2 of .* has the label '\\ud800', which is not UTF-8"),
    ],
)
def test_a_mistake_in_json_lines_is_named_by_its_line(line: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        read_label_table(write(tmp_path / "own.jsonl", f'{{"file_name": "a.jpg", "label": "owl"}}\n{line}\n'))


def test_json_lines_without_a_column_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "own.jsonl", json.dumps({"file_name": "a.jpg", "text": "an owl"}))
    with pytest.raises(InputError, match=r"no column of classes, but 'file_name', 'text': call it 'label' in every object"):
        read_label_table(path)


def test_what_is_no_text_in_utf_8_is_named_by_its_line(tmp_path: Path) -> None:
    for encoding, byte in (("latin-1", "0xe4"), ("utf-16", "0xff")):
        path = write(tmp_path / "own.csv", "file_name,label\na.jpg,Käfer\n", encoding)
        line = 1 if encoding == "utf-16" else 2
        with pytest.raises(InputError, match=rf"\(line {line} is not UTF-8: byte {byte}\): save it as UTF-8"):
            read_label_table(path)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"own\.txt is no table of images: give a \.csv or \.jsonl file, or a folder"):
        read_label_table(tmp_path / "own.txt")
    with pytest.raises(InputError, match="there is no table of images at"):
        read_label_table(tmp_path / "own.csv")
    monkeypatch.setattr(label_table, "MAX_TABLE_BYTES", 10)
    with pytest.raises(InputError, match="has 24 bytes, more than 10 of a table of images"):
        read_label_table(write(tmp_path / "own.csv", "file_name,label\na.jpg,b\n"))


def test_missing_images_are_named_by_their_line(tmp_path: Path) -> None:
    rows = read_label_table(write(tmp_path / "own.csv", "path,label\na.jpg,owl\nb\\c.jpg,owl\n"))
    (tmp_path / "a.jpg").touch()
    with pytest.raises(InputError, match=r"line 3 of .*own\.csv: there is no image b\\c\.jpg in .*--skip-bad; write / between"):
        check_present(rows, tmp_path / "own.csv")
    check_present(rows[:1], tmp_path / "own.csv")
    with pytest.raises(InputError, match=r"line 9 of .*: there is no image x+\.jpg"):
        check_present([LabelledName(f"{'x' * 5000}.jpg", "owl", 9)], tmp_path / "own.csv")
