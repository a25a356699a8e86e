"""A dialogue with the process fattn-capture, with a JSON document on each line."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.base.process import Completed, dialogue
from fattn_probe.base.scratch import scratch
from fattn_probe.machine.run.outcome import Failed, Missing, parse_ending

PREFIX = "fattn-capture: "
ERRORS = {2: InputError, 3: MachineError, 4: LostError}
"""By exit status, as native/models/options.h says."""
QUIET = {"DEBUGINFOD_URLS": "", "GGML_NO_BACKTRACE": "1"}
"""When ggml aborts, it would start gdb, which writes to stdout."""
Answer = Callable[[Mapping[str, Any]], str]


def converse(argv: Sequence[str], env: Mapping[str, str], timeout: float, answer: Answer) -> Completed:
    """Run the program to its end, and answer each of its lines; `timeout` is the limit in seconds for each line.

    The process always ends with this function.
    """
    began = time.monotonic()
    with (
        scratch() as folder,
        dialogue(argv, {**env, **QUIET}, folder / "stderr", "fattn-capture") as speaker,
    ):
        line = speaker.ask("", timeout)
        while line:
            try:
                document = json.loads(line)
            except json.JSONDecodeError:
                raise LostError(f"fattn-capture said {line!r}") from None
            line = speaker.ask(answer(document), timeout)
        code = speaker.wait(timeout)
        return Completed(tuple(argv), code, "", speaker.said.read_text(errors="replace"), time.monotonic() - began)


def missing_or_error(done: Completed, model: str) -> Missing | None:
    """The function that a program lacked; None if it succeeded; raises its error otherwise."""
    ending = parse_ending(done)
    if ending is None or isinstance(ending, Missing):
        return ending
    said = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    if done.code in ERRORS and said:
        raise ERRORS[done.code](f"{model}: {said[-1]}")
    raise LostError(f"{model}: {ending.message if isinstance(ending, Failed) else done.describe()}")
