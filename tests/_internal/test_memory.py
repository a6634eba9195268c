import sys

from protograph._internal import memory


def test_the_memory_that_is_free_is_asked_of_the_system() -> None:
    free = memory.available_memory()
    if sys.platform == "linux":
        assert free is not None
        assert 0 < free < 2**50
    memory.require_memory(1, "little work")
