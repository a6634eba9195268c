import pytest

from protograph._internal.errors import InputError
from protograph.serve.limits import Limits


def test_limits_are_positive_and_pixels_have_a_ceiling() -> None:
    with pytest.raises(InputError, match="the limit on files must be a positive number, not 0"):
        Limits(files=0)
    with pytest.raises(InputError, match="64,000,000 pixels at most"):
        Limits(pixels=64_000_001)
    assert Limits().connections > Limits().requests
