"""A release with its mutants behind switches, and the file that remembers which do not compile."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fattn_probe.base.errors import BuildError
from fattn_probe.lab.detect import schema
from fattn_probe.lab.detect.mutants import mutate
from fattn_probe.lab.detect.schema import FILES, PatchedTree, compiling, switched
from fattn_probe.llama.source.features import CUDA
from tests.lab.detect.test_mutants import KERNEL

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
        numbers = {int(number) for number in schema.SWITCH.findall(made.text)}
        rounds.append(numbers)
        errors = {((second.file, second.line),)} if second.id in numbers else set()
        return {(arch, "vec.cu"): (errors, set() if errors else numbers) for arch in kernels}

    monkeypatch.setattr(schema, "checked", checked)
    monkeypatch.setattr(schema, "suspects", lambda mutants, errors: frozenset({second.id}))
    return rounds


@pytest.fixture
def memory(tree):
    """The document that remembers; none yet."""
    return lambda: next((tree.root.parent / "cache/mutants").glob("*.document"))


def told(document):
    """What a document has behind its first line."""
    return json.loads(document.read_text().partition("\n")[2])


def test_each_file_is_mutated_once(tree, monkeypatch):
    seen = []

    def watched(text, file, *rest):
        seen.append(file)
        return mutate(text, file, *rest)

    monkeypatch.setattr(schema, "mutate", watched)
    every = switched(tree, (), frozenset())
    assert seen == list(FILES)
    some = switched(tree, (), frozenset({2, 3}))
    assert [item for item in every.mutants if item.id not in (2, 3)] == list(some.mutants)


def test_what_does_not_compile_is_found_once(tree, compiled, memory):
    first, rounds = compiling(PatchedTree(tree, ()), KERNELS, print), len(compiled)
    assert 2 not in {mutant.id for mutant in first.mutants}
    assert compiling(PatchedTree(tree, ()), KERNELS, print) == first
    assert (rounds, len(compiled)) == (3, 3)  # with the second, without it, and then all kernels


def test_no_set_of_switches_is_made_twice(tree, compiled, monkeypatch):
    made, switch = [], schema.switched

    def watched(tree, patches, without):
        made.append(without)
        return switch(tree, patches, without)

    monkeypatch.setattr(schema, "switched", watched)
    compiling(PatchedTree(tree, ()), KERNELS, print)
    assert made == [frozenset(), frozenset({2})]


def test_two_processes_that_find_out_at_once_remember_both(tree, compiled, memory, monkeypatch):
    checked, others = schema.checked, [{"75": KERNELS["90"]}]

    def meanwhile(*arguments):
        if others:
            compiling(PatchedTree(tree, ()), others.pop(), print)
        return checked(*arguments)

    monkeypatch.setattr(schema, "checked", meanwhile)
    compiling(PatchedTree(tree, ()), KERNELS, print)
    assert {key[:2] for key in told(memory()) if key[:2].isdecimal()} == {"75", "90"}


def test_an_error_that_is_no_mutant_s_ends_it(tree, compiled, monkeypatch):
    monkeypatch.setattr(schema, "suspects", lambda mutants, errors: frozenset())
    with pytest.raises(BuildError, match="the switched sources do not compile"):
        compiling(PatchedTree(tree, ()), KERNELS, print)
