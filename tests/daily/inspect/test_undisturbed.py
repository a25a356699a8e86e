import pytest

from fattn_probe.base.errors import LostError, MachineError
from fattn_probe.daily.inspect.inspector import MOST_ATTEMPTS, undisturbed


def extended(folder, times):
    """An attempt that another process disturbs so many times, by replacing a library; its result is its number."""
    (folder / "lib").mkdir()
    library = folder / "lib/libggml-cuda.so"
    attempts: list[int] = []
    library.write_text("0")

    def attempt():
        attempts.append(len(attempts))
        if len(attempts) <= times:
            part = library.with_suffix(".so.part")
            part.write_text(str(len(attempts)))
            part.replace(library)
        return attempts[-1]

    return attempt


def refused(attempt, times):
    """The same attempt, which raises as long as it is disturbed: a debugger that reads a replaced file refuses."""

    def raising():
        number = attempt()
        if number < times:
            raise MachineError("gdb refused: Dwarf Error: wrong version in compilation unit header")
        return number

    return raising


def test_an_error_of_a_disturbed_attempt_does_not_count(tmp_path):
    assert undisturbed(tmp_path, refused(extended(tmp_path, 2), 2)) == 2


def test_an_error_of_an_undisturbed_attempt_is_raised(tmp_path):
    with pytest.raises(MachineError, match="gdb refused"):
        undisturbed(tmp_path, refused(extended(tmp_path, 0), 1))


@pytest.mark.parametrize("times", [0, 1, MOST_ATTEMPTS - 1])
def test_an_attempt_is_repeated_until_nobody_extends_the_build(tmp_path, times):
    assert undisturbed(tmp_path, extended(tmp_path, times)) == times


def test_a_build_that_is_always_extended(tmp_path):
    with pytest.raises(LostError, match="another process extended"):
        undisturbed(tmp_path, extended(tmp_path, MOST_ATTEMPTS))
