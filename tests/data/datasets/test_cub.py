from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data import layouts
from protograph._internal.errors import InputError
from protograph.data import Dataset, open_dataset
from protograph.data.check import inspect_dataset
from protograph.data.datasets import cub
from protograph.data.splits import DATASET_PARTS


@pytest.fixture(scope="module")
def opened(cub_root: Path) -> Dataset:
    return open_dataset("cub", cub_root)


def numbers(dataset: Dataset, part: str) -> dict[str, list[int]]:
    """Class -> the image numbers it has in a part."""
    assert dataset.images is not None
    names, pool = dataset.images.names, getattr(dataset, part)
    return {
        dataset.classes[class_id]: sorted(int(names[row].split("_")[-1].removesuffix(".jpg")) for row in rows if row >= 0)
        for class_id, rows in zip(pool.classes.tolist(), pool.images.tolist(), strict=True)
    }


def test_the_stored_lists_are_disjoint_and_complete() -> None:
    stored = cub.read_lists()
    assert set(stored) == {"novel_test", "novel_validation", "seen_test", "seen_validation"}
    assert [len(stored[name]) for name in ("novel_test", "novel_validation", "seen_test")] == [50, 20, 2206]
    assert all(len(set(listed)) == len(listed) for listed in stored.values())
    assert not set(stored["novel_test"]) & set(stored["novel_validation"])
    assert not set(stored["seen_test"]) & set(stored["seen_validation"])
    assert {*stored["novel_test"], *stored["novel_validation"]} <= set(range(1, 201))
    assert {*stored["seen_test"], *stored["seen_validation"]} <= set(range(1, 11_789))


def test_classes_and_images_go_where_the_lists_say(opened: Dataset) -> None:
    stored, dealt = cub.read_lists(), layouts.cub_numbers()
    novel = {*stored["novel_validation"], *stored["novel_test"]}
    seen = [number for number in range(1, 201) if number not in novel]
    assert len(opened.classes) == 200
    assert opened.seen == len(seen) == 130
    for part in ("novel_validation", "novel_test"):
        assert numbers(opened, part) == {layouts.cub_class(number): dealt[number] for number in sorted(stored[part])}
    lists = {
        "seen_validation": set(stored["seen_validation"]),
        "seen_test": set(stored["seen_test"]),
        "train": set(range(1, 11_789)) - set(stored["seen_validation"]) - set(stored["seen_test"]),
    }
    for part, own in lists.items():
        expected = {layouts.cub_class(number): [image for image in dealt[number] if image in own] for number in seen}
        assert numbers(opened, part) == expected
        assert all(expected.values())


def test_the_stratified_reading_holds_out_a_quarter_of_each_seen_class(opened: Dataset, cub_root: Path) -> None:
    dataset = open_dataset("cub-stratified", cub_root)
    assert dataset.classes == opened.classes
    assert dataset.fingerprint != opened.fingerprint
    assert set(dataset.seen_test.counts.tolist()) == {2}  # of seven
    assert set(dataset.seen_validation.counts.tolist()) == {1}
    assert sum(int(getattr(dataset, part).counts.sum()) for part in DATASET_PARTS) == len(dataset.store)
    assert "not the paper's" in cub.cub_verdict(dataset)


def test_greyscale_images_become_rgb_and_are_counted(opened: Dataset) -> None:
    findings = inspect_dataset(opened)
    assert findings.greyscale == 8
    assert opened.images is not None
    for row in opened.images.grey.nonzero()[0]:
        red, green, blue = opened.store.pixels[int(row)]
        assert (red == green).all()
        assert (red == blue).all()
    assert findings.sizes == {"width": (28, 28), "height": (20, 26)}


def test_the_attributes_are_compared_by_their_cosine(opened: Dataset) -> None:
    similarities = opened.relations["attributes"].similarities(opened.classes)
    table = {layouts.cub_class(number): row for number, row in enumerate(layouts.cub_attributes(), 1)}
    for one in range(0, 200, 23):
        for other in range(0, 200, 17):
            a, b = table[opened.classes[one]], table[opened.classes[other]]
            expected = sum(a * b) / (sum(a * a) ** 0.5 * sum(b * b) ** 0.5)
            assert float(similarities[one, other]) == pytest.approx(expected, abs=1e-6)
    assert inspect_dataset(opened).relations == {"attributes": "312 attributes of 200 classes"}


@pytest.fixture
def with_relations(bare: Path) -> Path:
    """Beside the lists, word vectors and a tree: kinds of ten birds each, two kinds of which are of one greater kind."""
    folder = bare.parent / "relations"
    folder.mkdir()
    np.savetxt(folder / "cub-word2vec-500d.txt", np.random.default_rng(2).normal(size=(200, 7)), fmt="%.5f")
    named = [layouts.cub_class(number) for number in range(1, 201)]
    kinds = [f"n{kind:08d}" for kind in range(20)]
    nodes = [("root", "bird", "root", ["great", *kinds[2:]], named), ("great", "great bird", "root", kinds[:2], named[:20])]
    for kind, own in enumerate(kinds):
        below = named[10 * kind : 10 * kind + 10]
        nodes.append((own, "some, kind", "great" if kind < 2 else "root", [f"{own}_{leaf}" for leaf in below], below))
        nodes += [(f"{own}_{leaf}", leaf, own, [], [leaf]) for leaf in below]
    lines = [
        f"{own} {words} : {parent} : {len(children)} : {' '.join(children)}\n--- {len(below)} : {' '.join(below)}\n"
        for own, words, parent, children, below in nodes
    ]
    (folder / "cub-wordnet-hierarchy.txt").write_text("\n".join(lines))
    return bare.parent


