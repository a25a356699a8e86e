"""Which allocations repeat, and how.

A tensor of 10^10 elements is drawn, stored and read in seconds if its memory repeats. An allocation of more than
REPEATS_ABOVE bytes repeats its first bytes, the period: whole rows of memory and whole pages, times a prime. A power of
two is never a multiple of it: an offset that lost its upper bits (2^31 or 2^32 bytes or elements) reads other values.
"""

import math
from dataclasses import replace
from itertools import count

from fattn_probe.cases.op import Root

REPEATS_ABOVE = 1 << 30
LEAST_PERIOD = 16 << 20
MOST_PERIOD = 1 << 30
MOST_PERIODS = 4096
"""Each period is a memory mapping of the process; Linux allows 65,530 (vm.max_map_count)."""
PAGE = 4096


def repeating(root: Root) -> Root:
    """The root with its period, if it is so large that it repeats."""
    if root.nbytes <= REPEATS_ABOVE:
        return root
    unit = math.lcm(root.nb[1], PAGE)
    least = max(LEAST_PERIOD, root.nbytes // MOST_PERIODS)
    candidates = count(max(3, -(-least // unit)))
    prime = next(number for number in candidates if all(number % by for by in range(2, math.isqrt(number) + 1)))
    period = unit * prime
    return replace(root, period=period) if period <= min(MOST_PERIOD, root.nbytes // 2) else root
