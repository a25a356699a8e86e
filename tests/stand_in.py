"""The base class of stand-ins."""

from typing import Any

StandIn: Any = object
"""For mypy, a class derived from it may stand in for any type."""
