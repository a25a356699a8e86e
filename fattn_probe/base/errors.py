"""The exceptions that end a command, and the exit code of each."""

from errno import ENOENT


class FattnProbeError(Exception):
    """An error that the user must act on; `str()` is the whole message, without a traceback."""

    exit_code = 1


class InputError(FattnProbeError):
    """The user's input is wrong: flags, scenario, source, patch, device."""

    exit_code = 2


class NoAnswerError(InputError):
    """An input contains NaN or infinity, so the op has no exact answer."""


class BuildError(FattnProbeError):
    """A compiler, a linker or a missing tool stopped a build."""

    exit_code = 3


class MachineError(FattnProbeError):
    """A problem of the user's machine: a full disk, a permission, too little memory, a package that is missing."""

    exit_code = 3


class LostError(FattnProbeError):
    """The run timed out, crashed for an unknown reason, or lost its debugger or device: never a verdict on a kernel."""

    exit_code = 4


class TimedOutError(LostError):
    """A program was killed because it took too long; `said` is the part of its output that was kept."""

    def __init__(self, message: str, said: str = "") -> None:
        """The message, and the output."""
        super().__init__(message)
        self.said = said


class ComparisonError(FattnProbeError):
    """An output is wrong, the checker found a fault, an `expect` does not hold, or no target supports any case."""

    exit_code = 5


class RegressionError(FattnProbeError):
    """Something is worse than in the accepted baseline."""

    exit_code = 6


class UnjudgedError(FattnProbeError):
    """There is an output, but no way to judge it: neither a pass nor a failure."""

    exit_code = 7


def machine_error(error: OSError | MemoryError) -> MachineError:
    """An unexpected error of the operating system, in one sentence with its path."""
    if isinstance(error, MemoryError):
        return MachineError(f"there is not enough memory: {error}" if str(error) else "there is not enough memory")
    if error.errno == ENOENT and error.filename is None:
        return MachineError("the current folder no longer exists")
    paths = [str(path) for path in (error.filename, error.filename2) if path is not None]
    return MachineError(": ".join([*paths, error.strerror or str(error) or type(error).__name__]))
