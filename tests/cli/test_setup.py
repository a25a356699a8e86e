"""What commands set up from their flags."""

import io

import pytest
from rich.console import Console

from fattn_probe.base.digest import seal
from fattn_probe.base.errors import BuildError, InputError
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cli import setup
from fattn_probe.cli.setup import BuildFlags, Where
from fattn_probe.llama.build.key import MANIFESTS
from fattn_probe.llama.source import DEFAULT_SOURCE
from tests.llama.build.test_key import MANIFEST

OP = "version: 1\nabout: x\nhsk: 64\nn_head: 1\nn_q: 1\nn_kv: 64\n"


@pytest.fixture
def notes(monkeypatch):
    """What is said to the user."""
    said = io.StringIO()
    monkeypatch.setattr(setup, "NOTES", Console(file=said, width=200))
    return said


def targets(text=OP, on="", **options):
    work = setup.work_of([*expand(loads(text)), *expand(loads(OP))], Where(on=on), **options)
    return [str(target) for _, chosen in work for target in chosen]


def machine(monkeypatch, *, gpu, nvcc):
    """A stand-in for a machine: whether its driver has a GPU, and whether nvcc is there."""

    def find_toolchain(engine):
        if not nvcc:
            raise BuildError("nvcc is not installed; install it")

    monkeypatch.setattr(setup, "has_gpu", lambda: gpu)
    monkeypatch.setattr(setup, "find_toolchain", find_toolchain)


@pytest.mark.parametrize(
    ("gpu", "nvcc", "chosen", "said"),
    [
        (True, True, "gpu:0", "running on gpu (this machine has a GPU; use --on to choose)"),
        (
            *(True, False, "sim:h200"),
            "running on sim:h200 (this machine has a GPU, but nvcc is not installed; install it;",
        ),
        (False, True, "sim:h200", "running on sim:h200 (this machine has no NVIDIA GPU; use --on to choose)"),
        (False, False, "sim:h200", "running on sim:h200 (this machine has no NVIDIA GPU; use --on to choose)"),
    ],
)
def test_the_default_is_a_gpu_that_can_be_used(gpu, nvcc, chosen, said, *, notes, monkeypatch):
    machine(monkeypatch, gpu=gpu, nvcc=nvcc)
    assert targets() == [chosen, chosen]
    assert notes.getvalue().count("running on") == 1, "announced once"
    assert said in notes.getvalue()


def test_the_scenario_and_the_flag_win_and_a_plan_is_of_a_simulated_gpu(notes, monkeypatch):
    machine(monkeypatch, gpu=True, nvcc=True)
    assert targets(OP + "device: sim:v100\n") == ["sim:v100", "gpu:0"]
    assert targets(OP + "device: sim:v100\n", on="cpu") == ["cpu", "cpu"]
    machine(monkeypatch, gpu=True, nvcc=True)
    assert targets(simulated=True) == ["sim:h200", "sim:h200"]


def test_the_default_is_no_part_of_the_digest():
    (plain,), (named,) = expand(loads(OP)), expand(loads(OP + "device: sim:h200\n"))
    assert plain.digest == named.digest == "8a31bb2eb026cbb1"


def test_in_a_checkout_it_is_the_source_and_one_line_says_so(notes, tmp_path, monkeypatch):
    below = tmp_path / "llama cpp/ggml/src/ggml-cuda"
    below.mkdir(parents=True)
    (below / "fattn.cu").touch()
    seen = []
    monkeypatch.setattr(setup, "resolve", lambda source, progress, models: seen.append(source))
    for folder in (tmp_path / "llama cpp", below, below):
        monkeypatch.chdir(folder)
        setup.tree_of(BuildFlags())
    assert seen == [str(tmp_path / "llama cpp")] * 3
    assert (
        notes.getvalue().splitlines()
        == [f"source: {tmp_path / 'llama cpp'}, the checkout you are in (the release: --source {DEFAULT_SOURCE})"] * 2
    ), "once in each folder"
    monkeypatch.chdir(below)
    setup.tree_of(BuildFlags(source="git:b11549"))
    monkeypatch.chdir(tmp_path)
    setup.tree_of(BuildFlags())
    assert seen[3:] == ["git:b11549", DEFAULT_SOURCE] and len(notes.getvalue().splitlines()) == 2
    assert setup.same_again(DEFAULT_SOURCE, BuildFlags(), Where(), repeat=2, check=True) == ["--repeat", "2", "--check"]
    monkeypatch.chdir(below)
    assert setup.same_again(DEFAULT_SOURCE, BuildFlags(), Where()) == ["--source", DEFAULT_SOURCE]


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"check": True}, "--check"),
        ({"debug": True}, "--debug"),
        ({"patch": ["seed", "other"], "source": "pypi:x==1"}, "--source, --patch"),
        ({"sanitize": "address", "quants": "all"}, "--sanitize, --quants"),
        ({"patch": ["seed"], "source": "path:small"}, ""),
    ],
)
def test_flags_for_another_build_than_the_given_one_are_refused(tmp_path, flags, refused):
    """They were ignored: `--check` on a release build passed, and nothing was checked."""
    (tmp_path / "manifest.json").write_text(MANIFESTS.text(MANIFEST))
    seal(tmp_path)
    build = BuildFlags(folder=tmp_path, **flags)
    if refused:
        with pytest.raises(InputError, match=f"release build of path:small and is used unchanged, so drop {refused}$"):
            setup.run_options(build)
    else:
        assert setup.lacking(MANIFEST, build) == []
