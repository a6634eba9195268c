from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Asking, client, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model file of two classes."""
    return write_model(tmp_path)


@pytest.fixture
def asking(model: Path) -> Iterator[Asking]:
    """A client of the application on that file."""
    with client(model) as opened:
        yield opened
