"""Scenarios: YAML files that describe FLASH_ATTN_EXT ops, their cases, and their inputs."""

from .cases import Case, expand, make_inputs, row_bytes, view_values
from .layout import Root, TensorView
from .load import load, loads
from .schema import Scenario

__all__ = [
    "Case",
    "Root",
    "Scenario",
    "TensorView",
    "expand",
    "load",
    "loads",
    "make_inputs",
    "row_bytes",
    "view_values",
]
