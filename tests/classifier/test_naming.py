import pytest

from protograph._internal.errors import InputError
from protograph.classifier.naming import check_new_name, check_removable, class_index


def test_a_class_is_found_by_its_name_and_the_nearest_is_suggested() -> None:
    names = ["Foxglove", "Colt's foot", "Daisy"]
    assert class_index(names, "Daisy") == 2
    for wrong, suggestion in (("foxglove", "Foxglove"), ("Foxglov", "Foxglove"), ("Colts foot", "Colt's foot")):
        with pytest.raises(InputError, match=f"there is no class '{wrong}': did you mean '{suggestion}'"):
            class_index(names, wrong)
    with pytest.raises(InputError, match="no class 'Rose': the classes are 'Foxglove'"):
        class_index(names, "Rose")
    with pytest.raises(InputError, match="'n9' and 5 more"):
        class_index([f"n{number}" for number in range(15)], "x")


def test_names_are_new_and_the_last_class_stays() -> None:
    check_new_name(["a"], "b")
    with pytest.raises(InputError, match="there is a class 'a' already: add examples to it"):
        check_new_name(["a"], "a")
    assert check_removable(["a", "b"], "b") == 1
    with pytest.raises(InputError, match="class 'a' is the last one"):
        check_removable(["a"], "a")
