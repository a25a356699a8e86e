"""Run fattn-probe as its users do: as a program of its own."""

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

HEEDING_HANGUPS = ("env", "--default-signal=HUP")
"""Before a command: undoes what nohup does, under which tests may run."""
SERVER = """
import atexit, gc, importlib, json, os, runpy, signal, sys, threading
import fattn_probe.__main__
from fattn_probe.base import console
from fattn_probe.cli.commands import commands
for _, _, place, _ in commands():
    importlib.import_module("fattn_probe.cli." + place.partition(":")[0])
gc.freeze()  # what is imported stays shared memory
signal.signal(signal.SIGINT, signal.SIG_IGN)
for line in sys.stdin:
    call = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)
signal.signal(signal.SIGINT, signal.default_int_handler)
for number, name in enumerate(("in", "out", "err")):
    os.dup2(os.open(os.path.join(call["folder"], name), os.O_RDWR), number)
os.environ.clear()
os.environ.update(call["env"])
console.OUT.width, console.NOTES.width = map(console.width_for, (console.STDOUT, console.STDERR))
os.chdir(call["cwd"])
program = call["script"] or fattn_probe.__main__.__file__
sys.argv = [program, *call["words"]]
try:
    if call["script"]:
        sys.path[0] = os.path.dirname(program)
        runpy.run_path(program, run_name="__main__")
    else:
        fattn_probe.__main__.main()
except SystemExit as end:
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(end.code)
"""
"""Imports fattn-probe, and forks for each command: a start takes 0.02 s of processor time instead of 0.8.

`os._exit` leaves out the end of the interpreter: 0.05 s, which free what the fork shares.
"""


@functools.cache
def server():
    """This process's server."""
    running = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(running.communicate)
    return running


def completed(*words, cwd=".", input="", script="", limit=900):
    """The completed run of a command, or of a script in Python."""
    running, command = server(), [*map(str, words)]
    with tempfile.TemporaryDirectory() as folder:
        given, out, err = (Path(folder, name) for name in ("in", "out", "err"))
        for path, text in ((given, input), (out, ""), (err, "")):
            path.write_text(text)
        call = {"folder": folder, "words": command, "script": str(script), "cwd": str(Path(cwd).absolute())}
        print(json.dumps(call | {"env": dict(os.environ)}), file=running.stdin, flush=True)
        if not select.select([running.stdout], [], [], limit)[0]:
            running.kill()
            server.cache_clear()
            raise TimeoutError(f"{command}: no end after {limit} s")
        return subprocess.CompletedProcess(command, int(running.stdout.readline()), out.read_text(), err.read_text())


def fattn_probe(*words, code=0, **options):
    """The completed run of a command; its exit code is `code`, and it shows no traceback."""
    done = completed(*words, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def answer(*words, **options):
    """What a command prints as JSON."""
    return json.loads(fattn_probe(*words, "--json", **options).stdout)


def killed(words, seconds):
    """Kill a command after some seconds, with all that it started; it may have ended."""
    command, nowhere = [sys.executable, "-m", "fattn_probe", *map(str, words)], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True) as running:
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
