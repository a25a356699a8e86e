import pytest

from fattn_probe.daily.regress.history import open_history


@pytest.fixture
def empty(tmp_path):
    """A history without runs."""
    with open_history(tmp_path / "h.db") as found:
        yield found
