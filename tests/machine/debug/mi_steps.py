"""A short session over MI, for the tests and for a recording: `python mi_steps.py TRANSCRIPT gdb` in this folder.

The recording is made in /tmp/probe, so that no path of the machine gets into it.
"""

import subprocess
import sys
from pathlib import Path

from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.session import DebugSession


def drive(session):
    """The debugger's answers for `probe exit`, in order."""
    debugger = OverMI(session)
    found = [session.has_python()]
    work, header = debugger.insert("work"), debugger.insert("probe.cpp:14", "n == 4")
    found += [debugger.insert("later.cpp:7"), debugger.resume("run"), debugger.frames(9)]
    found += [debugger.evaluate(["n", "nosuch", "sizeof(t)"]), debugger.evaluate(["block", "chosen", "what"], level=1)]
    found += [debugger.local_names(), debugger.local_names(level=1), debugger.resume("continue")]
    debugger.delete(header)
    found += [debugger.resume("finish"), debugger.resume("next"), debugger.execute("info locals")]
    debugger.delete(work)
    found += [debugger.resume("step"), debugger.resume("continue")]
    return found


if __name__ == "__main__":
    folder = Path("/tmp/probe")
    folder.mkdir(exist_ok=True)
    (folder / "probe.cpp").write_bytes(Path(__file__).with_name("probe.cpp").read_bytes())
    subprocess.run(["g++", "-O0", "-g", "probe.cpp", "-o", "probe"], cwd=folder, check=True)
    transcript, *argv = sys.argv[1:]
    with DebugSession(argv, folder / "probe", ["exit"], cwd=folder, transcript=Path(transcript)) as recorded:
        print(*drive(recorded), sep="\n")
