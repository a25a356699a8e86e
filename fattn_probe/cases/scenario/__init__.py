"""Scenarios: YAML files that describe FLASH_ATTN_EXT ops, their cases, and their inputs."""

from fattn_probe.cases.scenario.cases import Case, expand
from fattn_probe.cases.scenario.check import load, loads
from fattn_probe.cases.scenario.schema import Scenario

__all__ = ["Case", "Scenario", "expand", "load", "loads"]
