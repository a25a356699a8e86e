"""Read and check a scenario file: its settings, and the op of each of its cases.

Pydantic's errors become messages that say what was found, what is allowed, and the nearest valid name.
"""

import difflib
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import read_text
from fattn_probe.base.yaml_lines import parse
from fattn_probe.cases.scenario.refuse import Refusal, refusals
from fattn_probe.cases.scenario.schema import (
    DEVICE,
    FACT_NAME,
    MAX_CASES,
    ONE_LINE,
    Key,
    Scenario,
    Variation,
    apply_variation,
    count_cases,
    variations,
)
from fattn_probe.cases.scenario.spec import Spec

ENTRY_NAME = r"^[a-z0-9-]*$"
"""The pattern for the names of a suite's entries."""
BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "too_short": ("min_length", "at least {} entries"),
    "too_long": ("max_length", "at most {} entries"),
    "string_too_short": ("min_length", "at least {} characters"),
    "string_too_long": ("max_length", "at most {} characters"),
}
PATTERNS = {
    ENTRY_NAME: "a name of lower-case letters, digits and -",
    ONE_LINE: "one line of text",
    FACT_NAME: "the name of a variable, such as ntiles_dst",
    DEVICE: "sim:NAME such as sim:h200, gpu, gpu:N, or cpu",
}
MOST_BITS = 256  # the largest integer shown in a message; Python refuses to print more than 4300 digits
FACTS = "true, false, a number, a string, or a list of numbers or strings"
MAPPINGS = ("dict_type", "model_type", "model_attributes_type")
KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    **dict.fromkeys(MAPPINGS, "a mapping"),
    "finite_number": "a finite number",
}


def explain(error: ErrorDetails, settings: Any, spec: type[Spec] = Scenario) -> tuple[Key, str]:  # noqa: ANN401 (YAML)
    """The key (path in the file) and the message of an error in `settings`, which `spec` describes."""
    kind, context = error["type"], error.get("ctx", {})
    key: Key = ()
    value: Any = settings
    for number, step in enumerate(error["loc"]):  # also contains tags of unions, which are not keys in the file
        inside = (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int))
        if inside:
            key, value = (*key, step), value[step]
        elif number == len(error["loc"]) - 1 and isinstance(value, dict):
            key = (*key, step)
    if kind == "value_error":
        return key, str(context["error"])
    if error["loc"][:1] == ("expect",) and len(error["loc"]) > 2:
        key = error["loc"][:2]
        return key, f"found {_show(settings['expect'][key[1]])}, allowed: {FACTS}"
    tags = list(_schema_at(error["loc"], spec).get("discriminator", {}).get("mapping", {}))
    if kind.startswith("union_tag"):
        tag = context.get("tag")
        found = "missing" if tag is None else f"found {tag!r}"
        hint = "" if tag is None else nearest(str(tag), sorted(tags))
        return (*key, "kind"), f"{found}, allowed: {', '.join(sorted(tags))}{hint}"
    if kind == "extra_forbidden":
        names = sorted(_schema_at(error["loc"][:-1], spec).get("properties", {}))
        return key, f"unknown key, allowed: {', '.join(names)}" + nearest(str(key[-1]), names)
    if kind == "missing":
        words = _schema_at(error["loc"], spec).get("description", "").split(":")[0].rstrip(".")
        lower = words[:1].lower() + words[1:] if words[1:2].islower() else words
        return key, f"missing, allowed: {lower}" if words else "missing"
    such_as = ""
    if kind in MAPPINGS and tags:  # a mapping whose `kind` determines its other keys, such as a mask
        such_as = f" such as {{kind: {error['input'] if error['input'] in tags else tags[0]}}}"
    allowed = KINDS.get(kind, error["msg"])
    if kind == "literal_error":
        names = [name.strip(" '") for name in context["expected"].replace(" or ", ", ").split(",")]
        allowed = ", ".join(names) + nearest(str(error["input"]), names)
    elif kind == "string_pattern_mismatch":
        allowed = PATTERNS[context["pattern"]]
    elif kind in BOUNDS:
        bound, words = BOUNDS[kind]
        allowed = words.format(context[bound])
    return key, f"found {_show(error['input'])}, allowed: {allowed}{such_as}"