def test_word_vectors_and_the_tree_beside_it_can_be_named_but_are_not_the_default(with_relations: Path) -> None:
    dataset = open_dataset("cub", with_relations)
    assert list(dataset.relations) == ["attributes", "words", "tree"]
    assert dataset.default_relations == ("attributes",)
    chosen = [layouts.cub_class(number) for number in (1, 2, 11, 31, 200)]
    steps = [[0, 2, 4, 5, 5], [2, 0, 4, 5, 5], [4, 4, 0, 5, 5], [5, 5, 5, 0, 4], [5, 5, 5, 4, 0]]
    expected = [[pytest.approx(1 / (1 + step)) for step in row] for row in steps]
    assert dataset.relations["tree"].similarities(chosen).tolist() == expected
    vectors = np.loadtxt(with_relations / "relations" / "cub-word2vec-500d.txt")
    one, other = vectors[0], vectors[10]
    cosine = sum(one * other) / (sum(one * one) ** 0.5 * sum(other * other) ** 0.5)
    assert float(dataset.relations["words"].similarities(chosen)[0, 2]) == pytest.approx(cosine, abs=1e-6)
    assert list(open_dataset("cub", with_relations / "CUB_200_2011").relations) == ["attributes", "words", "tree"]


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("cub-word2vec-500d.txt", "1 2 x\n", "not a table of numbers"),
        ("cub-word2vec-500d.txt", "1 2\n3 4\n", "200"),
        ("cub-wordnet-hierarchy.txt", "n1 bird : root : 2 : n2 n3\n", "not a tree of kinds"),
        ("cub-wordnet-hierarchy.txt", "n1 bird\n--- 1 : a\n", "not a tree of kinds"),
    ],
)
def test_damaged_relations_are_refused(with_relations: Path, name: str, content: str, named: str) -> None:
    (with_relations / "relations" / name).write_text(content)
    with pytest.raises(InputError, match=named):
        open_dataset("cub", with_relations)


def test_titles_are_names_as_a_person_would_write_them(opened: Dataset) -> None:
    assert opened.title(opened.classes.index(layouts.cub_class(7))) == "Kind 7 of Bird"


@pytest.mark.slow
def test_the_tree_itself_and_its_archive_are_the_same_dataset(opened: Dataset, cub_root: Path, tmp_path: Path) -> None:
    assert open_dataset("cub", cub_root / "CUB_200_2011").fingerprint == opened.fingerprint
    archive = layouts.write_tgz(tmp_path / "CUB_200_2011.tgz", cub_root)
    assert open_dataset("cub", tmp_path).fingerprint == opened.fingerprint
    assert open_dataset("cub", archive).fingerprint == opened.fingerprint


@pytest.fixture
def bare(cub_root: Path, tmp_path: Path) -> Path:
    """The lists with the same images, to be changed."""
    source, tree = cub_root / "CUB_200_2011", tmp_path / "CUB_200_2011"
    (tree / "attributes").mkdir(parents=True)
    (tree / "images").symlink_to(source / "images")
    attributes = Path("attributes", "class_attribute_labels_continuous.txt")
    for name in ("images.txt", "classes.txt", "image_class_labels.txt", attributes):
        (tree / name).write_bytes((source / name).read_bytes())
    return tree


@pytest.mark.parametrize("name", ["classes.txt", "image_class_labels.txt", "images"])
def test_a_tree_that_lacks_something_is_named(bare: Path, name: str) -> None:
    (bare / name).unlink()
    with pytest.raises(InputError, match=f"CUB_200_2011 lacks {name}: unpack"):
        open_dataset("cub", bare)


@pytest.mark.parametrize(
    ("name", "line", "named"),
    [
        ("images.txt", "nonsense", r"images\.txt is not a list of numbers"),
        ("images.txt", "99999 a.jpg", "number different images"),
        ("image_class_labels.txt", "99999 3", "number different images"),
        ("classes.txt", "x y", r"classes\.txt is not a list of numbers"),
    ],
)
def test_a_wrong_line_is_named(bare: Path, name: str, line: str, named: str) -> None:
    with (bare / name).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(InputError, match=named):
        open_dataset("cub", bare)


