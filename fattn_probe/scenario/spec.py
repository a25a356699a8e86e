"""The base class of every part of a scenario's schema."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A part of a scenario file: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def model_post_init(self, context: object) -> None:
        """Mark `kind` as set, so that a dump of the set fields includes it; unions need it."""
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")
