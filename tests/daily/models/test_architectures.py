"""The architectures of a tree and of a model's file."""

import sys
from unittest.mock import Mock, call

import pytest

from fattn_probe.base.errors import InputError, LostError, MachineError, TimedOutError
from fattn_probe.cases.op.gguf_file import u32, write_gguf
from fattn_probe.daily.models.program import (
    architecture_of,
    architectures,
    check_architecture,
    converse,
    files_of,
    missing_or_error,
)
from fattn_probe.llama.build.sources import ARCHITECTURES
from fattn_probe.machine.run.outcome import Missing
from tests.daily.models.make import MODELS, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(MODELS["jamba"], tmp_path_factory.mktemp("models") / "jamba.gguf")


def test_the_file_says_its_architecture_and_a_recorded_op_has_none(model, tmp_path):
    assert architecture_of(model) == "jamba"
    # It was a model of an architecture `fattn-probe`, which no llama.cpp knows.
    path = tmp_path / "op.gguf"
    write_gguf(path, {"fattn.version": u32(1)}, {})
    with pytest.raises(InputError, match=r"op.gguf: not a model, but a recorded op of fattn-probe, which `compare`"):
        architecture_of(path)


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.5, 0.999])
def test_a_file_that_is_cut_is_refused(model, share, tmp_path):
    data = model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"cut\.gguf: truncated, or not a GGUF file"):
        architecture_of(cut)


def test_a_model_of_the_same_seed_is_the_same(model, tmp_path):
    assert make_model(MODELS["jamba"], tmp_path / "again.gguf").read_bytes() == model.read_bytes()
    assert make_model(MODELS["jamba"], tmp_path / "other.gguf", seed=2).read_bytes() != model.read_bytes()


@pytest.mark.parametrize(
    ("architecture", "file"),
    [
        ("llama", "llama.cpp"),
        ("qwen2", "qwen2.cpp"),
        ("gpt-oss", "openai-moe.cpp"),
        ("deepseek2", "deepseek2.cpp"),
        ("jamba", "jamba.cpp"),
    ],
)
def test_the_file_of_an_architecture(tree, architecture, file):
    assert files_of(tree, architecture) == (file,)


def test_nearly_all_architectures_have_a_file(tree):
    known = {name: files_of(tree, name) for name in architectures(tree)}
    assert len(known) > 100
    assert sum(not files for files in known.values()) <= 3
    assert all((tree.root / ARCHITECTURES / file).is_file() for files in known.values() for file in files)


def test_an_architecture_that_the_source_does_not_know(tree, model):
    check_architecture(tree, model, "jamba")
    with pytest.raises(InputError, match=r"knows \d+ architectures, but not 'qwen22'; the nearest: qwen2"):
        check_architecture(tree, model, "qwen22")


ASK = "import sys\ndef ask(line):\n    print(line, flush=True)\n    return input()\n"


def talk(text, answer=lambda message: "go", timeout=30.0):
    return converse([sys.executable, "-c", ASK + text], {}, timeout, answer)


def test_every_line_is_answered():
    answer = Mock(side_effect=["answer 1", "answer 2"])
    done = talk("first = ask('{\"a\": 1}')\nsys.stderr.write(ask('{\"b\": 2}') + first)", answer)
    assert answer.mock_calls == [call({"a": 1}), call({"b": 2})]
    assert (done.code, done.stderr) == (0, "answer 2answer 1")
    assert missing_or_error(done, "model") is None


@pytest.mark.parametrize(("code", "error"), [(2, InputError), (3, MachineError), (4, LostError)])
def test_an_exit_status_is_an_error_with_what_was_said(code, error):
    done = talk(f"sys.stderr.write('llama: noise\\nfattn-capture: too long\\n')\nsys.exit({code})")
    with pytest.raises(error, match=r"^model\.gguf: too long$"):
        missing_or_error(done, "model.gguf")


def test_a_missing_function_is_an_outcome_and_an_assertion_of_ggml_is_told():
    done = talk("sys.stderr.write('fattn-probe: missing symbol: _ZTV3foo\\n')\nsys.exit(87)")
    assert missing_or_error(done, "model") == Missing("_ZTV3foo")
    said = "/x/llama-model.cpp:7: GGML_ASSERT(n > 0) failed"
    text = f"import os\nsys.stderr.write('{said}\\n')\nsys.stderr.flush()\nos.abort()"
    with pytest.raises(LostError, match=r"model: .*llama-model\.cpp:7: GGML_ASSERT\(n > 0\) failed"):
        missing_or_error(talk(text), "model")


@pytest.mark.parametrize(
    ("text", "timeout", "error", "said"),
    [
        ("import time\ntime.sleep(60)", 0.3, TimedOutError, "no answer after 0 s"),
        (
            "import os, time\nos.close(1)\ntime.sleep(600)",
            1.0,
            LostError,
            "closed its output, but did not exit within 1 s",
        ),
        ("import os\nos.kill(os.getpid(), 9)", 30.0, LostError, "killed by SIGKILL"),
        ("ask('hello')", 30.0, LostError, "said 'hello'"),
    ],
)
def test_a_program_that_does_not_answer_is_ended_or_lost(text, timeout, error, said):
    with pytest.raises(error, match=said):
        missing_or_error(talk(text, timeout=timeout), "model")


def test_an_error_in_an_answer_ends_the_program(tmp_path):
    file = tmp_path / "alive"
    with pytest.raises(MachineError):
        talk(f"ask('{{}}')\nopen({str(file)!r}, 'w')", Mock(side_effect=MachineError("the disk is full")))
    assert not file.exists()
