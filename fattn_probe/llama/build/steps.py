"""The steps of a build as data: computed without side effects, printed by --dry-run, rendered for ninja."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FOLDER_AS_DOT = ' -fdebug-prefix-map="$PWD"=.'


@dataclass(frozen=True)
class BuildStep:
    """A command that writes one file, `output`, after the files in `after`; ninja runs it again when an input changes.

    `compile` writes an object for a source; the compiler lists the headers in the depfile `<object>.d`. With `log`, the
    compiler's output is saved in `<object>.log`. `link` writes a library or a program. `stubs` writes a C source with a
    stub for each undefined function of the inputs.
    """

    rule: Literal["compile", "link", "stubs"]
    output: str
    inputs: tuple[str, ...]
    command: tuple[str, ...]
    log: bool = False
    after: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The step's name in the progress line: the file name of a compiled source, otherwise of the output."""
        return (self.inputs[0] if self.rule == "compile" else self.output).rpartition("/")[2]

    @property
    def shell(self) -> str:
        """The command line.

        g++ writes the build folder as `.` into debug information, so a source gives the same object in any folder;
        nvcc has no such option for device code. A linked file, which is the command's last word, is written beside its
        final path and then renamed, because a program of this build may be starting at the same time.
        """
        words = shlex.join(self.command)
        if self.rule == "link":
            part = shlex.quote(f"{self.output}.part")
            return f"{shlex.join(self.command[:-1])} {part} && mv -f {part} {shlex.quote(self.output)}"
        if self.rule == "compile" and "nvcc" not in self.command:
            words += FOLDER_AS_DOT
        log = shlex.quote(f"{self.output}.log")
        return f"{words} 2> {log} || {{ cat {log} >&2; exit 1; }}" if self.log else words


def compile_step(source: str, target: str, command: Iterable[str], *, ccache: bool, log: bool = False) -> BuildStep:
    """The step that compiles a source; adds its input, its output, a depfile and perhaps ccache to the command."""
    launcher = ("ccache",) if ccache else ()
    words = (*launcher, *command, "-MD", "-MF", f"{target}.d", "-c", source, "-o", target)
    return BuildStep("compile", target, (source,), words, log)


@dataclass(frozen=True)
class Plan:
    """The steps of a build, heaviest compiles first; paths are relative to the build folder, where commands run."""

    steps: tuple[BuildStep, ...]

    def render(self) -> str:
        """The text of build.ninja."""
        edges = []
        for step in self.steps:
            before = ("||", *step.after) if step.after else ()
            output, *inputs = (re.sub(r"[$ :]", r"$\g<0>", path) for path in (step.output, *step.inputs, *before))
            shell, label = (text.replace("$", "$$").replace("\n", " ") for text in (step.shell, step.label))
            edges.append(f"build {output}: {step.rule} {' '.join(inputs)}\n  cmd = {shell}\n  label = {label}\n")
        return (
            "ninja_required_version = 1.10\n"
            "rule compile\n  command = $cmd\n  description = $label\n  depfile = $out.d\n  deps = gcc\n"
            "rule link\n  command = $cmd\n  description = $label\n"
            "rule stubs\n  command = $cmd\n  description = $label\n  restat = 1\n" + "\n".join(edges) + "\n"
        )

    @property
    def objects(self) -> tuple[str, ...]:
        """The compiled objects, which all link steps need."""
        return tuple(step.output for step in self.steps if step.rule == "compile")

    @property
    def commands(self) -> tuple[str, ...]:
        """The command lines, in the order of the steps."""
        return tuple(step.shell for step in self.steps)
