"""`fattn-probe inspect` and `debug` as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fattn_probe.build import open_build

GQA = Path(__file__).parents[2] / "scenarios/gqa.yaml"
ERA_A = "pypi:xllamacpp==0.2.8"
TAIL = """version: 1
about: a query less than the last tile has room for
hsk: 64
n_head: 16
n_head_kv: 2
n_q: 3
n_kv: 256
mask: {kind: causal}
"""

pytestmark = [pytest.mark.build, pytest.mark.gdb, pytest.mark.network]


def probe(*words, timeout=300, **options):
    command = [sys.executable, "-m", "fattn_probe", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def inspect(*words, **options):
    return probe("inspect", *words, **options)


def test_people_see_tensors_choice_launch_and_map():
    done = inspect(GQA, "--on", "sim:h200")
    assert done.returncode == 0, done.stderr
    for text in (
        "gqa on sim:h200",
        "Q        f32    64 7 14 1    4 256 1792 25088",
        "flash_attn_ext_f16<64,64,8,8,false,false,false>",
        "use_gqa_opt && gqa_ratio > 4 held (gqa_ratio = 7), so ncols2 = 8",
        "max_blocks_per_sm 2     max_blocks 264",
        "coverage: pass",
    ):
        assert text in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_programs_read_everything():
    done = inspect(GQA, "--on", "sim:h200", "--json")
    (found,) = json.loads(done.stdout)["inspections"]
    assert (found["case"], found["on"], found["problem"]) == ("gqa", "sim:h200", None)
    assert found["facts"]["launch"]["ntiles_dst"] == 2
    assert [block["kbc"] for block in found["facts"]["blocks"]] == list(range(8))


@pytest.mark.slow
def test_two_devices_side_by_side():
    """Two GPUs that share a build, which other tests need too."""
    done = inspect(GQA, "--source", ERA_A, "--on", "sim:rtx4070,sim:rtx4090")
    assert "nsm                        46                   128" in done.stdout
    assert "facts are equal, 6 differ" in done.stdout


@pytest.mark.parametrize(
    ("expect", "code", "said"),
    [
        ("{ntiles_dst: 2, blocks_num.x: 8, K.ne: [64, 256, 2, 1]}", 0, ""),
        ("{ntiles_dst: 14}", 5, "gqa on sim:h200: ntiles_dst: expected 14, found 2"),
        ("{ntile_dst: 2}", 5, "there is no such fact; the nearest is ntiles_dst"),
    ],
)
def test_expected_facts(tmp_path, expect, code, said):
    path = tmp_path / "gqa.yaml"
    path.write_text(f"{GQA.read_text()}expect: {expect}\n")
    done = inspect(path, "--on", "sim:h200", "--host")
    assert done.returncode == code
    assert said in done.stderr


def test_pages_and_pictures(tmp_path):
    done = inspect(GQA, "--on", "sim:h200", "--html", tmp_path / "page.html", "--svg", tmp_path / "map.svg")
    assert done.returncode == 0
    assert "<svg" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "map.svg").read_text().startswith("<svg")


def test_values_read_from_memory_equal_the_inputs(tmp_path):
    words = ("--host", "--json", "--values", "K[:2,0,1]", "--values", "dst[:2,0,0]", "--captures", tmp_path)
    (found,) = json.loads(inspect(GQA, "--on", "sim:h200", *words).stdout)["inspections"]
    assert {check["name"]: check["differing"] for check in found["bytes"]} == dict.fromkeys(("Q", "K", "V", "mask"), 0)
    assert all(abs(value) <= 1 for value in found["values"]["K[:2,0,1]"][0])
    same = probe("run", GQA, "--on", "sim:h200", "--captures", tmp_path / "run")
    assert same.returncode == 0
    compared = probe("compare", found["capture"], tmp_path / "run/gqa@sim-h200.gguf")
    assert "equal" in compared.stdout, compared.stdout


def test_a_tensor_that_is_not_there():
    done = inspect(GQA, "--on", "sim:h200", "--host", "--values", "sinks")
    assert done.returncode == 2
    assert "gqa has no sinks; it has dst, Q, K, V, mask" in done.stderr


def test_a_question_of_ones_own():
    words = ("--break", "float KQ_max_new@fattn-mma-f16.cuh", "--print", "kb0", "--print", "no_such_name")
    done = inspect(GQA, "--on", "sim:h200", "--host", "--at", "block=3,warp=1,lane=5", *words)
    assert done.returncode == 2, done.stderr
    assert "flash_attn_ext_f16_iter at fattn-mma-f16.cuh:" in done.stdout
    assert "  kb0 = 3\n" in done.stdout
    assert '  no_such_name: No symbol "no_such_name" in current context.' in done.stdout
    assert "--print 'no_such_name' has no value in flash_attn_ext_f16_iter at fattn-mma-f16.cuh:" in done.stderr


def test_a_pattern_that_matches_nothing():
    done = inspect(GQA, "--on", "sim:h200", "--host", "--break", "nothing like this@fattn.cu")
    assert done.returncode == 2
    assert "no line of ggml/src/ggml-cuda/fattn.cu matches 'nothing like this'" in done.stderr


@pytest.mark.slow
def test_a_kernel_that_ends_in_a_finding(tmp_path):
    path = tmp_path / "tail.yaml"
    path.write_text(TAIL)
    done = inspect(path, "--on", "sim:h200", "--patch", "fault-tail-queries", "--values", "dst[0,0,0]")
    assert done.returncode == 5
    assert "out-of-bounds" in done.stdout
    assert "flash_attn_ext_f16_process_tile" in done.stdout
    assert "so ncols2 = 8" in done.stdout


def test_an_op_without_a_kernel_says_why(tmp_path):
    path = tmp_path / "none.yaml"
    path.write_text("version: 1\nabout: x\nhsk: 192\nhsv: 128\nn_head: 8\nn_head_kv: 2\nn_q: 9\nn_kv: 512\n")
    done = inspect(path, "--on", "sim:h200")
    assert done.returncode == 0
    assert "unsupported" in done.stdout
    assert "BEST_FATTN_KERNEL_NONE" in done.stdout


def test_a_missing_debugger():
    done = inspect(GQA, "--on", "sim:h200", "--debugger", "gdb-of-nowhere")
    assert done.returncode == 3
    assert "gdb-of-nowhere is not on this machine. To install it: Debian and Ubuntu: apt install gdb" in done.stderr


def test_a_debugger_without_python(tmp_path):
    script = tmp_path / "gdb-without-python"
    script.write_text("#!/bin/sh\nexec gdb -iex 'define python' -iex 'end' \"$@\"\n")
    script.write_text(
        "#!/bin/sh\nprintf 'define python\\nerror Python scripting is not supported in this copy of GDB.\\nend\\n' > "
        f'{tmp_path}/no-python\nexec gdb -iex "source {tmp_path}/no-python" "$@"\n'
    )
    script.chmod(0o755)
    plain = json.loads(inspect(GQA, "--on", "sim:h200", "--json").stdout)["inspections"][0]["facts"]
    done = inspect(GQA, "--on", "sim:h200", "--json", "--debugger", script)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inspections"][0]["facts"] == plain


def folder_of_the_build():
    inspect(GQA, "--on", "sim:h200", "--host")
    said = json.loads(probe("build", GQA, "--engine", "sim", "--arch", "90", "--debug", "--json").stdout)
    return Path(said["folder"])


@pytest.mark.slow
def test_a_stripped_build(tmp_path):
    copy = tmp_path / "build"
    shutil.copytree(folder_of_the_build(), copy, symlinks=True)
    subprocess.run(["strip", *map(str, (copy / "lib").glob("*.so"))], check=True)
    assert open_build(copy).manifest.flavour == "debug"
    done = inspect(GQA, "--on", "sim:h200", "--build", copy)
    assert done.returncode == 3
    assert "libggml-cuda.so has no debug information" in done.stderr


def test_a_debugger_that_hangs_is_lost(tmp_path):
    script = tmp_path / "gdb-that-hangs"
    script.write_text("#!/bin/sh\nsleep 60\n")
    script.chmod(0o755)
    started = time.monotonic()
    done = inspect(GQA, "--on", "sim:h200", "--debugger", script, "--timeout", "1")
    assert done.returncode == 4
    assert "its start timed out after 1 s" in done.stderr
    assert time.monotonic() - started < 30


def test_a_debugger_that_is_killed_is_lost(tmp_path):
    """Killed by a gdb command file as soon as the program is loaded: the debugger is gone in the midst."""
    script = tmp_path / "gdb-that-dies"
    script.write_text('#!/bin/sh\n(sleep 0.3; kill -9 $$) &\nexec gdb "$@"\n')
    script.chmod(0o755)
    done = inspect(GQA, "--on", "sim:h200", "--debugger", script)
    assert done.returncode == 4
    assert "ended during" in done.stderr
    assert "SIGKILL" in done.stderr


def test_the_dialogue_is_kept(tmp_path):
    inspect(GQA, "--on", "sim:h200", "--host", "--mi", "--transcript", tmp_path / "dialogue")
    text = (tmp_path / "dialogue").read_text()
    assert "-exec-run" in text
    assert "*stopped" in text


@pytest.mark.slow  # ggml's CPU backend is compiled
def test_upstreams_own_case():
    words = ("--program", "test-backend-ops", "--filter", "hsk=64,hsv=64,nh=4,nr23=\\[1,1\\],kv=113,nb=3,mask=1")
    done = inspect(*words, "--on", "sim:h200", "--host", "--json", timeout=900)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["inspections"]
    assert found["case"].startswith("FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,")
    tensors = {tensor["name"]: tensor["ne"] for tensor in found["facts"]["tensors"]}
    assert tensors["K"] == [64, 113, 4, 1]


def test_the_live_debugger_stops_at_the_kernel():
    commands = "fattn tile\nfattn tensors\nfattn break fattn-mma-f16.cuh:733\ncontinue\nprint kb0\nquit\n"
    done = probe("debug", GQA, "--on", "sim:h200", "--at", "block=3,warp=1", input=commands)
    assert "thread (0, 1, 0)" in done.stdout
    assert "block (3, 0, 0)" in done.stdout
    assert "f16    64 256 2 1" in done.stdout
    assert "$1 = 3" in done.stdout


def test_an_interrupt_leaves_nothing_behind():
    command = [sys.executable, "-m", "fattn_probe", "inspect", str(GQA), "--on", "sim:h200"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    time.sleep(1.2)
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=60)
    left = subprocess.run(["pgrep", "-s", str(running.pid)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_a_warp_is_followed():
    done = inspect(GQA, "--on", "sim:h200", "--trace", "--at", "block=1,warp=2,lane=5")
    assert done.returncode == 0, done.stderr
    assert "warp 2 of block 1" in done.stdout
    assert "first deviation: none" in done.stdout


def test_an_invalid_place():
    done = inspect(GQA, "--on", "sim:h200", "--trace", "--at", "block=99")
    assert done.returncode == 2
    assert "99" in done.stderr
    done = inspect(GQA, "--on", "sim:h200", "--trace", "--at", "blok=1")
    assert done.returncode == 2
    assert "allowed: block, warp, lane, kb0" in done.stderr


@pytest.mark.slow  # another kernel is compiled
def test_the_first_nan_is_found():
    path = GQA.parent / "known-faults/masked-rows.yaml"
    done = inspect(path, "--on", "sim:h200", "--find-nan")
    assert done.returncode == 5
    assert "is nan: its accumulators are finite; its mask is -inf everywhere" in " ".join(done.stdout.split())
    assert "masked-rows on sim:h200: a value is not finite" in done.stderr
