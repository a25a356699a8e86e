"""What every part of a scenario's schema is made of."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A part of a scenario file: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
