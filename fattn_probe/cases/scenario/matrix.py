"""Expand a scenario's matrix into the settings and the name of each case."""

import copy
import itertools
import re
from dataclasses import dataclass
from typing import Any

Key = tuple[str | int, ...]
MAX_CASES = 10_000
NAME = re.compile(r"[A-Za-z0-9._+-]{1,60}")


@dataclass(frozen=True)
class Variation:
    """One case of a matrix: its values by dotted key, and the paths in the file that set them.

    `name` replaces the values in the case's name.
    """

    values: dict[str, Any]
    places: dict[str, Key]
    name: str = ""


def variations(matrix: dict[str, Any]) -> list[Variation]:
    """All cases of a `matrix:` mapping: the product of its lists, then the cases of `include`."""
    keys = [key for key in matrix if key != "include"]
    include = matrix.get("include", [])
    made = [
        Variation(
            dict(zip(keys, (matrix[key][i] for key, i in zip(keys, chosen, strict=True)), strict=True)),
            {key: ("matrix", key, i) for key, i in zip(keys, chosen, strict=True)},
        )
        for chosen in itertools.product(*(range(len(matrix[key])) for key in keys))
        if keys or not include
    ]
    for number, values in enumerate(map(dict, include)):
        # A name that is not a plain word stays among the keys, so that the schema refuses it.
        name = values.get("name", "")
        plain = isinstance(name, str) and NAME.fullmatch(name) and len(values) > 1
        if plain:
            del values["name"]
        places: dict[str, Key] = {key: ("matrix", "include", number, key) for key in values}
        made.append(Variation(values, places, name if plain else ""))
    return made


def count(matrix: dict[str, Any]) -> int:
    """The number of cases of a matrix, without generating them."""
    product = 1
    for key, values in matrix.items():
        product *= len(values) if key != "include" else 1
    return product + len(matrix.get("include", []))


def apply(base: dict[str, Any], variation: Variation) -> dict[str, Any]:
    """A copy of a scenario's mapping with a variation's keys set, and missing mappings created.

    If the base does not mention a tensor's data, they are uniform, as without a matrix.
    """
    settings = copy.deepcopy({key: value for key, value in base.items() if key != "matrix"})
    for dotted, value in variation.values.items():
        *parents, last = dotted.split(".")
        inner = settings
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {"kind": "uniform"} if inner is settings.get("data") else {}
            inner = inner[parent]
        inner[last] = copy.deepcopy(value)
    return settings


def names(stem: str, cases: list[Variation]) -> list[str]:
    """A name for each case from the stem and the varied values: stable, unique, safe for file names and shells."""
    every = {key for case in cases for key in case.values}
    last = [key.rpartition(".")[2] for key in every]
    keys = {key: short if last.count(short := key.rpartition(".")[2]) == 1 else key for key in every}
    texts = {key: _texts([case.values[key] for case in cases if key in case.values]) for key in keys}
    made: list[str] = []
    for case in cases:
        said = [f"{keys[key]}={texts[key][repr(value)]}" for key, value in case.values.items()]
        parts = [stem, *([case.name] if case.name else said)]
        name = plain = re.sub(r"[^A-Za-z0-9._=+-]+", "_", "-".join(parts))
        again = 1
        while name in made:
            again += 1
            name = f"{plain}-{again}"
        made.append(name)
    return made


def _texts(values: list[object]) -> dict[str, str]:
    """The text for each value in names, by its repr; a mapping's kind is enough if it is unique."""
    different = {repr(value): value for value in values}
    kinds = [value["kind"] for value in different.values() if isinstance(value, dict) and "kind" in value]
    return {
        key: str(value["kind"]) if isinstance(value, dict) and kinds.count(value.get("kind")) == 1 else _text(value)
        for key, value in different.items()
    }


def _text(value: object) -> str:
    if isinstance(value, dict):
        rest = [f"{key}{_text(inner)}" for key, inner in value.items() if key != "kind"]
        return "+".join([str(value.get("kind"))] * ("kind" in value) + rest)
    if isinstance(value, list):
        return "".join(_text(inner) for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
