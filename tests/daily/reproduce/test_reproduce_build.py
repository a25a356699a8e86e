"""What reproduce writes fails on a faulty tree and passes on the clean one, built and run as its README says.

Where a user would link with llama.cpp's own build, this links with ours, whose GPU is simulated.
"""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fattn_probe.cases import shipped
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.llama.build import TEST_BACKEND_OPS
from fattn_probe.llama.source import DEFAULT_SOURCE, patches, resolve
from fattn_probe.machine.run.capture import read_capture, write_capture
from fattn_probe.machine.run.prepare import prepare
from fattn_probe.machine.run.session import RunOptions, Session
from tests.as_user import fattn_probe
from tests.made import H200

pytestmark = [pytest.mark.build, pytest.mark.network]
NIGHT = pytest.mark.night  # test-backend-ops and ggml's CPU backend are compiled, each fault's kernels twice

FIXUP = "faults/14628-fixup-layout"
OF_UPSTREAM = (
    "FLASH_ATTN_EXT(hsk=64,hsv=64,nh=4,nr23=[4,1],kv=512,nb=3,mask=1,sinks=0,max_bias=0.000000,logit_softcap=0.000000,"
    "prec=f32,type_K=f16,type_V=f16,permute=[0,1,2,3],kv_view=1,v_is_view_of_k=0,n_kv_max=0)"
)
FAULTS = shipped.folder("fault") / "faults"


def scenario_of(fault):
    return FAULTS / f"{fault.removeprefix('faults/')}.yaml"


def reproduce(case, out, *words):
    done = fattn_probe("reproduce", case, "--on", "sim:h200", "--out", out, "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Built:
    """test-backend-ops and ggml of the default source, with patches, and the kernels that a case needs."""

    def __init__(self, case, *applied):
        tree = resolve(DEFAULT_SOURCE)
        found = [patches.load(word) if isinstance(word, Path) else patches.find(word, tree) for word in applied]
        self.session = Session(RunOptions(tree, patches=tuple(found)))
        prepare(self.session, [(one, [H200]) for one in cases_of([case])], TEST_BACKEND_OPS)
        self.build = self.session.build_for(H200, TEST_BACKEND_OPS)

    def run(self, words, folder):
        env = {"PATH": "/usr/bin:/bin", **self.session.env(H200, TEST_BACKEND_OPS)}
        return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)

    def test_backend_ops(self, words, folder):
        return self.run([str(self.build.test_backend_ops), *words[1:]], folder)

    def program(self, folder, name):
        """Compile reproduce.cpp with the words of the README's line; llama.cpp's libggml.so is a list of backends."""
        words = next(line for line in readme_lines(folder) if line[0] == "g++")
        registry = [str(path) for path in sorted((self.build.folder / "obj").glob("ggml-backend-*.cpp.o"))]
        registry = [path for path in registry if re.search(r"ggml-backend-(reg|dl)\.cpp\.o$", path)]
        lib = self.build.folder / "lib"
        ours = {
            "-lggml": [*registry, "-lggml-cuda", "-lggml-cpu"],
            "LLAMA/ggml/include": [str(resolve(DEFAULT_SOURCE).root / "ggml/include")],
            "LLAMA/build/bin": [str(lib)],
            "-Wl,-rpath,LLAMA/build/bin": [f"-Wl,-rpath,{lib}"],
            "reproduce": [name],
        }
        line = [found for word in words for found in ours.get(word, [word])]
        subprocess.run(line, cwd=folder, check=True)

    def reproduction(self, folder, name):
        self.program(folder, name)
        return self.run([f"./{name}", "inputs.gguf"], folder)


def readme_lines(folder):
    """The command lines of a README, in words."""
    blocks = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return [shlex.split(line, comments=True) for line in "".join(blocks).splitlines()]


def upstream_line(folder):
    return next(line for line in readme_lines(folder) if line[0] == "build/bin/test-backend-ops")


@NIGHT  # CI has test_upstream_case.py, with a stand-in for upstream's program
def test_a_case_of_upstreams_list_is_a_line(tmp_path):
    case = tmp_path / "case.yaml"
    case.write_text(fattn_probe("scenario", "from-ops", OF_UPSTREAM).stdout)
    made = reproduce(case, tmp_path / "out", "--patch", FIXUP)
    assert (made["way"], made["files"], made["upstream_case"]) == ("line", ["README.md"], OF_UPSTREAM)
    assert made["upstream"] == {"runs": 3, "failed": 3}
    faulty, clean = (Built(case, *applied).test_backend_ops(upstream_line(tmp_path / "out"), tmp_path)
                     for applied in ((FIXUP,), ()))  # fmt: skip
    assert (faulty.returncode, clean.returncode) == (1, 0)
    assert "0/1 tests passed" in faulty.stdout and "1/1 tests passed" in clean.stdout


