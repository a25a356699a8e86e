import pytest

from fattn_probe.llama.source import DEFAULT_SOURCE, resolve


@pytest.fixture(scope="module")
def tree():
    """The default llama.cpp with its libllama."""
    return resolve(DEFAULT_SOURCE, models=True)
