import os
from pathlib import Path

import pytest

from protograph._internal.errors import InputError
from protograph.classifier import sorting
from protograph.classifier.sorting import SortedFolder, folder_names, numbered

AWKWARD = (
    *(
        "owl",
        "unknown",
        "Käfer",
        "snowy owl",
        "../x",
        "..",
        ".",
        "a/b",
        "a\\b",
        "/etc",
        "C:x",
        "CON",
        "con.txt",
        "Lpt9",
        "x.",
        "x ",
    ),
    *(
        ".hidden",
        " x",
        "a%2Fb",
        "50 %",
        "100%",
        "a\nb",
        "a\x00b",
        "<b>",
        "answers.csv",
        "answers.csv.part",
        "?",
        "*",
        "x" * 5000,
    ),
    *("é" * 150, "~", "a~b", "COM¹", "con", "Owl", "cafe\u0301", "café", "%2E%2E", "~/x", "$HOME", "-rf", "owl~0123abcd"),
)


def test_every_class_has_a_folder_of_its_own_on_every_system() -> None:
    names = folder_names([*AWKWARD])
    folded = [sorting._folded(name) for name in names.values()]
    assert len({*folded}) == len(AWKWARD)
    for name in names.values():
        assert Path("root", name).parts == ("root", name)
        assert len(name.encode()) <= 255
        assert not set(name) & set('<>:"/\\|?*\0\n')
        assert name.strip(" .") == name
        assert name.partition(".")[0].upper() not in {"CON", "PRN", "AUX", "NUL", "COM1", "COM¹", "LPT9"}
    for label in ("unknown", "Käfer", "snowy owl", "50 %", "100%", "a~b", "$HOME", "-rf"):
        assert names[label] == label, "names that are fine stay"
    assert (names["../x"], names["a/b"], names["x."], names["con.txt"]) == ("%2E.%2Fx", "a%2Fb", "x%2E", "%63on.txt")
    assert names["owl"].startswith("owl~")
    assert names["Owl"].startswith("Owl~")


def test_a_class_that_looks_like_another_with_a_digest_is_told_apart() -> None:
    names = folder_names(["owl", "Owl"])
    again = folder_names(["owl", "Owl", names["owl"]])
    assert len({*again.values()}) == 3


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_copies_are_complete_and_found_again(tmp_path: Path) -> None:
    image = tmp_path / "1.jpg"
    image.write_bytes(b"one")
    os.utime(image, ns=(5, 7))
    root = tmp_path / "sorted"
    for _ in range(2):
        with SortedFolder.opened(root, ["owl", "../x"]) as folder:
            assert folder.copy(image, "owl") == root / "owl" / "1.jpg"
            assert folder.copy(image, "../x") == root / "%2E.%2Fx" / "1.jpg"
    assert files(root) == {"owl/1.jpg": b"one", "%2E.%2Fx/1.jpg": b"one"}
    assert (root / "owl" / "1.jpg").stat().st_mtime_ns == 7
    assert files(tmp_path) == {"1.jpg": b"one", **{f"sorted/{name}": b"one" for name in files(root)}}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    images = [tmp_path / name / "1.jpg" for name in "abc"]
    for place, image in enumerate(images):
        image.parent.mkdir()
        image.write_bytes(b"%d" % place)
    root = tmp_path / "sorted"
    (root / "owl").mkdir(parents=True)
    (root / "owl" / "1.jpg").write_bytes(b"mine")
    for _ in range(2):
        with SortedFolder.opened(root, ["owl"]) as folder:
            assert [folder.copy(image, "owl").name for image in images] == ["1-2.jpg", "1-3.jpg", "1-4.jpg"]
    assert files(root) == {"owl/1.jpg": b"mine", "owl/1-2.jpg": b"0", "owl/1-3.jpg": b"1", "owl/1-4.jpg": b"2"}


def test_a_copy_that_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"one")
    root = tmp_path / "sorted"
    root.mkdir()
    (root / sorting.UNFINISHED_COPY).symlink_to(tmp_path / "elsewhere")
    with SortedFolder.opened(root, ["owl"]) as folder:
        folder.copy(tmp_path / "1.jpg", "owl")
    assert files(root) == {"owl/1.jpg": b"one"}
    assert not (tmp_path / "elsewhere").exists()


def test_where_files_cannot_be_linked_they_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "1.jpg").write_bytes(b"one")
    for _ in range(2):
        with SortedFolder.opened(tmp_path / "sorted", ["owl"]) as folder:
            folder.copy(tmp_path / "1.jpg", "owl")
    assert files(tmp_path / "sorted") == {"owl/1.jpg": b"one"}


def test_links_that_lead_out_are_refused_or_left_alone(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"one")
    (tmp_path / "elsewhere").mkdir()
    root = tmp_path / "sorted"
    root.mkdir()
    (root / "owl").symlink_to(tmp_path / "elsewhere")
    with SortedFolder.opened(root, ["owl", "cat"]) as folder:
        with pytest.raises(InputError, match=r"owl is a link that leads out of .*sorted: remove it"):
            folder.copy(tmp_path / "1.jpg", "owl")
        (root / "cat").mkdir()
        (root / "cat" / "1.jpg").symlink_to(tmp_path / "elsewhere" / "new.jpg")
        assert folder.copy(tmp_path / "1.jpg", "cat").name == "1-2.jpg"
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_one_process_sorts_at_a_time(tmp_path: Path) -> None:
    with SortedFolder.opened(tmp_path, []), pytest.raises(InputError, match="is in use by process"):
        SortedFolder.opened(tmp_path, []).__enter__()


def test_numbers_fit_into_the_longest_names() -> None:
    assert [numbered("owl.jpg", number) for number in (1, 2, 13)] == ["owl.jpg", "owl-2.jpg", "owl-13.jpg"]
    long = numbered(f"{'é' * 125}.jpeg", 12)
    assert long.endswith("-12.jpeg")
    assert len(long.encode()) in (254, 255)
    odd = os.fsdecode(b"caf\xe9.jpg")
    assert os.fsencode(numbered(odd, 2)) == b"caf\xe9-2.jpg"
