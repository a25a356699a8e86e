"""How long a build still takes; the clock is the test's."""

import pytest

from fattn_probe.llama.build.make import heaviest_first
from fattn_probe.llama.build.ninja import TimeLeft, step_seconds

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
