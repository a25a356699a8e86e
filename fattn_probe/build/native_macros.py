"""The macros of a build that the simulator's own files depend on; other files' objects serve every build."""

import functools
import re
from pathlib import Path

from fattn_probe.cxx.includes import included

SIM = Path(__file__).parent.parent / "native/sim"
MACRO = re.compile(r"\bSIMT_(?:AHEAD|ARCH|CHECK|COUNT|WARP)\b")


@functools.cache
def macros_of(name: str) -> frozenset[str]:
    """The macros that a file, relative to native/, or a header that it includes mentions."""
    texts = included([SIM.parent / name], (SIM, SIM / "include"), SIM.parent).values()
    return frozenset(macro for text in texts for macro in MACRO.findall(text))
