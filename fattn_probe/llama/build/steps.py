"""The steps of a build as values: computed without side effects, printed by --dry-run, rendered for ninja."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

FOLDER_AS_DOT = ' -fdebug-prefix-map="$PWD"=.'


@dataclass(frozen=True)
class CompileStep:
    """Compile one source file to one object; with `log`, the compiler's output is saved in `<object>.log`.

    g++ writes the build folder as `.` into debug information, so equal sources give equal objects in every folder. nvcc
    has no such option for device code.
    """

    source: str
    object: str
    command: tuple[str, ...]
    log: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The object."""
        return (self.object,)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The source; headers come from the compiler's depfile."""
        return (self.source,)

    @property
    def label(self) -> str:
        """The label in the progress line."""
        return self.source.rpartition("/")[2]

    @property
    def depfile(self) -> str:
        """The file in which the compiler lists the headers that it read."""
        return f"{self.object}.d"

    @property
    def shell(self) -> str:
        """The command line."""
        words = shlex.join(self.command) + ("" if "nvcc" in self.command else FOLDER_AS_DOT)
        log = shlex.quote(f"{self.object}.log")
        return f"{words} 2> {log} || {{ cat {log} >&2; exit 1; }}" if self.log else words


def compile_step(source: str, target: str, command: Iterable[str], *, ccache: bool, log: bool = False) -> CompileStep:
    """The compile of a source by a command without input and output; with a depfile, and by ccache if there is one."""
    launcher = ("ccache",) if ccache else ()
    words = (*launcher, *command, "-MD", "-MF", f"{target}.d", "-c", source, "-o", target)
    return CompileStep(source, target, words, log)


@dataclass(frozen=True)
class LinkStep:
    """Link objects and libraries to a library or a program.

    The command's last word is the output. It is written beside its final path and renamed, because a program of this
    build may be starting at the same time.
    """

    output: str
    inputs: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The library or program."""
        return (self.output,)

    @property
    def label(self) -> str:
        """The label in the progress line."""
        return self.output.rpartition("/")[2]

    @property
    def shell(self) -> str:
        """The command line."""
        part = f"{self.output}.part"
        return f"{shlex.join((*self.command[:-1], part))} && mv -f {shlex.quote(part)} {shlex.quote(self.output)}"


@dataclass(frozen=True)
class StubStep(LinkStep):
    """Generate the C source of a stub for each undefined function of the objects."""

    @property
    def shell(self) -> str:
        """The command line; the script does not touch an unchanged output."""
        return shlex.join(self.command)


Step = CompileStep | LinkStep


@dataclass(frozen=True)
class Plan:
    """The steps of a build, heaviest compiles first; paths are relative to the build folder, where commands run."""

    steps: tuple[Step, ...]

    def render(self) -> str:
        """The text of build.ninja."""
        edges = "\n".join(render_step(step) for step in self.steps)
        return (
            "ninja_required_version = 1.10\n"
            "rule compile\n  command = $cmd\n  description = $label\n  depfile = $out.d\n  deps = gcc\n"
            "rule link\n  command = $cmd\n  description = $label\n"
            f"rule stubs\n  command = $cmd\n  description = $label\n  restat = 1\n{edges}\n"
        )

    @property
    def objects(self) -> tuple[str, ...]:
        """What is compiled; all that links needs."""
        return tuple(step.object for step in self.steps if isinstance(step, CompileStep))

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines, in the order of the steps."""
        return tuple(step.shell for step in self.steps)


def render_step(step: Step) -> str:
    """One build statement of build.ninja."""
    rule = "stubs" if isinstance(step, StubStep) else "compile" if isinstance(step, CompileStep) else "link"
    outputs, inputs = (" ".join(map(escape_path, paths)) for paths in (step.outputs, step.inputs))
    variables = f"  cmd = {escape_value(step.shell)}\n  label = {escape_value(step.label)}\n"
    return f"build {outputs}: {rule} {inputs}\n{variables}"


def escape_value(text: str) -> str:
    """Escape a text for the value of a ninja variable."""
    return text.replace("$", "$$").replace("\n", " ")


def escape_path(path: str) -> str:
    """Escape a path for a ninja build line."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
