from protograph._internal.wording import counted


def test_a_noun_stands_in_the_plural_unless_there_is_one() -> None:
    assert [counted(count, "image") for count in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert counted(2, "class") == "2 classes"
