from protograph._internal.old_names import CLASSIFIER_PARAMETERS, renamed


def test_old_names_become_todays_in_the_same_order() -> None:
    read = renamed({"seed": 3, "rate": 0.5, "steps": None}, CLASSIFIER_PARAMETERS)
    assert list(read.items()) == [("seed", 3), ("learning_rate", 0.5), ("steps", None)]
