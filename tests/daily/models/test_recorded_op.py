"""Ops as fattn-capture describes them, and the words of `capture`: architectures, prompts, layers, sizes."""

import functools
import json
import struct
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock, call

import numpy as np
import pytest

from fattn_probe.base.errors import InputError, LostError, MachineError, TimedOutError
from fattn_probe.cases.op.case_file import QuantBlocks
from fattn_probe.cases.op.gguf_file import u32, write_gguf
from fattn_probe.cases.op.values import view_values
from fattn_probe.daily.models.capture import LaunchLog, Recorder, expected_size
from fattn_probe.daily.models.program import (
    Prompt,
    Request,
    architecture_of,
    architectures,
    check_architecture,
    check_layers,
    converse,
    files_of,
    missing_or_error,
    parse_layers,
    parse_size,
    size_text,
)
from fattn_probe.daily.models.recorded_op import INDEX, Index, Offer, capture_of_op, case_of_op
from fattn_probe.daily.models.show import ranges
from fattn_probe.llama.build.sources import ARCHITECTURES
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.machine.run.outcome import Missing
from tests.daily.models.make import MODELS, make_model

N_KV, HEADS, SIZE, QUERIES = 6, 2, 4, 3
NUMBERS = np.random.default_rng(1)


def stored(type_, ne, place, size):
    return {"type": type_, "ne": ne, "place": place, "size": size}


def view(type_, root, ne, nb, offset=0):
    return {"type": type_, "root": root, "ne": ne, "nb": nb, "offset": offset, "tensor": "cache_k_l0", "start": 0}


@pytest.fixture
def described():
    """Q with its heads apart, and V as a part of K's rows, which begin with a row that no operand reaches."""
    row = 2 * SIZE * 2
    return {
        "views": {
            "Q": view("f32", "Q", [SIZE, QUERIES, HEADS, 1], [4, 4 * SIZE * HEADS, 4 * SIZE, 4 * SIZE * HEADS]),
            "K": view("f16", "K", [SIZE, N_KV, 1, 1], [2, row, row, row], row),
            "V": view("f16", "K", [SIZE, N_KV, 1, 1], [2, row, row, row], row + 2 * SIZE),
        },
        "roots": {
            "Q": stored("f32", [SIZE * HEADS, QUERIES, 1, 1], 0, 96),
            "K": stored("f16", [2 * SIZE, N_KV + 1, 1, 1], 96, row * (N_KV + 1)),
        },
        "dst": stored("f32", [SIZE, HEADS, QUERIES, 1], 96 + row * (N_KV + 1), 96),
        "params": [*struct.unpack("<3i", struct.pack("<3f", 0.125, 8.0, 50.0)), 10, 4, *[0] * 11],
        "backend": "CPU",
    }


@pytest.fixture
def arrays():
    Q = NUMBERS.standard_normal((QUERIES, HEADS, SIZE)).astype(np.float32)
    KV = NUMBERS.standard_normal((N_KV + 1, 2 * SIZE)).astype(np.float16)
    return Q, KV, NUMBERS.standard_normal((1, QUERIES, HEADS, SIZE)).astype(np.float32)


@pytest.fixture
def raw(arrays):
    return np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)


def test_a_capture_has_the_values_that_the_model_gave(described, arrays, raw, tmp_path):
    Q, KV, dst = arrays
    case = case_of_op("layer-00-step-0000", described, raw)
    write_capture(capture_of_op(case, described, raw, {"model": "small.gguf"}), tmp_path / "op.gguf")
    found = read_capture(tmp_path / "op.gguf")
    values = {name: view_values(view, found.inputs) for name, view in found.op.tensors.items()}
    assert np.array_equal(values["Q"][0], Q.transpose(1, 0, 2))
    assert np.array_equal(values["K"][0, 0], KV[1:, :SIZE])
    assert np.array_equal(values["V"][0, 0], KV[1:, SIZE:])
    assert np.array_equal(found.dst, dst)
    params = found.op.params
    assert (params.scale, params.max_bias, params.logit_softcap, params.prec, params.n_kv_max) == (0.125, 8, 50, 10, 4)
    assert (found.digest, found.provenance["model"], found.backend) == (case.digest, "small.gguf", "CPU")


def test_the_digest_is_of_the_op_and_its_bytes(described, raw):
    first = case_of_op("a", described, raw).digest
    assert case_of_op("b", described, raw).digest == first
    other = raw.copy()
    other[100] ^= 1
    assert case_of_op("a", described, other).digest != first
    described["params"][3] = 0
    assert case_of_op("a", described, raw).digest != first


def test_a_type_that_is_not_known_is_named(described, raw):
    described["views"]["K"]["type"] = "q2_K"
    with pytest.raises(InputError, match="K has type q2_K, allowed: f32, f16"):
        case_of_op("a", described, raw)


def test_names_of_files():
    assert Offer(3, 2, 0, "prompt", 1, 1).name == "layer-03-step-0002"
    assert Offer(3, 2, 1, "prompt", 1, 1).name == "layer-03-step-0002-part-1"


MODEL = {"layers": 2, "steps": 3, "prompts": [[1, 2]]}


def recorder(tmp_path, **request):
    notes = list[str]()
    return Recorder(
        request=Request(Path("model.gguf"), Prompt(tokens=2), **request),
        folder=tmp_path,
        raw=tmp_path / "raw",
        launches=LaunchLog(tmp_path / "launches"),
        blocks=QuantBlocks(tmp_path),
        provenance={},
        kept=lambda capture: capture,
        note=notes.append,
        step=lambda step: None,
    ), notes


