"""The exceptions that end a command, and the exit code of each."""


class FattnProbeError(Exception):
    """Something a person must act on; `str()` is the whole message, without a traceback."""

    exit_code = 1


class InputError(FattnProbeError):
    """The user's input is wrong: flags, scenario, source, patch, device."""

    exit_code = 2


class BuildError(FattnProbeError):
    """A compiler, a linker or a missing tool stopped a build."""

    exit_code = 3


class LostError(FattnProbeError):
    """The run was lost (time-out, debugger or device gone): never a verdict on the kernel."""

    exit_code = 4


class ComparisonError(FattnProbeError):
    """An output is wrong, the checker found a fault, or an `expect` does not hold."""

    exit_code = 5


class RegressionError(FattnProbeError):
    """Something got worse against the accepted history."""

    exit_code = 6
