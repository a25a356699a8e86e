"""Scenarios: YAML files that describe FLASH_ATTN_EXT ops, their cases, and their inputs."""

from .cases import Case, expand
from .check import load, loads
from .schema import Scenario

__all__ = ["Case", "Scenario", "expand", "load", "loads"]
