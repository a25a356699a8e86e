"""What every part of a scenario's schema is made of."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A part of a scenario file: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def model_post_init(self, context: object) -> None:
        """Count `kind` as given, so that dumping what was given keeps it: a union is told apart by it."""
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")
