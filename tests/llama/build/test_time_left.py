"""How long a build still takes; the clock is the test's."""

import pytest

from fattn_probe.llama.build.make import heaviest_first
from fattn_probe.llama.build.time_left import TimeLeft, step_seconds

LOG = """# ninja log v7
100\t31100\t1795311687068710324\tobj/ggml-cuda/template-instances/fattn-probe-mma-64-64-8-8.cu.o\tf618948403bdf0f9
5\t100\t1795308186164502220\tobj/ggml-cuda/fattn.cu.o\t3319502108eabb24
31100\t33100\t1795308194028502687\tbin/fattn-runner\t88beeccbe683f63e
"""


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_seconds_of_steps_are_the_longest_of_all_logs_without_what_ccache_had(tmp_path):
    quicker, damaged = LOG.replace("31100\t33100", "31100\t32100"), "# ninja log v7\nx\ty\n"
    for name, text in {"a": LOG, "b": quicker, "c": damaged}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / ".ninja_log").write_text(text)
    folders = [tmp_path / name for name in ("a", "b", "c", "none")]
    assert step_seconds(folders) == {"fattn-probe-mma-64-64-8-8.cu": 31.0, "fattn-runner": 2.0}


def test_the_longest_step_or_all_of_them_shared_by_the_jobs(clock):
    known = {"a": 30.0, "b": 10.0, "c": 10.0, "d": 10.0}
    assert TimeLeft(set("abcd"), known, 1, clock).seconds == 60
    assert TimeLeft(set("abcd"), known, 4, clock).seconds == 30


def test_a_running_step_has_less_to_go(clock):
    left = TimeLeft({"a", "b"}, {"a": 30.0, "b": 10.0}, 2, clock)
    left.see(0, "a")
    left.see(0, "b")
    clock.now = 10
    left.see(1, "b")
    assert (left.finished, left.seconds) == ({"b": 10}, 20)


def test_a_slower_machine_is_noticed(clock):
    left = TimeLeft({"a", "b"}, {"a": 30.0, "b": 10.0}, 1, clock)
    left.see(0, "b")
    clock.now = 20
    left.see(1, "b")
    assert (left.pace, left.seconds) == (2, 60)


def test_an_unknown_step_counts_as_average(clock):
    assert TimeLeft({"a", "new"}, {"a": 30.0}, 1, clock).seconds == 60
    assert TimeLeft({"new"}, {"a": 30.0}, 1, clock).seconds is None


def test_a_step_beyond_its_time_has_none_left(clock):
    left = TimeLeft({"a"}, {"a": 30.0}, 1, clock)
    left.see(0, "a")
    clock.now = 40
    assert left.seconds == 0


def test_the_heaviest_kernels_come_first_and_unknown_ones_before_them():
    known = {"fattn-probe-mma-64-64-8-8.cu": 5.0, "fattn-probe-vec-128-f16-q8_0.cu": 9.0}
    names = ("mma 64,64,8,8", "vec 128,GGML_TYPE_F16,GGML_TYPE_Q8_0", "tile 40,40")
    assert heaviest_first(names, known) == ("tile 40,40", "vec 128,GGML_TYPE_F16,GGML_TYPE_Q8_0", "mma 64,64,8,8")
