import pickle

from protograph._internal.errors import LONGEST_MESSAGE, InputError, shorten_middle


def test_an_error_is_one_line_of_bounded_length() -> None:
    assert str(InputError("a\nb\r")) == "a\\nb\\r"
    long = str(InputError("x" * 100_000 + "end"))
    assert len(long) == LONGEST_MESSAGE + 5
    assert long.endswith("end")


def test_an_error_passes_between_processes() -> None:
    error = pickle.loads(pickle.dumps(InputError("a\nb")))
    assert str(error) == "a\\nb"


def test_the_middle_of_a_long_text_is_left_out() -> None:
    assert shorten_middle("abcdef", 6) == "abcdef"
    assert shorten_middle("abcdefg", 4) == "ab ... fg"
