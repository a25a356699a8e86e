import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import ninja
import pytest

from fattn_probe.base.cache import Growth
from fattn_probe.base.errors import BuildError
from fattn_probe.base.workers import threads
from fattn_probe.llama.build.ninja import JobSlots, failed_step, first_errors, parse_status, run_ninja, steps_to_do
from fattn_probe.llama.build.steps import BuildStep, Plan
from tests.base.test_signals import nothing_left
from tests.made import executable

FAILED = """\
@3/24@ fattn.cu
FAILED: [code=1] obj/ggml-cuda/fattn.cu.o
g++ -c overlay/ggml/src/ggml-cuda/fattn.cu -o obj/ggml-cuda/fattn.cu.o
overlay/ggml/src/ggml-cuda/fattn.cu: In function 'void f()':
overlay/ggml/src/ggml-cuda/fattn.cu:12:5: error: 'x' was not declared in this scope
   12 |     x = 1;
ninja: build stopped: subcommand failed.
"""


WRITE = "import sys; open(sys.argv[1], 'w')"


def script(output, text, *inputs):
    """A build step that runs a Python program; its argument is the file to write."""
    return BuildStep("link", output, inputs, (sys.executable, "-c", text, output))


def test_a_failure_shows_its_errors_and_its_output():
    assert parse_status("@3/24@ fattn.cu") == (3, 24, "fattn.cu")
    assert parse_status("fattn.cu:3: note") is None
    assert first_errors(FAILED) == [
        "overlay/ggml/src/ggml-cuda/fattn.cu:12:5: error: 'x' was not declared in this scope"
    ]
    assert failed_step(FAILED) == "obj/ggml-cuda/fattn.cu.o"
    assert first_errors("one\n@1/2@ x\ntwo\n") == ["one", "two"]
    errors = ["a.cuh:1:2: error: ‘__builtin_amdgcn_sad_u8’ was not declared in this scope; did you mean 'x'?"]
    note = "The simulator does not have __builtin_amdgcn_sad_u8; clang may have it for this AMD GPU."
    assert first_errors("\n".join(errors * 2)) == [*errors * 2, note]


def test_steps_become_edges():
    source = ("native/runner/runner.cpp",)
    compile_step = BuildStep("compile", "obj/runner.o", source, ("g++", "-DX=a b", "-c"), log=True)
    stubs = BuildStep("stubs", "obj/stubs.c", ("obj/runner.o",), ("python",))
    link = BuildStep("link", "bin/a b", ("a b:c$d",), ("g++", "-rpath,$ORIGIN", "-o", "bin/a b"))
    text = Plan((compile_step, stubs, link)).render()
    assert "build obj/runner.o: compile native/runner/runner.cpp\n" in text
    words = """g++ '-DX=a b' -c -fdebug-prefix-map="$$PWD"=."""
    assert f"cmd = {words} 2> obj/runner.o.log || {{ cat obj/runner.o.log >&2; exit 1; }}\n" in text
    assert "label = runner.cpp\n" in text
    assert "build obj/stubs.c: stubs obj/runner.o\n  cmd = python\n" in text
    assert "build bin/a$ b: link a$ b$:c$$d\n" in text
    assert "cmd = g++ '-rpath,$$ORIGIN' -o 'bin/a b.part' && mv -f 'bin/a b.part' 'bin/a b'\n" in text


def test_ninja_runs_a_plan_and_reports(tmp_path):
    (tmp_path / "build.ninja").write_text(Plan((script("a", WRITE), script("b", WRITE, "a"))).render())
    seen: list = []
    assert steps_to_do([sys.executable, "-m", "ninja", "-C", str(tmp_path)]) == {"a", "b"}
    run_ninja(growth := Growth(tmp_path), seen.append, jobs=1, known={"a": 100.0, "b": 100.0})
    assert (tmp_path / "b").is_file()
    assert 100 < seen[0].left <= 200 and seen[-1].left == 0
    assert (seen[-1].done, seen[-1].total, seen[-1].label) == (2, 2, "b")
    assert {progress.label for progress in seen} == {"a", "b"}
    assert {name for name in growth.changed if (tmp_path / name).is_file()} == {"a", "b"}
    log = tmp_path / ".ninja_log"
    for half in (False, True):  # if half a row at the log's end hid the step, the seal would lack its output
        log.write_text(log.read_text() + "2\t8" * half)
        (tmp_path / "b").unlink()
        run_ninja(again := Growth(tmp_path), jobs=1)
        assert {name for name in again.changed if (tmp_path / name).is_file()} == {"b"}


