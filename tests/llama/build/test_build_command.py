"""What a build says: its kernels by name, its progress and the time left, and what ptxas logs of its kernels."""

import io

import pytest
from rich.console import Console

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Resources
from fattn_probe.llama.build.command import announced, find_kernel, status_line
from fattn_probe.llama.build.make import heaviest_first, read_resources
from fattn_probe.llama.build.ninja import Progress, TimeLeft, step_seconds
from tests.llama.build.tree import make_tree


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mma 64,64,8,8", "mma 64,64,8,8"),
        ("vec 64,f16,q8_0", "vec 64,GGML_TYPE_F16,GGML_TYPE_Q8_0"),
        ("vec 64, GGML_TYPE_F16, GGML_TYPE_Q8_0", "vec 64,GGML_TYPE_F16,GGML_TYPE_Q8_0"),
    ],
)
def test_a_kernel_is_found_by_its_name(tmp_path, text, name):
    assert find_kernel(make_tree(tmp_path), text).name == name


def test_an_unknown_kernel_is_answered_with_those_of_its_head_size(tmp_path):
    with pytest.raises(InputError) as raised:
        find_kernel(make_tree(tmp_path), "mma 64,64,8,1")
    assert "it has mma 64,64,8,8" in str(raised.value)
    assert "mma 80,80" not in str(raised.value)


def test_the_status_line_fits_60_columns():
    assert status_line(Progress(5, 20, "fattn.cu", 12.6)).plain.endswith(" 5/20 0:13 fattn.cu")
    line = status_line(Progress(5, 20, "fattn-probe-vec-128-f16-q8_0.cu", 62, 80.2)).plain
    assert line.endswith(" 5/20 1:02, about 1:20 left vec 128,f16,q8_0")
    assert len(status_line(Progress(150, 152, "fattn-probe-mma-576-512-16-16.cu", 701.0, 600.0)).plain) <= 60


def test_without_a_terminal_only_the_title_is_printed():
    output = io.StringIO()
    report = announced(Console(file=output), "Building b11549")
    report(Progress(0, 24, "fattn.cu", 0.0))
    report(Progress(1, 24, "convert.cu", 1.0))
    assert output.getvalue() == "Building b11549: 24 steps\n"


LOG = """# ninja log v7
100\t31100\t1795311687068710324\tobj/ggml-cuda/template-instances/fattn-probe-mma-64-64-8-8.cu.o\tf618948403bdf0f9
5\t100\t1795308186164502220\tobj/ggml-cuda/fattn.cu.o\t3319502108eabb24
31100\t33100\t1795308194028502687\tbin/fattn-runner\t88beeccbe683f63e
"""


def test_seconds_of_steps_are_the_longest_of_all_logs_without_what_ccache_had(tmp_path):
    quicker, damaged = LOG.replace("31100\t33100", "31100\t32100"), "# ninja log v7\nx\ty\n"
    for name, text in {"a": LOG, "b": quicker, "c": damaged}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ".ninja_log").write_text(text)
    folders = [tmp_path / name for name in ("a", "b", "c", "none")]
    assert step_seconds(folders) == {"fattn-probe-mma-64-64-8-8.cu": 31.0, "fattn-runner": 2.0}


@pytest.mark.parametrize(
    ("known", "jobs", "seen", "seconds"),
    [
        ({"a": 30.0, "b": 10.0, "c": 10.0, "d": 10.0}, 1, [], 60),
        ({"a": 30.0, "b": 10.0, "c": 10.0, "d": 10.0}, 4, [], 30),  # the longest step
        ({"a": 30.0, "b": 10.0}, 2, [(0, 0, "a"), (0, 0, "b"), (10, 1, "b")], 20),  # a running step has less to go
        ({"a": 30.0, "b": 10.0}, 1, [(0, 0, "b"), (20, 1, "b")], 60),  # a slower machine is noticed
        ({"a": 30.0, "new": None}, 1, [], 60),  # an unknown step counts as average
        ({"new": None}, 1, [], None),
        ({"a": 30.0}, 1, [(0, 0, "a"), (40, 0, "other")], 0),  # a step beyond its time has none left
    ],
)
def test_the_time_left(known, jobs, seen, seconds):
    now = [0]
    left = TimeLeft(set(known), {name: time for name, time in known.items() if time}, jobs, lambda: now[0])
    for now[0], done, label in seen:
        left.see(done, label)
    assert left.seconds == seconds


def test_the_heaviest_kernels_come_first_and_unknown_ones_before_them():
    known = {"fattn-probe-mma-64-64-8-8.cu": 5.0, "fattn-probe-vec-128-f16-q8_0.cu": 9.0}
    names = ("mma 64,64,8,8", "vec 128,GGML_TYPE_F16,GGML_TYPE_Q8_0", "tile 40,40")
    assert heaviest_first(names, known) == ("tile 40,40", "vec 128,GGML_TYPE_F16,GGML_TYPE_Q8_0", "mma 64,64,8,8")


PTXAS = """\
ptxas info    : 27245 bytes gmem, 256 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1kILi8EEvi' for 'sm_90'
ptxas info    : Function properties for _Z1kILi8EEvi
    40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 40 bytes cumulative stack size, 4352 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 5.308 ms
ptxas info    : Compiling entry function '_Z1gv' for 'sm_90'
ptxas info    : Function properties for _Z1gv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 560 bytes cmem[0]
"""
FOUND = {"_Z1kILi8EEvi": Resources(168, 4352, 40), "_Z1gv": Resources(24)}


def test_resources_are_read_from_all_logs_of_a_build_without_kernels_that_were_not_finished(tmp_path):
    first, second = tmp_path / "obj/ggml-cuda/fattn.cu.o.log", tmp_path / "obj/ggml-cuda/instances/fattn-vec.cu.o.log"
    second.parent.mkdir(parents=True)
    half = PTXAS.index("ptxas info    : Compiling entry function '_Z1gv'")
    first.write_text(PTXAS[:half])
    second.write_text(PTXAS[half:])
    assert read_resources(tmp_path) == FOUND
    second.write_text(PTXAS)
    first.unlink()
    assert read_resources(tmp_path) == FOUND
    second.write_text(PTXAS.replace("ptxas info    : Used 168", "ptxas fatal   : 168"))
    assert read_resources(tmp_path) == {"_Z1gv": Resources(24)}
