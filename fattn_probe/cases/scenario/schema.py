"""Version 1 of the schema of scenario files: one FLASH_ATTN_EXT op, and a matrix of its variations."""

import copy
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr

from fattn_probe.cases.op.op import TypeName
from fattn_probe.cases.scenario.data import Data, Positive, Seed
from fattn_probe.cases.scenario.layout import Layout
from fattn_probe.cases.scenario.mask import Mask, NoMask
from fattn_probe.cases.scenario.spec import Spec

Key = tuple[str | int, ...]
MAX_CASES = 10_000
NAME = re.compile(r"[A-Za-z0-9._+-]{1,60}")


@dataclass(frozen=True)
class Variation:
    """One case of a matrix: its values by dotted key, and the paths in the file that set them.

    If `name` is given, it replaces the values in the case's name.
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
        # A name that is not a plain word stays in the keys, so that the schema rejects it.
        name = values.get("name", "")
        plain = isinstance(name, str) and NAME.fullmatch(name) and len(values) > 1
        if plain:
            del values["name"]
        places: dict[str, Key] = {key: ("matrix", "include", number, key) for key in values}
        made.append(Variation(values, places, name if plain else ""))
    return made


def count_cases(matrix: dict[str, Any]) -> int:
    """The number of cases in a matrix, without generating them."""
    product = 1
    for key, values in matrix.items():
        product *= len(values) if key != "include" else 1
    return product + len(matrix.get("include", []))


def apply_variation(base: dict[str, Any], variation: Variation) -> dict[str, Any]:
    """A copy of a scenario's mapping with a variation's keys set; missing mappings are created.

    If the base does not set a tensor's data, their kind is uniform, as in a file without a matrix.
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


def case_names(stem: str, cases: list[Variation]) -> list[str]:
    """A name for each case, made of the stem and the varied values: stable, unique, safe in file names and shells."""
    every = {key for case in cases for key in case.values}
    last = [key.rpartition(".")[2] for key in every]
    keys = {key: short if last.count(short := key.rpartition(".")[2]) == 1 else key for key in every}
    texts: dict[str, dict[str, str]] = {}  # by the value's repr; a mapping is represented by its kind if that is unique
    for key in keys:
        values = {repr(case.values[key]): case.values[key] for case in cases if key in case.values}
        kinds = [one["kind"] for one in values.values() if isinstance(one, dict) and "kind" in one]
        texts[key] = {
            said: str(one["kind"]) if isinstance(one, dict) and kinds.count(one.get("kind")) == 1 else _text(one)
            for said, one in values.items()
        }
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


