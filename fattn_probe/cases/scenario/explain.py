"""Turn pydantic's errors into messages: what was found, what is allowed, and the nearest valid name."""

import difflib
from functools import cache
from typing import Any

from pydantic_core import ErrorDetails

from fattn_probe.cases.scenario.schema import DEVICE, FACT_NAME, ONE_LINE, Scenario
from fattn_probe.cases.scenario.spec import Spec

Key = tuple[str | int, ...]
ENTRY_NAME = r"^[a-z0-9-]*$"
"""Keys of a suite's entry."""
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
    ENTRY_NAME: "a name of small letters, digits and -",
    ONE_LINE: "one line of text",
    FACT_NAME: "the name of a variable, such as ntiles_dst",
    DEVICE: "sim:NAME such as sim:h200, gpu, gpu:N, or cpu",
}
MOST_BITS = 256  # digits of an integer in a message; Python refuses to print 4300 digits
FACTS = "true, false, a number, text, or a list of numbers or of texts"
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
    """The key (path in the file) of an error in `settings`, which are those of a `spec`, and its message."""
    key, kind = _file_key(error["loc"], settings), error["type"]
    if kind == "value_error":
        return key, str(error["ctx"]["error"])
    if error["loc"][:1] == ("expect",) and len(error["loc"]) > 2:
        key = error["loc"][:2]
        return key, f"found {_show(settings['expect'][key[1]])}, allowed: {FACTS}"
    tags = list(_schema_at(error["loc"], spec).get("discriminator", {}).get("mapping", {}))
    if kind.startswith("union_tag"):
        tag = error.get("ctx", {}).get("tag")
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
    if kind in MAPPINGS and tags:  # a mapping whose `kind` chooses its other keys, such as a mask's
        such_as = f" such as {{kind: {error['input'] if error['input'] in tags else tags[0]}}}"
    return key, f"found {_show(error['input'])}, allowed: {_allowed(error)}{such_as}"


def _allowed(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        names = [name.strip(" '") for name in context["expected"].replace(" or ", ", ").split(",")]
        return ", ".join(names) + nearest(str(error["input"]), names)
    if kind == "string_pattern_mismatch":
        return PATTERNS[context["pattern"]]
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return words.format(context[bound])
    return KINDS.get(kind, error["msg"])


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


def _file_key(loc: Key, settings: dict[str, Any]) -> Key:
    """A pydantic location without the tags of unions, which are not keys in the file."""
    key: list[str | int] = []
    value: Any = settings
    for number, step in enumerate(loc):
        inside = (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int))
        if inside:
            key.append(step)
            value = value[step]
        elif number == len(loc) - 1 and isinstance(value, dict):
            key.append(step)
    return tuple(key)


def _show(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."