def nearest(name: str, names: list[str]) -> str:
    """`; did you mean 'NAME'?`, or nothing if no name is similar."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


@cache
def _schema(spec: type[Spec]) -> dict[str, Any]:
    return spec.model_json_schema()


def _resolve(schema: dict[str, Any], spec: type[Spec]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    return _schema(spec)["$defs"][reference.rpartition("/")[2]] if reference else schema


def _schema_at(loc: Key, spec: type[Spec]) -> dict[str, Any]:
    schema = _schema(spec)
    for step in loc:
        schema = _resolve(schema, spec)
        if "discriminator" in schema:
            schema = _resolve({"$ref": schema["discriminator"]["mapping"].get(step, "")}, spec)
        elif isinstance(step, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(step, {})
    return _resolve(schema, spec)


def _show(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


NO_VARIATION = Variation({}, {})


def check(settings: object) -> tuple[Scenario | None, list[Refusal]]:
    """Check a scenario's settings, given as plain data, and every case of its matrix.

    Returns the scenario with its checked variations, or the mistakes: first the file's own, then those of its cases.
    """
    if not isinstance(settings, dict):
        found = "nothing" if settings is None else repr(settings)[:60]
        return None, [Refusal((), f"found {found}, allowed: keys such as `version: 1`")]
    if "hsk" not in settings and settings.keys() & {"scenarios", "entries", "upstream"}:
        return None, [Refusal((), "this is a suite (see `fattn-probe regress`), allowed: a scenario")]
    matrix = settings.get("matrix") or {}
    base, problems = _checked(settings, NO_VARIATION, refuse=not matrix)
    cases = [(NO_VARIATION, base)]
    if matrix and (not isinstance(matrix, dict) or any(problem.path[:1] == ("matrix",) for problem in problems)):
        return None, problems
    if matrix and count_cases(matrix) > MAX_CASES:
        many = f"makes {count_cases(matrix)} cases, allowed: at most {MAX_CASES}"
        return None, [*problems, Refusal(("matrix",), many)]
    if matrix:
        cases = []
        for variation in variations(matrix):
            case, mistakes = _checked(apply_variation(settings, variation), variation, refuse=True)
            cases.append((variation, case))
            problems += [problem for problem in mistakes if problem not in problems]
    good = [(variation, case) for variation, case in cases if case is not None]
    return None if problems or base is None else base.with_cases(good), problems


def _checked(settings: dict[str, Any], variation: Variation, *, refuse: bool) -> tuple[Scenario | None, list[Refusal]]:
    """The scenario with these settings, or its mistakes; `refuse` adds what ggml or the op would reject."""
    try:
        scenario = Scenario.model_validate(settings)
    except ValidationError as error:
        found = [explain(details, settings) for details in error.errors(include_url=False)]
        return None, [Refusal(_place(key, variation), text) for key, text in found]
    refused = refusals(scenario) if refuse else []
    return scenario, [Refusal(_place(refusal.path, variation), refusal.reason) for refusal in refused]


def _place(key: Key, case: Variation) -> Key:
    """The key in the file that sets a value; for a value from a variation, the key in the matrix."""
    for dotted, place in case.places.items():
        parts = tuple(dotted.split("."))
        if key[: len(parts)] == parts:
            return (*place, *key[len(parts) :])
        if key[-1:] == ("kind",) and len(key) > 1 and key[:-1] == parts[: len(key) - 1]:
            return place
    return key


def checked(settings: object, name: str, prefix: str) -> Scenario:
    """The scenario with these settings and this name; InputError lists every mistake, each after the prefix."""
    scenario, problems = check(settings)
    if scenario is None:
        raise InputError("\n".join(f"{prefix}: {problem}" for problem in problems))
    return scenario.named(name)


def load(path: Path | str) -> Scenario:
    """Read and check a scenario file; InputError lists every mistake as `path:line: key: found, allowed`."""
    path = Path(path)
    return loads(read_text(path, "the scenario"), str(path)).named(path.stem)


def loads(text: str, name: str = "scenario") -> Scenario:
    """`load` from a string; messages show `name` instead of a path."""
    document = parse(text, name)
    scenario, problems = check(document.value)
    found = [*document.mistakes, *((document.line(problem.path), str(problem)) for problem in problems)]
    if found or scenario is None:
        found.sort(key=lambda mistake: mistake[0])
        raise InputError("\n".join(dict.fromkeys(f"{name}:{line}: {said}" for line, said in found)))
    return scenario
