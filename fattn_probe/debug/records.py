"""GDB/MI's records put together: what one command was answered.

pygdbmi parses a record, in 6 us if it is small and at 20 MB/s if it is large: less than gdb takes to write it. What is
not asked for (`=library-loaded` ...) is not parsed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pygdbmi.gdbmiparser import parse_response

from fattn_probe.debug.protocol import DebuggerError

PROMPT = "(gdb)"


@dataclass(frozen=True)
class Reply:
    """The answer to one command: `kind` is done, running, error, exit or connected.

    `console` is what the command printed, `log` the debugger's own words. `stopped` is the last `*stopped` record on
    the way, `hits` the `=breakpoint-modified` records, unparsed, `noise` what was no record at all.
    """

    kind: str
    results: Mapping[str, Any] = field(default_factory=dict)
    console: str = ""
    log: str = ""
    stopped: Mapping[str, Any] | None = None
    hits: tuple[str, ...] = ()
    noise: str = ""

    def checked(self) -> Self:
        """This reply; DebuggerError if it is a refusal."""
        if self.kind == "error":
            raise DebuggerError(self.error)
        return self

    @property
    def error(self) -> str:
        """Why the command was refused, with what the debugger logged besides (a traceback of Python)."""
        message = str(self.results.get("msg", "")).strip()
        log = self.log.strip()
        return message if not log or log == message else f"{message}\n{log}".strip()


class ReplyBuilder:
    """Collects lines until the reply to the command `token` is whole: its result record, then the prompt.

    Without a token it is the debugger's greeting, which ends with the first prompt.
    """

    def __init__(self, token: int | None) -> None:
        self._result_mark = "" if token is None else f"{token}^"
        self._result: dict[str, Any] | None = None if token is not None else {"message": "done", "payload": None}
        self._streams: dict[str, list[str]] = {"console": [], "log": [], "target": [], "output": []}
        self._hits: list[str] = []
        self._stopped: Mapping[str, Any] | None = None

    def feed(self, line: str) -> bool:
        """Take a line; whether the reply is whole with it."""
        first = line[:1]
        if first == "=":
            if line.startswith("=breakpoint-modified"):
                self._hits.append(line)
        elif first == "*":
            if line.startswith("*stopped"):
                self._stopped = parse_response(line)["payload"] or {}
        elif self._result_mark and line.startswith(self._result_mark):
            self._result = parse_response(line)
        elif line.rstrip() == PROMPT:
            return self._result is not None
        else:
            self._stream(line)
        return self._result is not None and self._result["message"] == "exit"

    def reply(self) -> Reply:
        """The whole reply."""
        result = self._result or {"message": "", "payload": None}
        said = {name: "".join(parts) for name, parts in self._streams.items()}
        return Reply(
            result["message"],
            result["payload"] or {},
            said["console"],
            said["log"],
            self._stopped,
            tuple(self._hits),
            said["target"] + said["output"],
        )

    def _stream(self, line: str) -> None:
        record = parse_response(line)
        if record["type"] == "output":
            self._streams["output"].append(line + "\n")
        elif record["type"] in self._streams:
            self._streams[record["type"]].append(record["payload"] or "")


ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def c_string(text: str) -> str:
    """A text as MI takes one argument."""
    return f'"{text.translate(ESCAPES)}"'
