"""pydantic's errors in words: what was found, what is allowed, and the nearest valid name."""

import difflib
from functools import cache
from typing import Any

from pydantic_core import ErrorDetails

from .schema import Scenario

Key = tuple[str | int, ...]
BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "string_pattern_mismatch": ("pattern", "text like {}"),
    "too_short": ("min_length", "at least {} entries"),
    "too_long": ("max_length", "at most {} entries"),
    "string_too_short": ("min_length", "at least {} characters"),
    "string_too_long": ("max_length", "at most {} characters"),
}
KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}


def explain(error: ErrorDetails, settings: dict[str, Any]) -> tuple[Key, str]:
    """The key (path in the file) of an error in `settings` and a sentence on it."""
    key = _file_key(error["loc"], settings)
    kind, context = error["type"], error.get("ctx", {})
    found = f"found {_show(error['input'])}, allowed: "
    if kind == "extra_forbidden":
        return key, _unknown_key(str(key[-1]), fields(error["loc"][:-1]))
    if kind == "missing":
        return key, "missing" + _about(error["loc"])
    if kind == "union_tag_not_found":
        return (*key, "kind"), f"missing, allowed: {_names(context['expected_tags']) if 'expected_tags' in context else _tags(error['loc'])}"
    if kind == "union_tag_invalid":
        tags = _split(context["expected_tags"])
        return (*key, "kind"), f"found {context['tag']!r}, allowed: {', '.join(tags)}" + nearest(context["tag"], tags)
    if kind == "literal_error":
        names = _split(context["expected"])
        return key, found + ", ".join(names) + nearest(str(error["input"]), names)
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return key, found + words.format(context[bound])
    return key, found + KINDS[kind] if kind in KINDS else found + error["msg"]


def nearest(name: str, names: list[str]) -> str:
    """`; did you mean 'NAME'?`, or nothing if no name is near."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def fields(loc: Key) -> list[str]:
    """The keys that a mapping at a pydantic location (tags of unions included) may have."""
    return sorted(_schema_at(loc).get("properties", {}))


@cache
def _schema() -> dict[str, Any]:
    return Scenario.model_json_schema()


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    return _schema()["$defs"][reference.rpartition("/")[2]] if reference else schema


def _schema_at(loc: Key) -> dict[str, Any]:
    schema = _schema()
    for step in loc:
        schema = _resolve(schema)
        if "discriminator" in schema:
            schema = _resolve({"$ref": schema["discriminator"]["mapping"].get(step, "")})
        elif isinstance(step, int):
            schema = schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(step, {})
    return _resolve(schema)


def _file_key(loc: Key, settings: Any) -> Key:
    """A pydantic location without the tags of unions, which the file does not have as keys."""
    key: list[str | int] = []
    value = settings
    for number, step in enumerate(loc):
        inside = (isinstance(value, dict) and step in value) or (isinstance(value, list) and isinstance(step, int))
        if inside:
            key.append(step)
            value = value[step]
        elif number == len(loc) - 1 and isinstance(value, dict):
            key.append(step)
    return tuple(key)


def _unknown_key(name: str, names: list[str]) -> str:
    return f"unknown key, allowed: {', '.join(names)}" + nearest(name, names)


def _about(loc: Key) -> str:
    schema = _schema_at(loc)
    words = schema.get("description", "").split(":")[0].rstrip(".")
    return f", allowed: {words[:1].lower() + words[1:]}" if words else ""


def _tags(loc: Key) -> str:
    return ", ".join(sorted(_schema_at(loc).get("discriminator", {}).get("mapping", {})))


def _split(listing: str) -> list[str]:
    return [name.strip(" '") for name in listing.replace(" or ", ", ").split(",")]


def _names(listing: str) -> str:
    return ", ".join(_split(listing))


def _show(value: Any) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."
