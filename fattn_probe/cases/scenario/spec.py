"""The base class of every part of a scenario's schema."""

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Spec(BaseModel):
    """A part of a scenario file: immutable, without unknown keys or silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    def model_post_init(self, context: object) -> None:
        """Mark `kind` as set, so that a dump of the set fields includes it, as unions require."""
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON schema, with the docstrings of fields as descriptions.

        Pydantic's own `use_attribute_docstrings` reads the source of every class at import, which takes 40 ms.
        """
        found = handler(schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in field_docstrings(cls).items():
            properties[name]["description"] = text
        return found


def field_docstrings(cls: type[Spec]) -> dict[str, str]:
    """The docstrings after the fields of a class and of its bases, by field."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if issubclass(each, Spec) and each is not Spec:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            assert isinstance(definition, ast.ClassDef)
            for pair in pairwise(definition.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
    return {name: text for name, text in found.items() if name in cls.model_fields}
