"""Read a scenario file and check it once: its settings, and the op of each of its cases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text
from fattn_probe.base.yaml_lines import parse
from fattn_probe.cases.scenario.explain import explain
from fattn_probe.cases.scenario.matrix import MAX_CASES, Variation, apply, count, variations
from fattn_probe.cases.scenario.matrix import Path as Key
from fattn_probe.cases.scenario.refuse import refusals
from fattn_probe.cases.scenario.schema import Scenario

NO_VARIATION = Variation({}, {})


@dataclass(frozen=True)
class Problem:
    """A mistake in a scenario: its key (path in the document), what was found, and what is allowed."""

    key: Key
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.key)) or 'the file'}: {self.text}"


@dataclass(frozen=True)
class CheckedFile:
    """A scenario with its checked variations, or its mistakes: first the file's own, then those of a case."""

    scenario: Scenario | None
    problems: tuple[Problem, ...]


def check(settings: object) -> CheckedFile:
    """Check a scenario's settings, as plain data, and every case of its matrix."""
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else repr(settings)[:60]
        return CheckedFile(None, (Problem((), f"found {found}, allowed: keys such as `version: 1`"),))
    if "hsk" not in settings and settings.keys() & {"scenarios", "entries", "upstream"}:
        said = "this is a suite, which `fattn-probe regress` runs, allowed: a scenario"
        return CheckedFile(None, (Problem((), said),))
    matrix = settings.get("matrix") or {}
    base, problems = _checked(settings, NO_VARIATION, refuse=not matrix)
    cases = [(NO_VARIATION, base)]
    if matrix and (not isinstance(matrix, dict) or any(problem.key[:1] == ("matrix",) for problem in problems)):
        return CheckedFile(None, tuple(problems))
    if matrix and count(matrix) > MAX_CASES:
        many = f"makes {count(matrix)} cases, allowed: at most {MAX_CASES}"
        return CheckedFile(None, (*problems, Problem(("matrix",), many)))
    if matrix:
        cases = []
        for variation in variations(matrix):
            case, mistakes = _checked(apply(settings, variation), variation, refuse=True)
            cases.append((variation, case))
            problems += [problem for problem in mistakes if problem not in problems]
    good = [(variation, case) for variation, case in cases if case is not None]
    return CheckedFile(None if problems or base is None else base.with_cases(good), tuple(problems))


def _checked(settings: dict[str, Any], variation: Variation, *, refuse: bool) -> tuple[Scenario | None, list[Problem]]:
    """The scenario from some settings, or the schema's objections; `refuse`: and why ggml or the op would reject it."""
    try:
        scenario = Scenario.model_validate(settings)
    except ValidationError as error:
        found = [explain(details, settings) for details in error.errors(include_url=False)]
        return None, [Problem(_place(key, variation), text) for key, text in found]
    refused = refusals(scenario) if refuse else []
    return scenario, [Problem(_place(refusal.path, variation), refusal.reason) for refusal in refused]


def _place(key: Key, case: Variation) -> Key:
    """The key in the file that sets a value: a key of the matrix if a variation sets it."""
    for dotted, place in case.places.items():
        parts = tuple(dotted.split("."))
        if key[: len(parts)] == parts:
            return (*place, *key[len(parts) :])
        if key[-1:] == ("kind",) and len(key) > 1 and key[:-1] == parts[: len(key) - 1]:
            return place
    return key


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file; InputError names every mistake as `path:line: key: found, allowed`."""
    path = Path(path)
    return loads(read_text(path, "the scenario"), str(path)).named(path.stem)


def loads(text: str, name: str = "scenario") -> Scenario:
    """`load` for text; `name` stands for the path in messages."""
    document = parse(text, name)
    found = [(mistake.line, mistake.text) for mistake in document.mistakes]
    checked = check(document.value)
    found += [(document.line(problem.key), str(problem)) for problem in checked.problems]
    if found or checked.scenario is None:
        found.sort(key=lambda mistake: mistake[0])
        raise InputError("\n".join(dict.fromkeys(f"{name}:{line}: {said}" for line, said in found)))
    return checked.scenario
