"""The exceptions that end a command, and the exit code of each."""

from errno import ENOENT


class FattnProbeError(Exception):
    """An error that the user must act on; `str()` is the whole message, without a traceback."""

    exit_code = 1


class InputError(FattnProbeError):
    """The user's input is wrong: a flag, scenario, source, patch or device."""

    exit_code = 2


class NoAnswerError(InputError):
    """An input contains NaN or infinity, so the op has no exact answer."""


class BuildError(FattnProbeError):
    """A compiler, a linker or a missing tool stopped a build."""

    exit_code = 3


class MachineError(FattnProbeError):
    """A problem with the user's machine: a full disk, no permission, too little memory, a missing package."""

    exit_code = 3


class LostError(FattnProbeError):
    """The run timed out, crashed for an unknown reason, or lost its debugger or device: not a verdict on the kernel."""

    exit_code = 4


class TimedOutError(LostError):
    """A program was killed because it took too long; `said` is the recorded part of its output."""

    def __init__(self, message: str, said: str = "") -> None:
        """Keep the message and the output."""
        super().__init__(message)
        self.said = said


class ComparisonError(FattnProbeError):
    """An output is wrong, the checker found a fault, an `expect` does not hold, or no target supports any case."""

    exit_code = 5


class RegressionError(FattnProbeError):
    """A result is worse than in the accepted baseline."""

    exit_code = 6


class UnjudgedError(FattnProbeError):
    """The run produced an output that cannot be judged, so it is neither a pass nor a failure."""

    exit_code = 7


def machine_error(error: OSError | MemoryError) -> MachineError:
    """The MachineError for an unexpected OS error: one sentence, with the path."""
    if isinstance(error, MemoryError):
        return MachineError(f"there is not enough memory: {error}" if str(error) else "there is not enough memory")
    if error.errno == ENOENT and error.filename is None:
        return MachineError("the current folder no longer exists")
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return MachineError(": ".join([*paths, error.strerror or str(error) or type(error).__name__]))
