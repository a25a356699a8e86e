"""The programs that run a model: builds, command lines, memory limits."""

from collections.abc import Iterable
from pathlib import Path

from fattn_probe.base.activity import Step
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import write_text
from fattn_probe.base.host import cores
from fattn_probe.cases.device import Target
from fattn_probe.daily.models.architectures import architecture_of, check_architecture, files_of
from fattn_probe.daily.models.request import Request
from fattn_probe.llama.build.key import CAPTURE
from fattn_probe.machine.run.session import Session

CPU = Target("cpu")
MEMORY = Path("/proc/meminfo")


def known_architecture(session: Session, model: Path) -> str:
    """The architecture of a model; InputError if the session's tree does not know it."""
    tree = session.options.tree
    if tree is None:
        raise InputError("a source is needed to build libllama from")
    architecture = architecture_of(model)
    check_architecture(tree, model, architecture)
    return architecture


def build_libllama(
    session: Session,
    target: Target,
    architecture: str,
    step: Step,
    *,
    program: str = CAPTURE,
    sources: Iterable[str] = (),
) -> None:
    """Compile libllama with an architecture into the build of a target, and further files of ggml-cuda/."""
    assert session.options.tree is not None, "whose architecture it is"
    step("building libllama")
    session.add_kernels(target, (), program, sources, files_of(session.options.tree, architecture))


def program_words(session: Session, request: Request, folder: Path, raw: Path) -> list[str]:
    """The command line of fattn-capture; a prompt in words is written to the folder."""
    threads = session.options.simulation.threads or cores()
    words = [str(request.model), str(raw), *request.words(threads)]
    if request.prompt.text is None:
        return words
    write_text(prompt := folder / "prompt", request.prompt.text)
    return [*words, "--prompt", str(prompt)]


def available_memory() -> int:
    """The bytes of memory available to a program; 0 if unknown."""
    lines = MEMORY.read_text().splitlines() if MEMORY.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
