"""Run fattn-probe as its users do: as a program of its own."""

import os
import signal
import subprocess
import sys

HEEDING_HANGUPS = ("env", "--default-signal=HUP")
"""Before a command: undoes what nohup does, under which tests may run."""


def fattn_probe(*words, code=0, **options):
    """The completed run of a command; its exit code is `code`, and it shows no traceback."""
    command = [sys.executable, "-m", "fattn_probe", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def killed(words, seconds):
    """Kill a command after some seconds, with all that it started; it may have ended."""
    command, nowhere = [sys.executable, "-m", "fattn_probe", *map(str, words)], subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere, start_new_session=True) as running:
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
