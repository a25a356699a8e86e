"""A session compiles the function that an attempt lacks, and retries."""

from typing import Any, cast

import pytest

from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.device import Target, load_devices, parse_targets
from fattn_probe.llama.build import Build, make
from fattn_probe.machine.run import session as sessions
from fattn_probe.machine.run.outcome import Lost, Missing
from fattn_probe.machine.run.session import MOST_RETRIES, RunOptions, Session
from tests.llama.build.test_key import MANIFEST

CPU = Target("cpu")


@pytest.fixture
def session(monkeypatch):
    """A session whose builds are the symbols compiled into them."""
    monkeypatch.setattr(sessions, "ensure", lambda request, *kernels, **rest: ())
    monkeypatch.setattr(make, "add_missing", lambda build, symbol, progress: (*build, symbol))
    return Session(RunOptions(cast(Any, "a tree")))


def test_each_missing_kernel_is_compiled_in_once_and_kept(session):
    attempts = []

    def attempt(build):
        attempts.append(build)
        return next((Missing(symbol) for symbol in "ab" if symbol not in build), Lost("done"))

    assert session.completing("case", CPU, "program", attempt) == Lost("done")
    assert attempts == [(), ("a",), ("a", "b")]
    assert session.build_for(CPU, "program") == ("a", "b")


@pytest.mark.parametrize(
    ("target", "needs"),
    [("sim:rtx4090", "a build for sim, sm_89"), ("gpu", "a build for cuda"), ("sim:h200", ""), ("cpu", "")],
)
def test_a_given_build_is_for_one_engine_and_one_architecture(tmp_path, target, needs):
    """On another GPU, llama.cpp chose other kernels than such a GPU runs."""
    session = Session(RunOptions(None, build=Build(tmp_path, MANIFEST)))
    (chosen,) = parse_targets(target, load_devices())
    if needs:
        with pytest.raises(InputError, match=f"is a build for sim, sm_90, and {chosen} needs {needs}"):
            session.build_for(chosen)
    else:
        assert session.build_for(chosen).manifest is MANIFEST


def test_a_kernel_that_stays_missing_ends_with_its_name(session):
    with pytest.raises(BuildError, match=f"gqa: after {MOST_RETRIES} kernels the build still misses _Z4name"):
        session.completing("gqa", CPU, "program", lambda build: Missing("_Z4name"))
