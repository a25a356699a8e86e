"""docs/scenario.schema.json and docs/scenario.md, from the schema: `python -m fattn_probe.scenario.docs docs`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .schema import Scenario
from .spec import Spec
from .starter import STARTER

INTRO = """\
# Scenario files

A scenario is one YAML file: one `FLASH_ATTN_EXT` op, its inputs, and the expected facts. A `matrix:` makes many
cases of one file. `fattn-probe scenario list` lists the shipped ones, `scenario show FILE` prints the resolved
cases of a file, `scenario check FILE...` reports its mistakes, `scenario new FILE` writes a file to start from, and
`scenario from-ops 'FLASH_ATTN_EXT(hsk=64,...)'` converts a case of `test-backend-ops`; upstream's defaults fill the
parameters that it leaves out. `scenario from-capture FILE.gguf` makes a scenario like a recorded op
([models.md](models.md)).

This page and `scenario.schema.json` are written from the schema in `fattn_probe/scenario/`. Editors use the latter with
`# yaml-language-server: $schema=PATH/scenario.schema.json` on the first line of a file. Dimensions are in ggml's order,
innermost first:

| operand | ne |
| --- | --- |
| Q | {hsk, n_q, n_head, n_seq}, f32 |
| K | {hsk, n_kv, n_head_kv, n_seq} |
| V | {hsv, n_kv, n_head_kv, n_seq} |
| mask | {n_kv, n_q (padded), 1, n_seq or 1}, f16 |
| sinks | {n_head, 1, 1, 1}, f32 |
| dst | {hsv, n_head, n_q, n_seq}, f32 |

A file with mistakes is refused before anything is built. All mistakes are reported together, each as
`file:line: key: what was found, what is allowed; did you mean ...?`, with exit code 2. Shapes that ggml or the op
would refuse are mistakes too. An allocation may take up to 1 TiB.

The same file gives the same bytes on every machine. Values depend on shapes, data and seeds, not on the layout:
the same op in another layout reads the same numbers. The layout's `outside` fills the memory outside a view.

## Large tensors
An allocation of more than 1 GiB repeats its first bytes, so that 10^10 elements are made, stored and read in seconds.
The period is the least common multiple of a row's bytes and a page (4096 bytes), times a prime that makes it at least
16 MiB and at least 1/4096 of the allocation. So it has whole rows, and no power of two is a multiple of it: an offset
that lost its upper bits reads other values. An allocation whose period would be more than 1 GiB or half of its size
does not repeat.

Where memory repeats, values belong to rows of memory: they depend on the layout, and the memory outside a view has
values like those inside. Of the mask, a period of n rows holds the rows of n queries, evenly spaced over the batch:
the mask of a query is that of the query that its row stands for. A causal mask then hides as much as it should in all,
though not from the query that it should. KV rows that come again have the same rounding errors each time, which the
error model counts.

"""

MATRIX = """\
Keys are dotted paths of the file (`n_kv`, `data.V.mean`, `mask`), values are lists; the cases are all combinations,
then those of `include`. A key replaces what the file says outside the matrix, which must be complete by itself. Cases
are named after the file and what varies: `biased-v-n_kv=4096-mean=1`. A `name` in an entry of `include` stands there
instead of what varies.

```yaml
matrix:
  n_kv: [256, 512]
  type_K: [f16, q8_0]
  include:
    - {n_q: 1, n_kv: 4096, data.V.mean: 1}
```

"""


def schema_json(kind: type[Spec] = Scenario) -> str:
    """The JSON Schema of a kind of file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **kind.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


def reference() -> str:
    """The page on scenario files, in Markdown."""
    schema = Scenario.model_json_schema()
    parts = [INTRO, "## Keys of a file\n\n", _table(schema)]
    for title, definitions in _sections(schema):
        parts.append(f"## {title}\n\n")
        for name in definitions:
            parts.append(_definition(schema["$defs"][name], alone=len(definitions) == 1))
    parts.append(f"## A file to start from\n\n```yaml\n{STARTER}```\n")
    return "".join(parts)


def write(folder: Path) -> None:
    """Write both files into a folder."""
    (folder / "scenario.schema.json").write_text(schema_json(), encoding="utf-8")
    (folder / "scenario.md").write_text(reference(), encoding="utf-8")


def _sections(schema: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Titles and names of definitions, in the order of the page."""
    definitions = schema["$defs"]
    unions = {
        "`mask`": schema["properties"]["mask"],
        "`layout.Q`, `layout.K`, `layout.V`": definitions["Layout"]["properties"]["V"],
        "`layout.mask`": {"oneOf": [{"$ref": "/MaskLayout"}]},
        "`data.Q`, `data.K`, `data.V`, `data.sinks`": definitions["Data"]["properties"]["Q"],
        "`tolerance`": {"oneOf": [{"$ref": "/Tolerance"}]},
        "`inspect.trace`": {"oneOf": [{"$ref": "/TracePlace"}]},
        "`matrix`": {"oneOf": [{"$ref": "/Matrix"}]},
    }
    for title, union in unions.items():
        yield title, [option["$ref"].rpartition("/")[2] for option in union["oneOf"]]


def _definition(schema: dict[str, Any], alone: bool) -> str:
    kind = schema["properties"].get("kind", {}).get("const")
    if schema["title"] == "Matrix":
        return _sentence(schema) + "\n\n" + MATRIX
    head = "" if alone or not kind else f"### `kind: {kind}`\n\n"
    return head + _sentence(schema) + "\n\n" + _table(schema)


def _table(schema: dict[str, Any]) -> str:
    rows = [
        f"| `{key}` | {_type(value)} | {_default(schema, key, value)} | {_sentence(value)} |"
        for key, value in schema["properties"].items()
        if key != "kind"
    ]
    return "\n".join(["| key | value | default | |", "| --- | --- | --- | --- |", *rows]) + "\n\n" if rows else ""


def _sentence(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split())


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{name}`" for name in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        return _type(next(option for option in schema["anyOf"] if option.get("type") != "null"))
    if "oneOf" in schema:
        return ", ".join(f"`{kind}`" for kind in schema["discriminator"]["mapping"])
    if schema.get("type") == "array":
        return "list"
    names = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`", "string": "text"}
    return names.get(schema.get("type", ""), "mapping") + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    bounds = [f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema]
    return f" {', '.join(bounds)}" if bounds else ""


def _default(schema: dict[str, Any], key: str, value: dict[str, Any]) -> str:
    if key in schema.get("required", []):
        return "required"
    default = value.get("default")
    if default is None or isinstance(default, dict):
        return f"`{default['kind']}`" if default and "kind" in default else ""
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
