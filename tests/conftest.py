"""What holds for all tests."""

import os
import signal

import hypothesis
import pytest

# A busy machine is not a bug: an example may take as long as it takes.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
# A test prints as to a pipe. At once: the next conftest may import the console, and xdist's workers have 80 columns.
os.environ.pop("COLUMNS", None)


def pytest_configure(config):
    """Tests interrupt programs, and a shell starts its background jobs, as a CI's may be, with interrupts ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Files that compile are spread among the others, which keep a core busy while workers wait for one build.

    A fifth of the others comes last, so that no worker is left with minutes of work at the end.
    """
    compiling = {item.path for item in items if item.get_closest_marker("build")}
    places: dict = {}
    for kind, end in ((True, 0.8), (False, 1.0)):
        files = dict.fromkeys(item.path for item in items if (item.path in compiling) is kind)
        places |= {path: end * number / len(files) for number, path in enumerate(files)}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of an empty cache."""
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tree():
    """The default llama.cpp."""
    from fattn_probe.llama.source import DEFAULT_SOURCE, resolve

    return resolve(DEFAULT_SOURCE)


@pytest.fixture(scope="module")
def selected_cases(request):
    """The parameters `case` of the module's tests that were not deselected."""
    items = [item for item in request.session.items if item.module is request.module]
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return [values["case"] for values in parameters if "case" in values]


@pytest.fixture(scope="module")
def session(tree):
    """Runs of the default llama.cpp, with release builds."""
    from fattn_probe.machine.run.session import RunOptions, Session

    return Session(RunOptions(tree))