def _text(value: object) -> str:
    if isinstance(value, dict):
        rest = [f"{key}{_text(inner)}" for key, inner in value.items() if key != "kind"]
        return "+".join([str(value.get("kind"))] * ("kind" in value) + rest)
    if isinstance(value, list):
        return "".join(_text(inner) for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


Size = Annotated[int, Field(ge=1, lt=2**31)]
NotNegative = Annotated[float, Field(ge=0, le=3e38)]
Index = Annotated[int, Field(ge=0)]
ONE_LINE = r"^[^\n]+$"
FACT_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
DEVICE = r"^(sim:[a-z0-9][a-z0-9_-]*|gpu(:\d+)?|cpu)$"
Fact = bool | int | float | str | list[int] | list[float] | list[str]


class Tolerance(Spec):
    """The errors that `compare` accepts."""

    nmse: float = Field(default=5e-4, gt=0)
    """Normalised mean square error against float64: sum((out-ref)^2)/sum(ref^2); test-backend-ops allows 5e-4."""
    max_abs: float | None = Field(default=None, gt=0)
    """Largest absolute error of an element; default: no limit."""


class TracePlace(Spec):
    """The part of a launch that `inspect` follows."""

    block: Index = 0
    """Linear index of the block in its grid."""
    warp: Index = 0
    """Warp of the block."""
    lane: Annotated[int, Field(ge=0, lt=32)] | None = None
    """Thread of the warp; default: all 32."""
    kb0: Index | None = None
    """KV step to inspect; default: all KV steps of the block."""


class Inspect(Spec):
    """The values that `inspect` shows in addition to the tensors, the kernel's choice, the launch and the blocks."""

    trace: TracePlace | None = None
    """A warp to follow step by step; default: none."""


class Matrix(Spec):
    """Variations: all combinations of the lists under dotted keys (`n_kv`, `data.V.mean`), plus those in `include`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1)]]
    include: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(default=[])
    """Additional cases, each a mapping from dotted keys to values."""


class Scenario(Spec):
    """A scenario file: one FLASH_ATTN_EXT op, its inputs, its expected facts, and variations."""

    version: Literal[1]
    """Version of this schema."""
    about: str = Field(min_length=1, max_length=200, pattern=ONE_LINE)
    """One line: what the scenario tests or shows."""
    hsk: Size
    """Head size of Q and K (DKQ)."""
    hsv: Size | None = None
    """Head size of V (DV); default: hsk."""
    n_head: Size
    """Attention heads of Q."""
    n_head_kv: Size | None = None
    """Heads of K and V; must divide n_head; default: n_head."""
    n_q: Size
    """Queries: tokens of the batch."""
    n_kv: Size
    """KV rows of the op."""
    n_seq: Size = 1
    """Sequences, dimension 3 of every operand."""
    type_K: TypeName = "f16"
    """ggml type of K."""
    type_V: TypeName | None = None
    """ggml type of V; default: type_K."""
    scale: Positive | None = None
    """Factor on Q.K; default: 1/sqrt(hsk)."""
    max_bias: NotNegative = 0.0
    """ALiBi's max_bias; 0 is off."""
    logit_softcap: NotNegative = 0.0
    """Logits become softcap * tanh(logit / softcap); 0 is off."""
    prec: Literal["default", "f32"] = "f32"
    """Requested precision; llama.cpp requests f32 for every attention op."""
    n_kv_max: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Bound on the finite mask entries in a row; kernels can then gather them (op parameter since 2026); 0 is off."""
    sinks: bool = False
    """Whether the op gets attention sinks."""
    mask: Mask = NoMask()
    """The mask."""
    layout: Layout = Layout()
    """The operands' layout in memory."""
    data: Data = Data()
    """The contents of the operands."""
    seed: Seed = 0
    """Seed of all random inputs."""
    tolerance: Tolerance = Tolerance()
    """The errors that `compare` accepts."""
    inspect: Inspect = Inspect()
    """Settings of `inspect`, such as the warp to follow."""
    expect: dict[Annotated[str, Field(pattern=FACT_NAME)], Fact] = Field(default={})
    """Expected values of facts, by the variable's name in llama.cpp, such as `ntiles_dst: 2`."""
    device: str | None = Field(default=None, pattern=DEVICE)
    """Target without `--on`: `sim:NAME` (a simulated GPU), `gpu` or `cpu`; default: this machine's GPU if it has one,
    else `sim:h200`."""
    matrix: Matrix = Field(default_factory=Matrix.model_construct)
    """Variations of the file; each is one case."""
    _name: str = PrivateAttr("scenario")
    _cases: tuple[tuple[Variation, "Scenario"], ...] = PrivateAttr(())

    @property
    def name(self) -> str:
        """The file's stem; the names of its cases begin with it."""
        return self._name

    @property
    def cases(self) -> tuple[tuple[Variation, "Scenario"], ...]:
        """The variations with their scenarios; empty until checked."""
        return self._cases

    def with_cases(self, cases: Iterable[tuple[Variation, "Scenario"]]) -> "Scenario":
        """The same scenario with its checked cases."""
        copy = self.model_copy()
        copy._cases = tuple(cases)
        return copy

    def named(self, name: str) -> "Scenario":
        """The same scenario with a new name."""
        copy = self.model_copy()
        copy._name = name
        return copy
