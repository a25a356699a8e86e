"""A result in the history: its case with its inputs, and where it was found."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fattn_probe.base.errors import InputError
from fattn_probe.cases import shipped
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.files import read_cases
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.daily.ops.options import OP
from fattn_probe.daily.regress.history import History
from fattn_probe.daily.regress.records import Identity, StoredCase
from fattn_probe.daily.regress.suite import cases_of, load_suite

UID = re.compile(r"[0-9a-f]{4,32}")
MOST_NAMES = 20


@dataclass(frozen=True)
class PastResult:
    """A case of a run, and the values of `--on`, `--source` and `--patch` that repeat it.

    `file` is the scenario's name on a command line; empty for a case that is known only from a run.
    """

    case: Case
    file: str
    on: str
    source: str
    patches: tuple[str, ...]


def is_uid(word: str) -> bool:
    """Whether a word can be the beginning of a run's name."""
    return UID.fullmatch(word) is not None


def past_result(history: History, uid: str, name: str) -> PastResult:
    """The result of a case in the run whose name begins with `uid`; InputError names the cases that failed there."""
    run = history.run(uid)
    stored = history.cases(run)
    if name not in stored:
        failed = [result.name for result in history.results(run).values() if result.status == "fail"]
        said = ", ".join(failed[:MOST_NAMES]) or "none"
        raise InputError(f"run {run.uid[:8]} has no case {name!r}; choose with --case, of those that failed: {said}")
    identity = run.identity
    on = "gpu" if identity.engine == "cuda" else identity.device
    return PastResult(case_of(stored[name], run.suite), "", on, identity.source, patches_of(identity))


def case_of(stored: StoredCase, suite: str) -> Case:
    """The case with the inputs of a stored one; InputError if no suite, scenario or upstream case has them any more."""
    found = next((case for case in candidates(stored, suite) if case.digest == stored.digest), None)
    if found is None:
        raise InputError(
            f"{stored.name}: neither the suite {suite} nor a shipped scenario gives this case with the same inputs "
            f"(digest {stored.digest}); name its scenario file instead"
        )
    return replace(found, name=stored.name)


def candidates(stored: StoredCase, suite: str) -> Iterator[Case]:
    """Cases that may be the stored one, the most likely first."""
    if stored.name.startswith(f"{OP}("):
        for separate_V in (False, True):
            yield resolve(from_ops(stored.name, separate_V=separate_V), stored.name, "upstream")
    with contextlib.suppress(InputError):
        path = shipped.find("suite", suite.partition("/")[0])
        for entry in load_suite(path).parts:
            yield from cases_of(entry, path.parent)
    for path in shipped.files("scenario"):
        if path.stem == stored.scenario:
            yield from read_cases(path)


def patches_of(identity: Identity) -> tuple[str, ...]:
    """The shipped patches of a run, by name; InputError for one that is a user's file."""
    known = {name.rpartition("/")[2]: name for kind in ("fault", "patch") for name in shipped.names(kind)}
    names = {re.sub(r"\.[a-z]$", "", name): re.sub(r"\.[a-z]$", "", full) for name, full in known.items()}
    unknown = [name for name in identity.patches.split() if name not in names]
    if unknown:
        raise InputError(f"the run had a patch {unknown[0]}, which is not shipped; name the scenario, and give --patch")
    return tuple(names[name] for name in identity.patches.split())
