"""Inside gdb: breakpoints that can act without a stop, and the function at an address."""

from collections.abc import Callable

import gdb


class StopPoint(gdb.Breakpoint):
    """An internal breakpoint, because MI announces every hit of other breakpoints with all their locations."""

    def __init__(self, location: str) -> None:
        super().__init__(location, internal=True)

    def pass_if(self, act: Callable[[], bool]) -> None:
        """At a hit, call `act`, which may read but not resume; the program continues if it returns True.

        This takes a fifth of the time of a stop, which gdb reports in words and over MI.
        """
        self.stop = lambda: not act()  # type: ignore[method-assign]  # gdb calls it if there is one

    def stop_again(self) -> None:
        """Stop at each hit."""
        del self.stop


def function_block(pc: int) -> gdb.Block | None:
    """The block of the function that contains an address; None without debug information."""
    try:
        block = gdb.block_for_pc(pc)
    except RuntimeError:  # "Cannot locate object file for block."
        return None
    while block is not None and block.function is None:
        block = block.superblock
    return block


def function_at(pc: int) -> str:
    """The function that contains an address, in whichever of its blocks; empty without debug information."""
    block = function_block(pc)
    return str(block.function) if block is not None else ""
