"""Schema v1 of a scenario file: one FLASH_ATTN_EXT op, and a matrix of its variations."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PrivateAttr

from fattn_probe.cases.op.ggml_types import TypeName

from .data import Data, Positive, Seed
from .layout import Layout
from .mask import Mask, NoMask
from .matrix import Variation
from .spec import Spec

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
    """Normalised mean square error against float64, sum((out-ref)^2)/sum(ref^2); test-backend-ops allows 5e-4."""
    max_abs: float | None = Field(default=None, gt=0)
    """Largest absolute error of an element; default: any."""


class TracePlace(Spec):
    """The place in a launch that `inspect` follows."""

    block: Index = 0
    """Linear index of the block in its grid."""
    warp: Index = 0
    """Warp of the block."""
    lane: Annotated[int, Field(ge=0, lt=32)] | None = None
    """Thread of the warp; default: all 32."""
    kb0: Index | None = None
    """KV step to inspect; default: all that the block does."""


class Inspect(Spec):
    """The values that `inspect` shows in addition to tensors, choice, launch and blocks."""

    trace: TracePlace | None = None
    """A warp to follow step by step; default: none."""


class Matrix(Spec):
    """Variations: all combinations of the lists under dotted keys (`n_kv`, `data.V.mean`), plus those of `include`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[list[Any], Field(min_length=1)]]
    include: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(default=[])
    """Explicit cases, each a mapping of dotted keys to values."""


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
    """Bound on the finite mask entries of a row, which lets kernels gather them (op param since 2026); 0 is off."""
    sinks: bool = False
    """Whether the op gets attention sinks."""
    mask: Mask = NoMask()
    """The mask."""
    layout: Layout = Layout()
    """Where the operands lie in memory."""
    data: Data = Data()
    """The contents of the operands."""
    seed: Seed = 0
    """Seed of all random inputs."""
    tolerance: Tolerance = Tolerance()
    """The errors that `compare` accepts."""
    inspect: Inspect = Inspect()
    """The warp that `inspect` follows."""
    expect: dict[Annotated[str, Field(pattern=FACT_NAME)], Fact] = Field(default={})
    """Expected values of facts, by the source's own variable names, such as `ntiles_dst: 2`."""
    device: str | None = Field(default=None, pattern=DEVICE)
    """Target without `--on`: `sim:NAME` (a simulated GPU), `gpu` or `cpu`; default: this machine's GPU if it has one,
    else `sim:h200`."""
    matrix: Matrix = Field(default_factory=Matrix.model_construct)
    """Variations of the file; each is one case."""
    _name: str = PrivateAttr("scenario")
    _cases: tuple[tuple[Variation, "Scenario"], ...] = PrivateAttr(())

    @property
    def name(self) -> str:
        """The file's stem, from which the cases take their names."""
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
        """The same scenario under a name."""
        copy = self.model_copy()
        copy._name = name
        return copy
