"""`fattn-probe inspect` and `debug` as a user runs them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pexpect
import pytest

from fattn_probe.base.cache import lock_beside
from fattn_probe.base.digest import seal
from fattn_probe.llama.build import open_build
from fattn_probe.machine.run.capture import read_capture
from tests.as_user import fattn_probe
from tests.made import executable

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]

GQA = Path(__file__).parents[3] / "scenarios/gqa.yaml"
SINKS = GQA.with_name("sinks.yaml")
FAULTS = Path(__file__).parents[3] / "patches/faults"
STRIDE = """version: 1
about: rows of K whose strides are multiples of 8 bytes only
hsk: 128
n_head: 4
n_q: 1
n_kv: 256
layout: {K: {kind: view, pad: 4}}
"""


def inspect(*words, code=0):
    return fattn_probe("inspect", *words, code=code)


def test_two_devices_side_by_side():
    """Two GPUs that share a build."""
    done = inspect(GQA, "--on", "sim:h200,sim:h200-5")
    assert re.search(r"^ *nsm +132 +5 *$", done.stdout, re.MULTILINE)
    assert "facts are equal, 2 differ" in done.stdout


@pytest.mark.parametrize(
    ("expect", "code", "said"),
    [
        ("{ntiles_dst: 2, blocks_num.x: 8, K.ne: [64, 256, 2, 1]}", 0, ""),
        ("{ntiles_dst: 14}", 5, "gqa on sim:h200: ntiles_dst: expected 14, found 2"),
    ],
)
def test_expected_facts(tmp_path, expect, code, said):
    path = tmp_path / "gqa.yaml"
    path.write_text(f"{GQA.read_text()}expect: {expect}\n")
    assert said in inspect(path, "--on", "sim:h200", "--host", code=code).stderr


def test_pages_and_pictures(tmp_path):
    inspect(GQA, "--on", "sim:h200", "--html", tmp_path / "page.html", "--svg", tmp_path / "map.svg")
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


def test_values_read_from_memory_equal_the_inputs(tmp_path):
    words = ("--host", "--json", "--values", "K[:2,0,1]", "--values", "dst[:2,0,0]", "--captures", tmp_path)
    (found,) = json.loads(inspect(GQA, "--on", "sim:h200", *words).stdout)["inspections"]
    assert {check["name"]: check["differing"] for check in found["bytes"]} == dict.fromkeys(("Q", "K", "V", "mask"), 0)
    assert all(abs(value) <= 1 for value in found["values"]["K[:2,0,1]"][0])
    fattn_probe("run", GQA, "--on", "sim:h200", "--captures", tmp_path / "run")
    pair = found["capture"], str(tmp_path / "run/gqa@sim-h200.gguf")
    compared = json.loads(fattn_probe("compare", *pair, "--json").stdout)
    assert (compared["a"], compared["b"]) == pair, "two files of one name"
    assert compared["nmse"] < 1e-13, "gdb reads a debug build, whose multiply-adds are not fused"


REFUSED = {
    "gqa has no sinks; it has dst, Q, K, V, mask": ("--host", "--values", "sinks"),
    "no line of ggml/src/ggml-cuda/fattn.cu matches 'no such line'": ("--host", "--break", "no such line@fattn.cu"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_inspected_is_refused(said):
    assert said in inspect(GQA, "--on", "sim:h200", *REFUSED[said], code=2).stderr


@pytest.mark.parametrize("command", ["inspect", "debug"])
def test_a_missing_debugger_is_said_before_anything_is_downloaded_or_compiled(command, cache):
    done = fattn_probe(command, GQA, "--on", "sim:h200", "--debugger", "nogdb", code=3)
    assert done.stderr.startswith("nogdb is not installed. To install it: Debian and Ubuntu: apt install gdb")
    assert not (cache / "builds").exists()


@pytest.mark.slow
def test_a_kernel_that_ends_in_a_finding(tmp_path):
    """A known defect, in a kernel that test_dispatch.py compiles too."""
    path = tmp_path / "stride.yaml"
    path.write_text(STRIDE)
    done = inspect(path, "--on", "sim:h200", "--values", "dst[0,0,0]", code=5)
    assert "misaligned" in done.stdout
    assert "flash_attn_ext_vec<...> at ggml/src/ggml-cuda/fattn-vec.cuh:" in done.stdout
    assert "so cols_per_block = 1" in done.stdout


def test_an_op_without_a_kernel_says_why(tmp_path):
    path = tmp_path / "none.yaml"
    sizes = "hsk: 192\nhsv: 128\nn_head: 8\nn_head_kv: 2\nn_q: 9\nn_kv: 512\n"
    path.write_text(f"version: 1\nabout: x\n{sizes}mask: {{kind: causal}}\n")
    done = inspect(path, "--on", "sim:h200")
    assert "unsupported" in done.stdout
    assert "gqa_ratio % 8 != 0 held (gqa_ratio = 4), so BEST_FATTN_KERNEL_NONE" in " ".join(done.stdout.split())


def test_a_debugger_without_python(tmp_path):
    script = executable(
        tmp_path / "gdb",
        "#!/bin/sh\n"
        "printf 'define python\\nerror Python scripting is not supported in this copy of GDB.\\nend\\n' > "
        f'{tmp_path}/no-python\nexec gdb -iex "source {tmp_path}/no-python" "$@"\n',
    )
    plain = json.loads(inspect(GQA, "--on", "sim:h200", "--json").stdout)["inspections"][0]["facts"]
    done = inspect(GQA, "--on", "sim:h200", "--json", "--debugger", script)
    assert json.loads(done.stdout)["inspections"][0]["facts"] == plain


def folder_of_the_build():
    said = json.loads(fattn_probe("build", GQA, "--engine", "sim", "--arch", "90", "--debug", "--json").stdout)
    return Path(said["folder"])


@pytest.mark.slow
def test_a_stripped_build(tmp_path):
    copy, whole = tmp_path / "build", folder_of_the_build()
    with lock_beside(whole):  # another test may extend it
        shutil.copytree(whole, copy, symlinks=True)
    subprocess.run(["strip", *map(str, (copy / "lib").glob("*.so"))], check=True)
    assert "build is damaged (lib/libggml-" in inspect(GQA, "--on", "sim:h200", "--build", copy, code=2).stderr
    seal(copy)
    assert open_build(copy).manifest.fingerprint.flavour == "debug"
    done = inspect(GQA, "--on", "sim:h200", "--build", copy, code=3)
    assert "libggml-cuda.so has no debug information" in done.stderr


def test_a_debugger_that_hangs_is_lost(tmp_path):
    started = time.monotonic()
    debugger = executable(tmp_path / "gdb", "#!/bin/sh\nsleep 60\n")
    done = inspect(GQA, "--on", "sim:h200", "--debugger", debugger, "--timeout", "1", code=4)
    assert "startup timed out after 1 s" in done.stderr
    assert time.monotonic() - started < 30


def test_the_dialogue_is_kept(tmp_path):
    inspect(GQA, "--on", "sim:h200", "--host", "--mi", "--transcript", tmp_path / "dialogue")
    text = (tmp_path / "dialogue").read_text()
    assert "-exec-run" in text
    assert "*stopped" in text


@pytest.mark.night  # its program and ggml's CPU backend are linked for debug, and other inspections wait for that
def test_upstreams_own_case():
    words = ("--program", "test-backend-ops", "--filter", "hsk=64,hsv=64,nh=4,nr23=\\[1,1\\],kv=113,nb=3,mask=1")
    (found,) = json.loads(inspect(*words, "--on", "sim:h200", "--host", "--json").stdout)["inspections"]
    assert found["case"].startswith("FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,")
    assert {tensor["name"]: tensor["ne"] for tensor in found["facts"]["tensors"]}["K"] == [64, 113, 4, 1]


def test_the_live_debugger_stops_at_the_kernel():
    commands = "fattn tile\nfattn tensors\nfattn break fattn-mma-f16.cuh:733\ncontinue\nprint kb0\nquit\n"
    done = fattn_probe("debug", GQA, "--on", "sim:h200", "--at", "block=3,warp=1", input=commands)
    assert "thread (0, 1, 0)" in done.stdout
    assert "block (3, 0, 0)" in done.stdout
    assert "f16    64 256 2 1" in done.stdout
    assert "$1 = 3" in done.stdout
    assert "guide/tour.md, step 5, explains the kernel; `fattn-probe glossary TERM` explains a word." in done.stdout


@pytest.mark.night
@pytest.mark.parametrize(
    ("case", "on", "kernel", "work", "position"),
    [
        ("gqa", "rx7900xtx", "flash_attn_tile<64,64,8,1,false>", "28 blocks on 14 output tiles", "k_VKQ_0 = 0"),
        ("prefill", "mi300x", "flash_attn_ext_f16<128,128,16,4,false,false,false>", "256 blocks on 32", "kb0_stop = 1"),
    ],
)
def test_the_live_debugger_of_an_amd_gpu(case, on, kernel, work, position):
    commands = "fattn tensors\nfattn launch\nfattn blocks\nfattn step\nfattn tile\nquit\n"
    done = fattn_probe("debug", case, "--on", f"sim:{on}", input=commands)
    for said in (f"{kernel} of {case}, block 0", "K        f16", "cc gfx", work, position):
        assert said in done.stdout


@pytest.fixture
def live():
    """Types commands into the live debugger of a block and warp of gqa, and gives what it answers to each."""

    def typed(*commands):
        words = ["-m", "fattn_probe", "debug", str(GQA), "--on", "sim:h200", "--at", "block=5,warp=1"]
        size, env = (200, 160), {**os.environ, "TERM": "dumb"}
        with pexpect.spawn(sys.executable, words, 300, encoding="utf-8", dimensions=size, env=env) as terminal:
            terminal.expect_exact("(gdb) ")
            for command in commands:
                terminal.sendline(command)
                terminal.expect_exact("(gdb) ")
                yield terminal.before.partition("\n")[2].replace("\r", "")
            terminal.sendline("set confirm off")
            terminal.sendline("quit")
            terminal.expect_exact(pexpect.EOF)
            terminal.wait()  # close() gives a process half a second, which a busy machine may not have

    return typed


def test_variables_that_are_not_set_yet_are_no_position(live):
    at_first, blocks, step, then, rowsum = live(
        "fattn tile", "fattn blocks", "fattn step", "fattn tile", "p KQ_rowsum[0]"
    )
    assert re.search(r"^ +5 +5 +6 +0 +1 +0 +0 +1:2 ", blocks, re.MULTILINE)
    for said in (at_first, then):
        assert "earlier run: kbc 5 to 6\nearlier run: sequence 0, z_KV 1, zt_gqa 0, jt 0, kb0 1:2\n" in said
    assert (
        "not set yet at this line: kb0_start, kb0_stop, jt, zt_gqa, z_KV, sequence, kbc, kbc_stop, iter_k" in at_first
    )
    assert " = " not in at_first
    assert "#0  flash_attn_ext_f16_iter<" in step
    assert then.splitlines()[4:] == [
        *(
            "k_VKQ_0 = 64",
            "kb0 = 1",
            "kb0_start = 1",
            "kb0_stop = 2",
            "jt = 0",
            "zt_gqa = 0",
            "z_KV = 1",
            "sequence = 0",
        ),
        *("kbc = 5", "kbc_stop = 6", "iter_k = 4"),
    ]
    assert rowsum.startswith("$1 = 0")


@pytest.mark.parametrize(
    ("place", "said"),
    [("block=99", "there is no block 99, only 0 to 7"), ("block=1,kb0=1", "leave out kb0, and use `fattn step` there")],
)
def test_the_live_debugger_refuses_a_place_that_is_not_there(place, said):
    assert said in fattn_probe("debug", GQA, "--on", "sim:h200", "--at", place, input="quit\n", code=2).stderr


@pytest.mark.night  # CI follows faults to dst in test_trace_sim.py
def test_a_fault_after_the_last_step_is_named():
    done = inspect(*(SINKS, "--on", "sim:h200", "--trace", "--patch", FAULTS / "15157-sinks-twice.patch"), code=5)
    assert re.search(r"first deviation: kb0 \d+: (KQ_max|KQ_rowsum|VKQ) at the end of query", done.stdout)
    assert "output: fail" in done.stdout
    assert "the output is wrong" in done.stderr


@pytest.mark.slow
def test_the_first_nan_is_found(tmp_path):
    """A row that sees nothing, in the kernel of gqa."""
    path = tmp_path / "masked-rows.yaml"
    path.write_text(re.sub("(?m)^mask: .*", "mask: {kind: masked_rows, every: 4, first: 1}", GQA.read_text()))
    done = inspect(path, "--on", "sim:h200", "--find-nan", code=5)
    said = " ".join(done.stdout.split())
    assert re.search(r"query 1, .* is nan: its accumulators are finite; its mask is -inf everywhere, .*\.cuh:\d+", said)
    assert "masked-rows on sim:h200: a value is not finite" in done.stderr


@pytest.mark.slow  # another kernel is compiled
def test_the_first_infinity_of_a_tile_kernel_is_found(tmp_path):
    path = tmp_path / "huge-v.yaml"
    data = "{V: {kind: uniform, scale: 1, mean: 60000}}"  # sums of P V in f16 overflow
    path.write_text(f"version: 1\nabout: huge V\nhsk: 40\nn_head: 4\nn_q: 5\nn_kv: 256\ndata: {data}\n")
    assert (
        "VKQ of sequence 0, query 0, head 0, d 0 is inf, kb0 0: block 0, warp 0, lane 0, seen at fattn-tile.cuh:"
        in (" ".join(inspect(path, "--on", "sim:h200", "--find-nan", code=5).stdout.split()))
    )


STAND_IN = "gdb -iex 'set may-call-functions off'"
"""A gdb that cannot call functions of the program, as gdb 13 on a CPU with AMX, is enough to inspect."""
LINE = "float KQ_max_new@fattn-mma-f16.cuh"
NO_CALLS = "Cannot call functions in the program: may-call-functions is off."


INTERFACES = pytest.mark.parametrize(
    "interface", [(), pytest.param(("--mi",), marks=pytest.mark.night)], ids=["", "mi"]
)


def without_calls(*words, **options):
    return fattn_probe(*words, "--debugger", STAND_IN, **options)


def inspect_without(*words, code=0):
    return without_calls("inspect", GQA, "--on", "sim:h200", *words, code=code)


@INTERFACES
def test_every_look_at_an_op_without_calls(interface, tmp_path):
    done = inspect_without(
        *("--values", "K[:4,0,1]", "--captures", tmp_path, "--trace", "--find-nan"),
        *("--break", LINE, "--print", "kb0", "--at", "block=2,warp=1", "--json", *interface),
    )
    (found,) = json.loads(done.stdout)["inspections"]
    assert found["facts"]["launch"]["ntiles_dst"] == 2
    assert len(found["facts"]["blocks"]) == 8
    assert {item["name"]: item["differing"] for item in found["bytes"]} == {"Q": 0, "K": 0, "V": 0, "mask": 0}
    assert np.shape(found["values"]["K[:4,0,1]"]) == (1, 4)
    assert np.isfinite(read_capture(Path(found["capture"])).dst).all()
    assert found["trace"]["first_deviation"] is None
    assert [stop["values"]["kb0"] for stop in found["stops"]] == ["2"]
    assert found["not_finite"] is None


def test_the_live_debugger_without_calls():
    done = without_calls("debug", GQA, "--on", "sim:h200", input="fattn tile\nbt\nquit\n")
    assert "block (0, 0, 0)" in done.stdout
    assert "std::apply" not in done.stdout
    assert "fattn-mma-f16.cuh:" in done.stdout


@INTERFACES
def test_expressions_without_a_value_have_their_reason(interface):
    wanted = ("kb0", "KQ_maxx", "nosuchvar", "ggml_nbytes(0)")
    done = inspect_without(
        "--break", LINE, *(word for text in wanted for word in ("--print", text)), *interface, code=2
    )
    assert "kb0 = 0" in done.stdout
    place = r"flash_attn_ext_f16_iter at fattn-mma-f16.cuh:"
    said = [line for line in done.stderr.splitlines() if line.startswith("--print")]
    near, unknown, call = (line.partition(" has no value in ")[2] for line in said)
    assert all(line.startswith(place) for line in (near, unknown, call))
    assert 'No symbol "KQ_maxx" in current context. Similar names in scope: KQ_max, KQ_max_new' in near
    assert 'No symbol "nosuchvar" in current context. In scope: ' in unknown
    assert call.endswith(NO_CALLS)


def test_an_expression_needs_a_place():
    assert "--print 'kb0' needs --break 'PATTERN@FILE'" in inspect_without("--print", "kb0", code=2).stderr