MOST = """
import os, sys, time
name = sys.argv[1]
os.mkdir(f"../running/{name}")
time.sleep(0.1)
with open("../most", "a") as file:
    file.write(f"{len(os.listdir('../running'))}\\n")
os.rmdir(f"../running/{name}")
open(name, "w").close()
"""


def test_two_builds_share_the_slots_for_compiles(tmp_path):
    (tmp_path / "running").mkdir()
    slots = JobSlots(3)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "step.py").write_text(MOST)
        names = [f"{folder}{number}" for number in range(6)]
        steps = tuple(BuildStep("link", name, (), (sys.executable, "step.py", name)) for name in names)
        (tmp_path / folder / "build.ninja").write_text(Plan(steps).render())

    def build(folder):
        slots.take()
        run_ninja(Growth(tmp_path / folder), jobs=slots)
        slots.give()

    with closing(slots), threads(2) as pool:
        list(pool.map(build, ("one", "two")))
        assert max(map(int, (tmp_path / "most").read_text().split())) <= 3
        for _ in range(3):  # all are free again
            slots.take()


WAIT = """
import pathlib, sys, time
for _ in range(1000):
    if pathlib.Path("reported").exists():
        sys.exit(open(sys.argv[1], "w").close())
    time.sleep(0.01)
sys.exit("no report")
"""


def test_the_report_comes_before_the_step_ends(tmp_path):
    (tmp_path / "wait.py").write_text(WAIT)
    waits = BuildStep("link", "a", (), (sys.executable, "wait.py", "a"))
    (tmp_path / "build.ninja").write_text(Plan((waits,)).render())
    run_ninja(Growth(tmp_path), lambda progress: (tmp_path / "reported").touch(), jobs=1)
    assert (tmp_path / "a").is_file()


def test_a_failed_link_keeps_the_old_output(tmp_path):
    (tmp_path / "a").write_text("whole")
    broken = script("a", "import sys; open(sys.argv[1], 'w').write('half'); sys.exit('error')")
    (tmp_path / "build.ninja").write_text(Plan((broken,)).render())
    with pytest.raises(BuildError):
        run_ninja(Growth(tmp_path), jobs=1)
    assert (tmp_path / "a").read_text() == "whole"


def test_a_ninja_that_is_killed_is_called_so(tmp_path):
    (tmp_path / "build.ninja").write_text(Plan((script("a", "import os; os.kill(os.getsid(0), 9)"),)).render())
    with pytest.raises(BuildError, match=r"^building a step failed:\nninja was killed by SIGKILL\n"):
        run_ninja(Growth(tmp_path), jobs=1)


CRASHES = """\
#!/bin/sh
test -e {folder}/.ninja_deps && kill -SEGV $$
exec {ninja} "$@"
"""


def test_a_ninja_that_crashes_on_its_own_records_begins_without_them(tmp_path, monkeypatch, caplog):
    executable(tmp_path / "bin/ninja", CRASHES.format(folder=tmp_path, ninja=Path(ninja.BIN_DIR) / "ninja"))
    monkeypatch.setattr(ninja, "BIN_DIR", str(tmp_path / "bin"))
    (tmp_path / "build.ninja").write_text(Plan((script("a", WRITE),)).render())
    (tmp_path / ".ninja_deps").write_bytes(b"damaged")
    run_ninja(Growth(tmp_path), jobs=1)
    assert (tmp_path / "a").is_file()
    assert "ninja was killed by SIGSEGV: removing its damaged records and trying again" in caplog.text


def test_a_failed_step_is_a_build_error_with_a_log(tmp_path):
    (tmp_path / "build.ninja").write_text(Plan((script("a", "raise SystemExit('error: $no such thing')"),)).render())
    with pytest.raises(BuildError) as raised:
        run_ninja(Growth(tmp_path), jobs=1)
    assert str(raised.value).startswith("building a failed:\n")
    assert "error: $no such thing" in str(raised.value)
    assert str(tmp_path / "build.log") in str(raised.value)
    assert "error: $no such thing" in (tmp_path / "build.log").read_text()


BUILDER = """
from fattn_probe.llama.build.ninja import read_lines, spawned
with spawned(["sh", "-c", "echo $$; exec sleep 60"], {}) as (child, terminal):
    for line in read_lines(terminal):
        print(line, flush=True)
"""


@pytest.mark.parametrize("prefix", [[], ["nohup"]])
def test_a_killed_build_leaves_no_compilers_behind(prefix, tmp_path):
    env = os.environ | {"MARK": str(tmp_path)}
    builder = subprocess.Popen([*prefix, sys.executable, "-c", BUILDER], stdout=subprocess.PIPE, env=env)
    os.kill(int(builder.stdout.readline()), 0)
    builder.kill()
    builder.communicate()
    assert nothing_left(str(tmp_path))
