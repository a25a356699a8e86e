"""Inside gdb: backtraces without the simulator's launch machinery."""

import re
from collections.abc import Iterator
from typing import Any

import gdb
from gdb.FrameDecorator import FrameDecorator

from fattn_probe.machine.debug.names import without_parameters

# The frames between a launch and its kernel: the simulator's files, and std::function and std::apply
MACHINERY = re.compile(r"(^|/)native/sim/|/include/c\+\+/")


class ShortFrame(FrameDecorator):
    """A frame that shows its function without parameter types; a kernel has up to 40 of these."""

    def function(self) -> str | None:
        """The function's name, such as `flash_attn_ext_f16<64, 64, 8, 8, false, false, false>`."""
        name = super().function()
        if not isinstance(name, str):  # an address, if there is no name
            return name
        return without_parameters(name).replace("ggml_cuda_mma::", "")


class LaunchFilter:
    """Leaves out the frames of the launch machinery, except the innermost frame."""

    name = "fattn-probe"
    enabled = True
    priority = 100

    def filter(self, iterator: Iterator[Any]) -> Iterator[FrameDecorator]:
        """The frames to show."""
        return (ShortFrame(frame) for at, frame in enumerate(iterator) if at == 0 or not _is_machinery(frame))


def _is_machinery(frame: FrameDecorator) -> bool:
    return frame.address() == 0 or bool(MACHINERY.search(str(frame.filename() or "")))  # 0: below a fiber's first frame


def shorten_backtraces() -> None:
    """Register the filter, which `bt` uses and `bt -no-filters` does not."""
    gdb.frame_filters[LaunchFilter.name] = LaunchFilter()
