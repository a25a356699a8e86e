"""A release with its mutants behind switches, and the file that remembers which do not compile."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fattn_probe.detect import schemata
from fattn_probe.detect.mutants import mutate
from fattn_probe.detect.schemata import FILES, Release, compiling, switched
from fattn_probe.errors import BuildError
from fattn_probe.source.features import CUDA
from tests.detect.test_mutants import KERNEL

KERNELS: Any = {"90": [SimpleNamespace(name="vec-64", family="vec")]}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree whose files are all one kernel, and an empty cache."""
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "tree"
    (root / CUDA).mkdir(parents=True)
    for name in FILES:
        (root / CUDA / name).write_text(KERNEL)
    return cast(Any, SimpleNamespace(root=root))


@pytest.fixture
def compiled(tree, monkeypatch):
    """Each set of switches that was compiled; the second mutant does not compile."""
    rounds: list[set[int]] = []
    second = switched(tree, (), frozenset()).mutants[1]

    def checked(release, kernels, left):
        (made,) = release.patches
        numbers = {int(number) for number in schemata.SWITCH.findall(made.text)}
        rounds.append(numbers)
        errors = {((second.file, second.line),)} if second.id in numbers else set()
        return {(arch, "vec.cu"): (errors, set() if errors else numbers) for arch in kernels}

    monkeypatch.setattr(schemata, "checked", checked)
    monkeypatch.setattr(schemata, "suspects", lambda mutants, errors: frozenset({second.id}))
    return rounds


@pytest.fixture
def memory(tree):
    """The file that remembers; none yet."""
    return lambda: next((tree.root.parent / "cache/mutants").glob("*.json"))


def test_each_file_is_mutated_once(tree, monkeypatch):
    seen = []

    def watched(text, file, *rest):
        seen.append(file)
        return mutate(text, file, *rest)

    monkeypatch.setattr(schemata, "mutate", watched)
    every = switched(tree, (), frozenset())
    assert seen == list(FILES)
    some = switched(tree, (), frozenset({2, 3}))
    assert [item for item in every.mutants if item.id not in (2, 3)] == list(some.mutants)


def test_what_does_not_compile_is_found_once(tree, compiled, memory):
    first, rounds = compiling(Release(tree, ()), KERNELS, print), len(compiled)
    assert 2 not in {mutant.id for mutant in first.mutants}
    assert compiling(Release(tree, ()), KERNELS, print) == first
    assert (rounds, len(compiled)) == (3, 3)  # with the second, without it, and then all kernels


def test_no_set_of_switches_is_made_twice(tree, compiled, monkeypatch):
    made, switch = [], schemata.switched

    def watched(tree, patches, without):
        made.append(without)
        return switch(tree, patches, without)

    monkeypatch.setattr(schemata, "switched", watched)
    compiling(Release(tree, ()), KERNELS, print)
    assert made == [frozenset(), frozenset({2})]


@pytest.mark.parametrize("damage", ["", '{"without": [2], "90 wi', "[]", "\0"])
def test_a_damaged_file_is_made_again(tree, compiled, memory, damage):
    first, whole = compiling(Release(tree, ()), KERNELS, print), memory().read_text()
    memory().write_text(damage)
    assert compiling(Release(tree, ()), KERNELS, print) == first
    assert json.loads(memory().read_text()) == json.loads(whole)
    assert len(compiled) == 6


def test_a_file_is_never_half_written(tree, compiled, memory, monkeypatch):
    compiling(Release(tree, ()), KERNELS, print)
    whole = memory().read_text()
    monkeypatch.setattr("fattn_probe.detect.schemata.json.dumps", lambda known: "\udc80")  # cannot be written
    with pytest.raises(UnicodeEncodeError):
        compiling(Release(tree, ()), KERNELS | {"75": KERNELS["90"]}, print)
    assert memory().read_text() == whole


def test_two_processes_that_find_out_at_once_remember_both(tree, compiled, memory, monkeypatch):
    checked, others = schemata.checked, [{"75": KERNELS["90"]}]

    def meanwhile(*arguments):
        if others:
            compiling(Release(tree, ()), others.pop(), print)
        return checked(*arguments)

    monkeypatch.setattr(schemata, "checked", meanwhile)
    compiling(Release(tree, ()), KERNELS, print)
    assert {key[:2] for key in json.loads(memory().read_text()) if key[:2].isdecimal()} == {"75", "90"}


def test_an_error_that_is_no_mutant_s_ends_it(tree, compiled, monkeypatch):
    monkeypatch.setattr(schemata, "suspects", lambda mutants, errors: frozenset())
    with pytest.raises(BuildError, match="the switched sources do not compile"):
        compiling(Release(tree, ()), KERNELS, print)
