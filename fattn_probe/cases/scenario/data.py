"""The schema of the tensors' distributions; `draw` generates the numbers."""

from typing import Annotated, Literal

from pydantic import Field

from fattn_probe.cases.scenario.spec import Spec

Float32 = Annotated[float, Field(ge=-3e38, le=3e38)]
Positive = Annotated[float, Field(ge=1e-37, le=3e38)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class _Data(Spec):
    seed: Seed | None = None
    """Seed of this tensor; default: the scenario's seed."""


class Uniform(_Data):
    """Uniform in [mean - scale, mean + scale]; the defaults are the values in test-backend-ops."""

    kind: Literal["uniform"] = "uniform"
    scale: Positive = 1.0
    """Half the width."""
    mean: Float32 = 0.0
    """Centre; a V with a nonzero mean reveals bias that zero-mean data hides."""


class Normal(_Data):
    """Normal, roughly like real activations."""

    kind: Literal["normal"]
    scale: Positive = 1.0
    """Standard deviation."""
    mean: Float32 = 0.0
    """Mean."""


class Constant(_Data):
    """One value everywhere."""

    kind: Literal["constant"]
    value: Float32
    """The value."""


class Fa3Outliers(_Data):
    """scale * (N(0, 1) + N(0, 100) * Bernoulli(0.001)), as in FlashAttention-3's accuracy table (arXiv 2407.08608)."""

    kind: Literal["fa3_outliers"]
    scale: Positive = 1.0
    """Factor applied to every element."""
    mean: Float32 = 0.0
    """Added to every element."""
    outlier: Positive = 10.0
    """Standard deviation of the outliers."""
    probability: float = Field(default=0.001, gt=0, le=1)
    """Share of elements that are outliers."""


class LargeLogits(_Data):
    """Normal, scaled so that the logits have standard deviation `logit` if the other operand has variance 1."""

    kind: Literal["large_logits"]
    logit: Positive = 60.0
    """Standard deviation of scale * Q.K, before softcap and mask."""


class FarBelowZero(_Data):
    """Q and K point in opposite directions, so every logit is near `logit`, far below 0; set this kind for both."""

    kind: Literal["far_below_zero"]
    logit: float = Field(default=-1000.0, lt=0, ge=-3e38)
    """Mean of scale * Q.K."""
    scale: Positive = 0.1
    """Standard deviation of the added normal noise."""


class Extreme(_Data):
    """Uniform in [-scale, scale], with a few elements of +-magnitude near the largest f16, so f16 sums overflow."""

    kind: Literal["extreme"]
    scale: Positive = 1.0
    """Half the range of the ordinary elements."""
    magnitude: Positive = 30000.0
    """Absolute value of the extreme elements; the largest f16 is 65504."""
    probability: float = Field(default=0.01, gt=0, le=1)
    """Share of extreme elements."""


AnyData = Uniform | Normal | Constant | Fa3Outliers | LargeLogits | FarBelowZero | Extreme
QData = Annotated[AnyData, Field(discriminator="kind")]
VData = Annotated[Uniform | Normal | Constant | Fa3Outliers | Extreme, Field(discriminator="kind")]
SinkData = Annotated[Uniform | Normal | Constant, Field(discriminator="kind")]


class Data(Spec):
    """The distribution of each tensor."""

    Q: QData = Uniform()
    K: QData = Uniform()
    V: VData = Uniform()
    sinks: SinkData = Uniform(scale=10.0)
    """Default: uniform in [-10, 10], as in test-backend-ops, so that an ignored sink shows in the output."""
