"""The input bytes of cases, in memory or in a case file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fattn_probe.base.arrays import Bytes
from fattn_probe.base.scratch import scratch
from fattn_probe.cases.op.case_file import case_fields, read_case
from fattn_probe.cases.op.gguf_file import allocate_gguf, write_hollow
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.inputs import fill_root, make_inputs

LARGE = 1 << 30
"""Inputs of at least this many bytes are stored in a file."""


class FiledInputs(dict[str, Bytes]):
    """The bytes of a case's roots, mapped from its case file."""

    def __init__(self, file: Path, roots: Mapping[str, Bytes]) -> None:
        super().__init__(roots)
        self.file = file


def make_case_file(case: Case, path: Path) -> FiledInputs:
    """Write a case's inputs to a case file: generated one head at a time, or copied from the recorded case."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    mapped = allocate_gguf(path, case_fields(case.name, case.digest, case.op), roots)
    recorded = make_inputs(case) if case.recorded else {}
    for name, memory in mapped.items():
        if case.recorded:
            memory[:] = recorded[name][: memory.size]
        else:
            fill_root(case, name, memory)
    return FiledInputs(path, read_case(path).inputs)


def make_dry_file(case: Case, path: Path) -> FiledInputs:
    """Write a case file without the bytes of its roots, for a dry run."""
    roots = {name: (root.type, root.stored.ne) for name, root in case.op.roots.items()}
    write_hollow(path, case_fields(case.name, case.digest, case.op), roots)
    return FiledInputs(path, {})


@contextmanager
def inputs_of(case: Case) -> Iterator[Mapping[str, Bytes]]:
    """The bytes of a case's roots; those of a large case are in a temporary case file."""
    if sum(root.stored.nbytes for root in case.op.roots.values()) < LARGE:
        yield make_inputs(case)
        return
    with scratch() as folder:
        yield make_case_file(case, folder / "case.gguf")