@NIGHT
def test_a_shape_that_the_list_lacks_is_a_patch(tmp_path):
    out, gqa = tmp_path / "out", Path("scenarios/gqa.yaml")
    made = reproduce("gqa", out, "--patch", FIXUP)
    assert (made["way"], made["files"]) == ("patch", ["README.md", "add-case.patch"])
    clean_tree = tmp_path / "tree/tests"
    clean_tree.mkdir(parents=True)
    shutil.copy(resolve(DEFAULT_SOURCE).root / "tests/test-backend-ops.cpp", clean_tree)
    subprocess.run(["git", "init", "-q", "."], cwd=clean_tree.parent, check=True)
    subprocess.run(["git", "apply", out / "add-case.patch"], cwd=clean_tree.parent, check=True)
    assert "new test_flash_attn_ext(64, 64, 2, {7, 1}, 256, 7, " in (clean_tree / "test-backend-ops.cpp").read_text()
    faulty = Built(gqa, FIXUP, out / "add-case.patch").test_backend_ops(upstream_line(out), tmp_path)
    clean = Built(gqa, out / "add-case.patch").test_backend_ops(upstream_line(out), tmp_path)
    assert (faulty.returncode, clean.returncode) == (1, 0)
    assert "0/1 tests passed" in faulty.stdout and "1/1 tests passed" in clean.stdout


@NIGHT
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("faults/14500-mask-rows", "patch: test_flash_attn_ext has no parameters for this op"),
        ("faults/17610-no-maximum-shift", "patch: upstream's test failed in 0 of 3 runs"),
    ],
)
def test_what_upstreams_test_cannot_show_is_a_file(fault, reason, tmp_path):
    out, case = tmp_path / "out", scenario_of(fault)
    made = reproduce(case, out, "--patch", fault)
    assert (made["way"], made["files"]) == ("file", ["README.md", "inputs.gguf", "reproduce.cpp"])
    assert reason in made["reasons"]
    check_file(out, case, fault)


def check_file(out, case, fault):
    faulty = Built(case, fault).reproduction(out, "faulty")
    clean = Built(case).reproduction(out, "clean")
    assert faulty.returncode == 1, faulty
    assert clean.returncode == 0, clean
    assert faulty.stdout.splitlines()[-1] == "FAIL" and clean.stdout.splitlines()[-1] == "PASS"


@NIGHT
def test_a_recorded_case(tmp_path):
    fault, out = "faults/14500-mask-rows", tmp_path / "out"
    done = fattn_probe("run", scenario_of(fault), "--on", "sim:h200", "--captures", tmp_path / "ops")
    assert done.returncode == 0
    (capture,) = (tmp_path / "ops").glob("*.gguf")
    assert reproduce(capture, out, "--patch", fault, "--as", "file")["status"] == "fail"
    check_file(out, capture, fault)


def test_the_output_in_a_capture_is_judged(tmp_path):
    assert fattn_probe("run", "gqa", "--on", "sim:h200", "--captures", tmp_path).returncode == 0
    (path,) = tmp_path.glob("*.gguf")
    right = read_capture(path)
    odd = right.dst.copy()
    odd[0, 3, 5, 7] += np.float32(0.01)
    write_capture(replace(right, dst=odd), wrong := tmp_path / "wrong.gguf")
    made = [json.loads(fattn_probe("reproduce", file, "--out", tmp_path / file.stem, "--json").stdout)
            for file in (path, wrong)]  # fmt: skip
    assert [one["status"] for one in made] == ["pass", "fail"]
    assert [one["judged_by"] for one in made] == ["prediction", "prediction"]
    assert "| 0, 3, 5, 7 |" in (tmp_path / "wrong/README.md").read_text()
    assert "On **sim:h200**: **fail**" in (tmp_path / "wrong/README.md").read_text()
    assert "Nothing\nwas run on a real GPU." in (tmp_path / "wrong/README.md").read_text()


@NIGHT
def test_a_rounding_that_only_the_model_shows(tmp_path):
    """Its error is within the bounds of the exact answer, so the file compares with the rounding model."""
    fault, out = "faults/16540-tile-f16-scale", tmp_path / "out"
    case = scenario_of(fault)
    made = reproduce(case, out, "--patch", fault, "--as", "file")
    assert (made["status"], made["judged_by"]) == ("fail", "model")
    check_file(out, case, fault)


@NIGHT
def test_a_case_that_passes_is_written_too(tmp_path):
    made = reproduce("gqa", tmp_path / "out")
    assert (made["status"], made["way"], made["judged_by"]) == ("pass", "file", "prediction")
    assert Built(Path("scenarios/gqa.yaml")).reproduction(tmp_path / "out", "clean").returncode == 0
