"""The programs that run a model: builds, command lines, memory limits."""

import difflib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.base.files import write_text
from fattn_probe.base.host import cores
from fattn_probe.base.process import Completed, dialogue
from fattn_probe.base.scratch import scratch
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.gguf_file import ARCHITECTURE, reading
from fattn_probe.daily.models.request import Request
from fattn_probe.llama.build.key import CAPTURE
from fattn_probe.llama.build.sources import ARCHITECTURES, LIBLLAMA
from fattn_probe.llama.build.symbols import defining_class
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.outcome import Failed, Missing, parse_ending
from fattn_probe.machine.run.session import Session

KEY = "general.architecture"
NAMED = re.compile(r'\{\s*(?P<value>LLM_ARCH_\w+)\s*,\s*"(?P<name>[^"]+)"\s*\}')
# `case LLM_ARCH_QWEN2: return new llama_model_qwen2(params);`, or make_unique<llm_build_qwen2> before 2026
# The cases are one atomic group: giving them back one by one takes a second of each search.
MADE = re.compile(r"(?P<cases>(?>(?:case\s+LLM_ARCH_\w+\s*:\s*)+))[^;]*?(?:\bnew\s+|make_unique<)(?P<made>\w+)")


def architecture_of(model: Path) -> str:
    """The architecture of a model; InputError for a truncated file, or one that is not a model."""
    with reading(model) as reader:
        field = reader.fields.get(KEY)
        found = field.contents() if field else None
    if not isinstance(found, str):
        raise InputError(f"{model}: not a model: it has no key {KEY}")
    if found == ARCHITECTURE:
        raise InputError(f"{model}: not a model, but a recorded op of fattn-probe, which `compare` and `inspect` take")
    return found


def architectures(tree: Tree) -> dict[str, str]:
    """The values of `llm_arch` by the names of architectures."""
    text = (tree.root / LIBLLAMA / "llama-arch.cpp").read_text(errors="replace")
    return {match["name"]: match["value"] for match in NAMED.finditer(text)}


def check_architecture(tree: Tree, model: Path, architecture: str) -> None:
    """InputError, with the nearest names, if a tree does not know the architecture of a model."""
    known = architectures(tree)
    if architecture not in known:
        near = ", ".join(difflib.get_close_matches(architecture, known, n=3)) or "none is like it"
        raise InputError(
            f"{model}: {tree.spec} knows {len(known)} architectures, but not {architecture!r}; the nearest: {near}"
        )


def files_of(tree: Tree, architecture: str) -> tuple[str, ...]:
    """The file of src/models/ with the graph of an architecture; none if it cannot be found before a run.

    Other files that it needs are compiled when the model calls them.
    """
    value = architectures(tree).get(architecture)
    text = (tree.root / LIBLLAMA / "llama-model.cpp").read_text(errors="replace")
    made = [match["made"] for match in MADE.finditer(text) if re.search(rf"\b{value}\b", match["cases"])]
    files = sorted((tree.root / ARCHITECTURES).glob("*.cpp"))
    found = [defining_class(f"vtable for {name}", files) for name in made]
    return tuple(dict.fromkeys(file for file in found if file))


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


PREFIX = "fattn-capture: "
ERRORS = {2: InputError, 3: MachineError, 4: LostError}
"""The errors by exit status, as in native/models/options.h."""
QUIET = {"DEBUGINFOD_URLS": "", "GGML_NO_BACKTRACE": "1"}
"""When ggml aborts, it would start gdb, which writes to stdout."""
Answer = Callable[[Mapping[str, Any]], str]


def converse(argv: Sequence[str], env: Mapping[str, str], timeout: float, answer: Answer) -> Completed:
    """Run the program to its end, and answer each of its lines; `timeout` is the limit in seconds for each line.

    The process always ends with this function.
    """
    began = time.monotonic()
    with (
        scratch() as folder,
        dialogue(argv, {**env, **QUIET}, folder / "stderr", "fattn-capture") as speaker,
    ):
        line = speaker.ask("", timeout)
        while line:
            try:
                document = json.loads(line)
            except json.JSONDecodeError:
                raise LostError(f"fattn-capture said {line!r}") from None
            line = speaker.ask(answer(document), timeout)
        code = speaker.wait(timeout)
        return Completed(tuple(argv), code, "", speaker.said.read_text(errors="replace"), time.monotonic() - began)


def missing_or_error(done: Completed, model: str) -> Missing | None:
    """The function that a program lacked; None if it succeeded; raises its error otherwise."""
    ending = parse_ending(done)
    if ending is None or isinstance(ending, Missing):
        return ending
    said = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    if done.code in ERRORS and said:
        raise ERRORS[done.code](f"{model}: {said[-1]}")
    raise LostError(f"{model}: {ending.message if isinstance(ending, Failed) else done.describe()}")
