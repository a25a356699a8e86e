"""The changes that are tried: cosmic-ray's operators, and a few for numbers, aggregations and roots."""

import ast
from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.operators.operator import Operator

CORE = (
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt")),
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in ("Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt")),
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in ("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")),
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul")),
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in ("Mod_FloorDiv", "Pow_Mul", "RShift_LShift", "LShift_RShift")),
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in ("BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitAnd")),
    *(f"core/ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *(f"core/{name}" for name in ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr")),
    *(f"core/{name}" for name in ("ReplaceOrWithAnd", "AddNot", "ZeroIterationForLoop")),
    *(f"core/{name}" for name in ("ReplaceBreakWithContinue", "ReplaceContinueWithBreak")),
)
SWAPPED = {
    "abs": "positive",
    "all": "any",
    "any": "all",
    "argmax": "argmin",
    "bisect_left": "bisect_right",
    "bisect_right": "bisect_left",
    "cumsum": "asarray",
    "fmax": "fmin",
    "hypot": "maximum",
    "isfinite": "isnan",
    "isinf": "isnan",
    "isnan": "isinf",
    "isneginf": "isposinf",
    "max": "min",
    "maximum": "minimum",
    "mean": "max",
    "min": "max",
    "minimum": "maximum",
    "nanmean": "nanmax",
    "rint": "floor",
    "sqrt": "positive",
    "square": "positive",
    "std": "var",
    "sum": "max",
    "union1d": "intersect1d",
    "zeros": "ones",
    "zeros_like": "ones_like",
}
"""Functions, and what each is replaced by: another aggregation, another test for NaN, no root."""


class SwapFunction(Operator):
    """Replace a function by another that takes the same arguments."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """The uses of a name in SWAPPED."""
        used = node.type == "name" and node.value in SWAPPED and not node.is_definition()
        following = node.get_next_leaf() if used else None
        if following is not None and following.value in "(.":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The other function; of Python's own `abs`, none."""
        other = SWAPPED[node.value]
        alone = node.get_previous_leaf().value != "."
        node.value = "float" if alone and other == "positive" else other
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


class SwapMembership(Operator):
    """Replace `in` by `not in`."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Each `in` of a comparison."""
        if node.type == "keyword" and node.value == "in" and node.parent.type == "comparison":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The opposite."""
        node.value = "not in"
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


class ChangeNumber(Operator):
    """One more or one less than a whole number; twice or half of another: one more may be absurd, or nothing."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """Each number, twice."""
        if node.type == "number":
            for _ in changed(node.value):
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The number, changed."""
        return parso.python.tree.Number(changed(node.value)[index], node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        """None."""
        return ()


def changed(text: str) -> tuple[str, ...]:
    """A number of Python's source and its neighbours: `3` to `4` and `2`, `0.5` to `1.0` and `0.25`; none for 0.0."""
    value = ast.literal_eval(text)
    if isinstance(value, int):
        return str(value + 1), str(value - 1)
    return (repr(value * 2), repr(value / 2)) if value else ()


def operators() -> list[Operator]:
    """All operators."""
    return [*(plugins.get_operator(name)() for name in CORE), SwapFunction(), SwapMembership(), ChangeNumber()]