def offer(layer=0, step=0, size=100):
    return {"offer": {"layer": layer, "step": step, "part": 0, "phase": "prompt", "bytes": size, "most": 2 * size}}


def test_what_does_not_fit_the_budget_is_left_out(tmp_path):
    found, _ = recorder(tmp_path, budget=250)
    assert found.answer({"model": MODEL}) == "go"
    assert found.answer(offer(size=300)) == "no"
    assert found.answer(offer(layer=1, size=250)) == "yes"
    assert found.left_out == ["layer-00-step-0000"]


def test_sizes_are_said_once_and_first(tmp_path):
    found, notes = recorder(tmp_path, every=True)
    found.answer({"model": MODEL})
    found.answer(offer(size=1 << 20))
    found.answer(offer(layer=1))
    assert notes == ["2 layers in 3 steps: at most about 12 MiB"]


@pytest.mark.parametrize(
    ("request_", "step", "words"),
    [
        ({}, 1, "2 layers in 2 steps: at most about 400 B"),
        ({}, 2, "2 layers in 1 step: at most about 200 B"),
        ({"layers": (1,)}, 1, "1 layer in 2 steps: at most about 200 B, of which --budget allows 150 B"),
    ],
)
def test_expected_sizes(request_, step, words):
    asked = Request(Path("m"), Prompt(tokens=2), budget=150 if request_ else 1 << 30, **request_)
    assert expected_size(asked, MODEL, Offer(0, step, 0, "prompt", 50, 100)) == words


def test_each_step_is_told(tmp_path):
    found, _ = recorder(tmp_path)
    steps = list[str]()
    found.step = steps.append
    found.answer({"model": MODEL})
    assert [found.answer({"step": number}) for number in (0, 2)] == ["go", "go"]
    assert steps == ["evaluating step 1 of 3", "evaluating step 3 of 3"]


def test_a_layer_that_the_model_lacks_and_another_message_end_the_run(tmp_path):
    found, _ = recorder(tmp_path, layers=(5,))
    with pytest.raises(InputError, match="the model has layers 0 to 1, not 5"):
        found.answer({"model": MODEL})
    with pytest.raises(LostError, match="unexpected message from fattn-capture"):
        recorder(tmp_path)[0].answer({"else": 1})


def test_the_index_is_written_as_a_document_with_its_version(tmp_path):
    index = Index(False, {"model": {"file": "m.gguf"}}, [], ["layer-01-step-0000"], 0)
    index.write(tmp_path)
    found = json.loads((tmp_path / INDEX).read_text())
    assert found == json.loads(json.dumps(index.to_json()))
    assert (found["version"], found["complete"], found["left_out"]) == (1, False, ["layer-01-step-0000"])
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_ranges_of_layers():
    assert ranges({7, 0, 5, 6}) == "0, 5-7"
    assert ranges([]) == ""
    with pytest.raises(InputError, match="the range 7-5 ends before it starts"):
        parse_layers("0,7-5")


REQUEST = Request(Path("model.gguf"), Prompt(tokens=7, seed=3))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("", ()), ("0", (0,)), ("0,5-7", (0, 5, 6, 7)), (" 3 , 1-2,2", (1, 2, 3)), ("4-4", (4,)), ("5,", (5,))],
)
def test_layers_are_numbers_and_ranges(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["x", "-1", "1-", "1-2-3", "٣", "1.5", "0x1", "999999999999"])
def test_another_text_is_no_layer(text):
    with pytest.raises(InputError, match="is not a layer or a range of layers, such as 0,5-7"):
        parse_layers(text)


def test_a_layer_that_the_model_lacks_is_named():
    check_layers(replace(REQUEST, layers=(0, 23)), 24)
    with pytest.raises(InputError, match=r"the model has layers 0 to 23, not 24, 30"):
        check_layers(replace(REQUEST, layers=(0, 24, 30)), 24)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2G", 2 << 30), ("500M", 500 << 20), ("1.5k", 1536), ("4096", 4096), ("1 GiB", 1 << 30), ("3MB", 3 << 20)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text.replace(" ", "")) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "2X", "nan", "inf", "1e400"])
def test_another_text_is_no_size(text):
    with pytest.raises(InputError, match="not a size such as 500M or 2G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(5, "5 B"), (1536, "1.5 KiB"), (1020 << 10, "1,020 KiB"), (3 << 30, "3 GiB")]
)
def test_a_size_in_words(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize("prompt", [{}, {"tokens": 0}, {"text": ""}])
def test_a_prompt_has_tokens(prompt):
    with pytest.raises(InputError, match="the prompt has 0 tokens"):
        Prompt(**prompt)


def test_a_prompt_is_a_text_or_random():
    with pytest.raises(InputError, match="choose one"):
        Prompt("text", 5)


def test_the_words_of_a_request():
    words = replace(REQUEST, type_V="q8_0", layers=(1, 4), every=True).words(threads=6)
    pairs = dict(pairwise(words))
    assert (pairs["--tokens"], pairs["--seed"], pairs["--threads"]) == ("7", "3", "6")
    assert (pairs["--type-k"], pairs["--type-v"]) == ("f16", "q8_0")
    assert words[words.index("--every") :] == ["--every", "--layer", "1", "--layer", "4"]
    assert not {"--every", "--no-flash-attn"} & set(REQUEST.words(threads=1))
    assert "--no-flash-attn" in replace(REQUEST, flash_attn=False).words(threads=1)


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


def test_nearly_all_architectures_have_a_file(tree, monkeypatch):
    monkeypatch.setattr(Path, "read_text", functools.cache(Path.read_text))  # each file is read for each architecture
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
        ("ask('hello')", 30.0, LostError, "unexpected line from fattn-capture: 'hello'"),
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
