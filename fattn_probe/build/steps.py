"""What a build does, as values: computed purely, printed by --dry-run, rendered for ninja."""

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class CompileStep:
    """One source file to one object; `log` keeps what the compiler says on success too, in `<object>.log`."""

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
        """What the progress line shows."""
        return self.source.rpartition("/")[2]

    @property
    def depfile(self) -> str:
        """Where the compiler writes the headers that it read."""
        return f"{self.object}.d"

    @property
    def shell(self) -> str:
        """The command line."""
        words = shlex.join(self.command)
        log = shlex.quote(f"{self.object}.log")
        return f"{words} 2> {log} || {{ cat {log} >&2; exit 1; }}" if self.log else words


@dataclass(frozen=True)
class LinkStep:
    """Objects and libraries to a library or a program.

    The command's last word is the output: it is made beside its place and renamed, because a program of this build
    may be starting meanwhile.
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
        """What the progress line shows."""
        return self.output.rpartition("/")[2]

    @property
    def shell(self) -> str:
        """The command line."""
        part = f"{self.output}.part"
        return f"{shlex.join((*self.command[:-1], part))} && mv -f {shlex.quote(part)} {shlex.quote(self.output)}"


@dataclass(frozen=True)
class StubStep(LinkStep):
    """Objects to the C source of a stub for each function that they need and nothing defines."""

    @property
    def shell(self) -> str:
        """The command line; the script leaves an output alone that would not change."""
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
    def commands(self) -> tuple[str, ...]:
        """The command lines, in the order of the steps."""
        return tuple(step.shell for step in self.steps)


def render_step(step: Step) -> str:
    """One edge of build.ninja."""
    rule = "stubs" if isinstance(step, StubStep) else "compile" if isinstance(step, CompileStep) else "link"
    outputs, inputs = (" ".join(map(escape_path, paths)) for paths in (step.outputs, step.inputs))
    variables = f"  cmd = {escape_value(step.shell)}\n  label = {escape_value(step.label)}\n"
    return f"build {outputs}: {rule} {inputs}\n{variables}"


def escape_value(text: str) -> str:
    """A text as ninja reads it in the value of a variable."""
    return text.replace("$", "$$").replace("\n", " ")


def escape_path(path: str) -> str:
    """A path as ninja reads it in a build line."""
    return path.replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
