"""The base class of stand-ins."""

from typing import Any

StandIn: Any = object
"""To mypy, what derives from it may stand in for any type."""
