"""fattn-capture as a process that speaks and is answered, a JSON document a line."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fattn_probe.errors import InputError, LostError, MachineError
from fattn_probe.process import Completed, kill_group
from fattn_probe.run.batch import BatchRunner, start
from fattn_probe.run.outcome import Failed, Missing, parse_ending
from fattn_probe.scratch import scratch

PREFIX = "fattn-capture: "
ERRORS = {2: InputError, 3: MachineError, 4: LostError}
"""By exit status, as native/models/options.h says."""
QUIET = {"GGML_NO_BACKTRACE": "1"}
"""ggml would start gdb when it aborts, which speaks on stdout."""
Answer = Callable[[Mapping[str, Any]], str]


def converse(argv: Sequence[str], env: Mapping[str, str], timeout: float, answer: Answer) -> Completed:
    """Run the program to its end, and answer each of its lines; `timeout` are the seconds for one of them.

    The process ends with this function, whatever happens.
    """
    began = time.monotonic()
    with scratch() as folder:
        process = start(argv, folder, {**env, **QUIET})
        speaker = BatchRunner(process, folder)
        try:
            line = speaker.ask("", timeout)
            while line:
                line = speaker.ask(answer(document(line)), timeout)
            said = speaker.said.read_text(errors="replace")
            return Completed(tuple(argv), process.wait(timeout), "", said, time.monotonic() - began)
        finally:
            kill_group(process)


def document(line: str) -> dict[str, Any]:
    """A line of the program."""
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        raise LostError(f"fattn-capture said {line!r}") from None
    return found


def missing_or_error(done: Completed, model: str) -> Missing | None:
    """The function that a program lacked; None if it ended well, else the error that it ended with."""
    ending = parse_ending(done)
    if ending is None or isinstance(ending, Missing):
        return ending
    said = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    if done.code in ERRORS and said:
        raise ERRORS[done.code](f"{model}: {said[-1]}")
    raise LostError(f"{model}: {ending.message if isinstance(ending, Failed) else done.describe()}")
