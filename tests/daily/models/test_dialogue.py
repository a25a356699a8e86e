"""Programs that speak and are answered, and how they end."""

import sys

import pytest

from fattn_probe.base.errors import InputError, LostError, MachineError, TimedOutError
from fattn_probe.daily.models.program import converse, missing_or_error
from fattn_probe.machine.run.outcome import Missing

ASK = "import sys\ndef ask(line):\n    print(line, flush=True)\n    return input()\n"


def talk(text, answer=lambda message: "go", timeout=30.0):
    return converse([sys.executable, "-c", ASK + text], {}, timeout, answer)


def test_every_line_is_answered():
    heard = []

    def answer(message):
        heard.append(message)
        return f"answer {len(heard)}"

    done = talk("first = ask('{\"a\": 1}')\nsys.stderr.write(ask('{\"b\": 2}') + first)", answer)
    assert heard == [{"a": 1}, {"b": 2}]
    assert (done.code, done.stderr) == (0, "answer 2answer 1")
    assert missing_or_error(done, "model") is None


def test_a_program_that_closes_its_output_and_stays_is_lost():
    with pytest.raises(LostError, match="closed its output, and did not end in 1 s"):
        talk("import os, time\nos.close(1)\ntime.sleep(600)", timeout=1.0)


@pytest.mark.parametrize(("code", "error"), [(2, InputError), (3, MachineError), (4, LostError)])
def test_an_exit_status_is_an_error_with_what_was_said(code, error):
    done = talk(f"sys.stderr.write('llama: noise\\nfattn-capture: too long\\n')\nsys.exit({code})")
    with pytest.raises(error, match=r"^model\.gguf: too long$"):
        missing_or_error(done, "model.gguf")


def test_a_missing_function_is_an_outcome():
    done = talk("sys.stderr.write('fattn-probe: missing symbol: _ZTV3foo\\n')\nsys.exit(87)")
    assert missing_or_error(done, "model") == Missing("_ZTV3foo")


def test_an_assertion_of_ggml_is_told():
    said = "/x/llama-model.cpp:7: GGML_ASSERT(n > 0) failed"
    text = f"import os\nsys.stderr.write('{said}\\n')\nsys.stderr.flush()\nos.abort()"
    with pytest.raises(LostError, match=r"model: .*llama-model\.cpp:7: GGML_ASSERT\(n > 0\) failed"):
        missing_or_error(talk(text), "model")


def test_a_program_that_is_killed_is_lost():
    with pytest.raises(LostError, match="killed by SIGKILL"):
        missing_or_error(talk("import os\nos.kill(os.getpid(), 9)"), "model")


def test_another_line_is_lost():
    with pytest.raises(LostError, match="said 'hello'"):
        talk("ask('hello')")


def test_a_program_that_says_nothing_is_ended():
    with pytest.raises(TimedOutError, match="no answer after 0 s"):
        talk("import time\ntime.sleep(60)", timeout=0.3)


def test_an_error_in_an_answer_ends_the_program(tmp_path):
    file = tmp_path / "alive"

    def answer(message):
        raise MachineError("the disk is full")

    with pytest.raises(MachineError):
        talk(f"ask('{{}}')\nopen({str(file)!r}, 'w')", answer)
    assert not file.exists()
