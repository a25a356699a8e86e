"""What gives a fault away, as results and verdicts name it."""

from typing import Final, Literal

VERDICT: Final = "verdict"
"""A wrong output."""
CHECK: Final = "check"
"""A right output that fails a check of its bits or its kernels."""
CHECKER: Final = "checker"
"""A finding of the checker's build."""
STOPPED: Final = "stopped"
"""A run that ended without an output, or hung."""
SUPPORT: Final = "support"
"""An op that is no longer supported."""
BUILD: Final = "build"
"""A kernel that does not compile."""
KilledBy = Literal["verdict", "check", "checker", "stopped", "support", "build"]

MISSING: Final = "missing"
"""A run that stopped since the build lacks a kernel; compile it and run again."""
LOST: Final = "lost"
"""A run that an error of the bench ended: no verdict. The failure of a case that could not be run begins so too."""
Ending = KilledBy | Literal["", "missing", "lost"]
"""How a run with a mutant ends: empty if nothing gives the mutant away."""
