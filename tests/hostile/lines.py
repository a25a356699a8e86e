"""Command lines of `lines.txt`: run one as its users would, and say what is wrong with how it ended."""

import dataclasses
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from fattn_probe.daily.regress.history import open_history
from fattn_probe.daily.regress.records import Identity, Result
from tests.made import ROOT, executable

LINES = Path(__file__).with_name("lines.txt")
SECONDS = 120
"""After which a line is killed, exit -9; those with kernels compile."""
OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that change what a terminal does."""
COLOURS, LIVE_LINE = r"\x1b\[[0-9;]*m", r"\x1b\[2?K|\x1b\[\?25[lh]|\x1b\[1A"
"""What we send to a terminal ourselves."""
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\u202egnp.exe\x9bd<script>x</script>"
SCENARIO = "version: 1\nabout: %s\nhsk: 64\nn_head: 1\nn_q: 1\nn_kv: 256\n"
OP = (
    "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,mask=1,sinks=0,max_bias=0.0,logit_softcap=0.0,prec=f32,"
    "type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=0,n_kv_max=0)"
)
PROGRAM = """#include <cstring>
int main(int n, char ** words) { return n == 3 && strcmp(words[1], "--json") == 0 ? 7 : 1; }
"""


@dataclass(frozen=True)
class Line:
    """A line, and what is expected: one of `codes`, and at most `most` bytes; `where` is `pipe` or `tty`."""

    codes: tuple[int, ...]
    most: int
    where: str
    builds: bool
    ci: bool
    text: str


def lines() -> list[Line]:
    found = []
    for text in LINES.read_text(encoding="utf-8").splitlines():
        if text and not text.startswith("#"):
            codes, most, where, line = text.split(None, 3)
            place, *more = where.split("+")
            found.append(Line(tuple(map(int, codes.split(","))), int(most), place, "build" in more, "ci" in more, line))
    return found


def make_folder(folder: Path) -> None:
    """Make what the lines use: a good scenario, hostile ones, a history, a device file, a false capture, a program."""
    scenario = folder / "hostile.yaml"
    scenario.write_text(SCENARIO % json.dumps(HOSTILE), encoding="utf-8")
    (folder / "op.yaml").write_text(SCENARIO % "x")
    (folder / "hostile").mkdir()
    (folder / "hostile/a\x1b[2J\u202e.yaml").write_text(scenario.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "bad\x1b[2J\u202e.yaml").write_text('version: 1\nabout: x\n"hs\\e[2J": 64\n')
    (folder / "suite.yaml").write_text('version: 1\nabout: x\nscenarios: ["no\\e[2J.yaml"]\n')
    (folder / "devices.yaml").write_text('devices: {"my\\e[2J": {like: "h\\e[2J"}}\n')
    (folder / "hostile.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\x1b[2J" + bytes(64))
    (folder / "args.cu").write_text(PROGRAM)
    (folder / "tree").mkdir()
    os.mkfifo(folder / "fifo")
    with open_history(folder / "h.db") as history:
        words = {field.name: HOSTILE for field in dataclasses.fields(Identity) if field.name != "fingerprint"}
        run = history.begin(Identity(**words, fingerprint=None), HOSTILE)
        history.add(run, Result(HOSTILE, "d", "fail", HOSTILE, failure=HOSTILE))
        history.end(run)


def run_line(line: Line, folder: Path) -> tuple[int, str]:
    """Run a line in a folder of `make_folder`; its exit code, and stdout and stderr together."""
    tool = executable(folder / "bin/fattn-probe", f'#!/bin/sh\nexec "{sys.executable}" -m fattn_probe "$@"\n')
    dropped = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TERM")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    env |= {"PATH": f"{tool.parent}:{env['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "xterm", "OP": OP}
    if not line.builds:
        env |= {"FATTN_PROBE_CACHE": str(folder / "cache"), "FATTN_PROBE_INDEX": f"file://{folder}/no-index"}
    before = "E=$'\\e' B=$'\\a' R=$'\\u202e' X=$'\\xff'\n"
    ours, theirs = pty.openpty() if line.where == "tty" else os.pipe()
    words = ["bash", "-c", before + line.text]
    stdin = theirs if line.where == "tty" else subprocess.DEVNULL
    with subprocess.Popen(
        words, cwd=folder, env=env, stdin=stdin, stdout=theirs, stderr=theirs, start_new_session=True
    ) as running:
        os.close(theirs)
        late = threading.Timer(SECONDS, os.killpg, (running.pid, signal.SIGKILL))
        late.start()
        said = read_all(ours)
        late.cancel()
        return running.wait(), said.decode(errors="surrogateescape").replace("\r\n", "\n")


def read_all(descriptor: int) -> bytes:
    """What comes from a pipe or a terminal until its other end is closed."""
    said = b""
    with open(descriptor, "rb", buffering=0) as file:
        while True:
            try:
                more = file.read(1 << 16)
            except OSError:  # how a terminal ends
                return said
            if not more:
                return said
            said += more


def allowed(line: Line) -> str:
    """What a line may send to a terminal to steer it; nothing to a pipe or a dumb terminal."""
    if line.where == "pipe" or "TERM=dumb" in line.text:
        return "(?!)"
    return LIVE_LINE if "NO_COLOR" in line.text else f"{COLOURS}|{LIVE_LINE}"


def problems(line: Line, folder: Path) -> list[str]:
    """What is wrong with how a line ended; empty if it behaved."""
    code, said = run_line(line, folder)
    left = re.sub(allowed(line), "", said)
    obeyed = sorted({sign for sign in left if unicodedata.category(sign) in OBEYED and sign not in "\n\t\r"})
    found = [f"exit {code}, not one of {line.codes}"] if code not in line.codes else []
    found += [f"{len(said.encode(errors='surrogateescape'))} bytes, over {line.most}"] if len(said) > line.most else []
    found += [words for words in ("Traceback", "bug in fattn-probe", "Exception ignored") if words in said]
    found += [f"characters that a terminal obeys: {''.join(obeyed)!a}"] if obeyed else []
    return [*found, said[-400:]] if found else []