@pytest.mark.parametrize("label", ["201", "first"])
def test_a_label_without_a_class_is_named(bare: Path, label: str) -> None:
    path = bare / "image_class_labels.txt"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([f"{first.split()[0]} {label}", *rest]))
    with pytest.raises(InputError, match=rf"classes\.txt lacks class {label} of image_class_labels\.txt"):
        open_dataset("cub", bare)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (None, "lacks attributes/class_attribute_labels_continuous.txt"),
        (lambda rows: rows[:-1], "199 x 312 table for 200 classes"),
        (lambda rows: [*rows[:-1], rows[-1].rsplit(maxsplit=1)[0]], "is not a table of numbers"),
        (lambda rows: [*rows[:-1], "x " * 312], "is not a table of numbers"),
        (lambda rows: [*rows[:-1], "nan " + rows[-1].partition(" ")[2]], f"finite value for class '{layouts.cub_class(200)}'"),
    ],
    ids=range(5),
)  # fmt: skip
def test_attributes_that_do_not_fit_are_named(bare: Path, change, named: str) -> None:  # type: ignore[no-untyped-def]
    path = bare / "attributes" / "class_attribute_labels_continuous.txt"
    if change is None:
        path.unlink()
    else:
        path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(InputError, match=named):
        open_dataset("cub", bare)


@pytest.mark.slow
def test_a_seen_class_without_images_for_a_part_is_named(bare: Path) -> None:
    stored = cub.read_lists()
    number = next(n for n in range(1, 201) if n not in stored["novel_test"] and n not in stored["novel_validation"])
    gone = {image for image in layouts.cub_numbers()[number] if image in stored["seen_test"]}
    for name in ("images.txt", "image_class_labels.txt"):
        lines = (bare / name).read_text().splitlines(keepends=True)
        (bare / name).write_text("".join(line for line in lines if int(line.split()[0]) not in gone))
    with pytest.raises(InputError, match=f"class '{layouts.cub_class(number)}' has no image for seen test"):
        open_dataset("cub", bare)


def test_a_place_without_birds_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"no CUB at {tmp_path}: give the folder with"):
        open_dataset("cub", tmp_path)


def read_table(path: Path) -> dict[int, str]:
    return {int(line.split()[0]): line.split()[1] for line in path.read_text().splitlines()}


@pytest.fixture(scope="module")
def real(real_root: Path) -> Dataset:
    return open_dataset("cub", real_root)


def test_the_real_dataset_is_the_papers(real: Dataset) -> None:
    findings = inspect_dataset(real)
    assert (findings.classes, findings.images, findings.unreadable) == (200, 11_788, {})
    assert {part: (found["classes"], found["images"]) for part, found in findings.parts.items()} == {
        "train": (130, 4_990),
        "seen_validation": (130, 770),
        "seen_test": (130, 1_911),
        "novel_validation": (20, 1_184),
        "novel_test": (50, 2_933),
    }
    assert findings.relations == {
        "attributes": "312 attributes of 200 classes",
        "words": "vectors of 500 numbers of 200 classes or words",
        "tree": "a graph of 253 nodes",
    }
    assert findings.crossing == []
    assert "the split the paper used" in cub.cub_verdict(real)


def test_the_real_word_vectors_and_tree_know_that_sparrows_are_alike(real: Dataset) -> None:
    place = real.classes.index("113.Baird_Sparrow")
    for relation in real.relations.values():
        row = relation.similarities(real.classes)[place]
        nearest = [real.classes[int(other)] for other in row.argsort(descending=True)[1:5]]
        assert all("Sparrow" in name for name in nearest)


def test_the_real_validation_images_are_a_tenth_of_each_seen_class(real: Dataset) -> None:
    counts = zip(*(getattr(real, part).counts.tolist() for part in DATASET_PARTS[:3]), strict=True)
    assert all(validation == round(0.1 * (train + validation + test)) for train, validation, test in counts)


def test_the_real_dataset_is_the_one_measured_before(real: Dataset) -> None:
    """Of the copy with smaller images; the official one has another fingerprint."""
    assert real.images is not None
    if real.images.sizes.min(axis=1).max() < 100:
        assert real.fingerprint == "9ce678212af4870f"


def test_the_stored_lists_are_those_of_the_published_split(real: Dataset, real_root: Path) -> None:
    """Drawn again from what is published, and numbered as the official images.txt numbers them."""
    published = real_root / "cub-splits"
    if not published.is_dir():
        pytest.skip("the published lists are not there")
    names = list(real.images.names) if real.images else []
    number = {name: image for image, name in enumerate(names, 1)}
    classes = {int(name[:3]): name for name in real.classes}
    images: dict[int, list[int]] = {own: [] for own in sorted(classes)}
    for name, image in number.items():
        images[int(name[:3])].append(image)
    cited = {
        "novel_test": sorted(read_table(published / "test_classes.txt")),
        "seen_test": sorted(number[name] for name in (published / "testRecg.txt").read_text().split()),
    }
    redrawn = cub.draw_lists(dict(sorted(classes.items())), images, cited)
    assert {name: sorted(listed) for name, listed in redrawn.items()} == {
        name: sorted(listed) for name, listed in cub.read_lists().items()
    }
    assert Counter(names[image - 1][:3] for image in cited["seen_test"]).keys() == {
        f"{number:03d}" for number in classes if number not in cited["novel_test"]
    }
    assert np.all(np.diff(sorted(number.values())) == 1)
