"""The programs that run a model: their builds, command lines, memory limits and messages."""

import difflib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fattn_probe.base.activity import Step
from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.base.figures import times
from fattn_probe.base.files import scratch, write_text
from fattn_probe.base.host import cores
from fattn_probe.base.process import Completed, dialogue
from fattn_probe.cases.device import Target
from fattn_probe.cases.op.gguf_file import ARCHITECTURE, reading
from fattn_probe.cases.op.op import TypeName
from fattn_probe.llama.build.key import CAPTURE
from fattn_probe.llama.build.sources import ARCHITECTURES, LIBLLAMA
from fattn_probe.llama.build.symbols import defining_class
from fattn_probe.llama.source import Tree
from fattn_probe.machine.run.outcome import Failed, Missing, parse_ending
from fattn_probe.machine.run.session import Session

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Prompt:
    """A prompt: text, or if this is None, `tokens` random tokens drawn with `seed`."""

    text: str | None = None
    tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text == "" or (self.text is None and self.tokens < 1):
            raise InputError("the prompt has 0 tokens: give it with --prompt TEXT or --tokens N")
        if self.text is not None and self.tokens:
            raise InputError("--prompt and --tokens each give a prompt: choose one")


@dataclass(frozen=True)
class Request:
    """One run of a model.

    `generate` is the number of tokens after the prompt, `context` the number of positions per sequence (0: as many as
    needed), `batch` the tokens per evaluation (`n_ubatch`), `sequences` the number of parallel prompts. Empty
    `layers` means all. With `every`, each evaluation is recorded, otherwise only the last one of the prompt and the
    last one of the run. `budget` limits the recorded bytes. Without `flash_attn`, matrix products and a softmax
    compute attention, and V must not be quantised.
    """

    model: Path
    prompt: Prompt
    generate: int = 1
    context: int = 0
    batch: int = 512
    type_K: TypeName = "f16"
    type_V: TypeName = "f16"
    sequences: int = 1
    layers: tuple[int, ...] = ()
    every: bool = False
    budget: int = UNITS["G"]
    flash_attn: bool = True

    def words(self, threads: int) -> list[str]:
        """The options of fattn-capture, except files."""
        numbers = {
            "--tokens": self.prompt.tokens,
            "--seed": self.prompt.seed,
            "--generate": self.generate,
            "--context": self.context,
            "--batch": self.batch,
            "--sequences": self.sequences,
            "--threads": threads,
        }
        words = [word for flag, value in numbers.items() for word in (flag, str(value))]
        words += ["--type-k", self.type_K, "--type-v", self.type_V]
        words += [*(["--every"] if self.every else []), *([] if self.flash_attn else ["--no-flash-attn"])]
        return [*words, *(word for layer in self.layers for word in ("--layer", str(layer)))]


def check_layers(request: Request, known: int) -> None:
    """Raise InputError for layers that a model with `known` layers does not have."""
    beyond = [str(layer) for layer in request.layers if layer >= known]
    if beyond:
        raise InputError(f"{request.model}: --layers: the model has layers 0 to {known - 1}, not {', '.join(beyond)}")


def parse_layers(text: str) -> tuple[int, ...]:
    """Parse a list of layers and ranges of layers, `0,5-7`; raises InputError for anything else."""
    found: set[int] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = word.partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdigit() and int(end) < MOST_LAYERS for end in ends):
            raise InputError(f"--layers {text!r}: {word!r} is not a layer or a range of layers, such as 0,5-7")
        if int(ends[0]) > int(ends[1]):
            raise InputError(f"--layers {text!r}: the range {word} ends before it starts")
        found.update(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(sorted(found))


def parse_size(text: str) -> int:
    """Parse a size such as `2G`, `500M` or `4096` into bytes; raises InputError for anything else."""
    word = text.strip().upper().removesuffix("B").removesuffix("I")
    number, unit = (word[:-1], word[-1]) if word[-1:] in UNITS else (word, "")
    try:
        size = int(float(number) * UNITS.get(unit, 1))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise InputError(f"--budget {text!r}: not a size such as 500M or 2G")
    return size


def size_text(size: int) -> str:
    """A size in the largest unit that it fills: `1.3 MiB`."""
    unit, factor = next(((unit, factor) for unit, factor in reversed(UNITS.items()) if size >= factor), ("", 1))
    return f"{times(size / factor)} {unit}iB" if unit else f"{size} B"


KEY = "general.architecture"
NAMED = re.compile(r'\{\s*(?P<value>LLM_ARCH_\w+)\s*,\s*"(?P<name>[^"]+)"\s*\}')
# `case LLM_ARCH_QWEN2: return new llama_model_qwen2(params);`, or make_unique<llm_build_qwen2> before 2026
# The cases are one atomic group: backtracking through them would take a second per search.
MADE = re.compile(r"(?P<cases>(?>(?:case\s+LLM_ARCH_\w+\s*:\s*)+))[^;]*?(?:\bnew\s+|make_unique<)(?P<made>\w+)")


def architecture_of(model: Path) -> str:
    """The architecture of a model; raises InputError if the file is truncated or not a model."""
    with reading(model) as reader:
        field = reader.fields.get(KEY)
        found = field.contents() if field else None
    if not isinstance(found, str):
        raise InputError(f"{model}: not a model: it has no key {KEY}")
    if found == ARCHITECTURE:
        raise InputError(f"{model}: not a model, but a recorded op of fattn-probe, which `compare` and `inspect` read")
    return found


def architectures(tree: Tree) -> dict[str, str]:
    """The `llm_arch` enumerators by architecture name."""
    text = (tree.root / LIBLLAMA / "llama-arch.cpp").read_text(errors="replace")
    return {match["name"]: match["value"] for match in NAMED.finditer(text)}


def check_architecture(tree: Tree, model: Path, architecture: str) -> None:
    """Raise InputError, with the nearest names, if a tree does not know the architecture of a model."""
    known = architectures(tree)
    if architecture not in known:
        near = ", ".join(difflib.get_close_matches(architecture, known, n=3)) or "none"
        raise InputError(
            f"{model}: {tree.spec} knows {len(known)} architectures, but not {architecture!r}; the nearest: {near}"
        )


def files_of(tree: Tree, architecture: str) -> tuple[str, ...]:
    """The file in src/models/ with the graph of an architecture; empty if it cannot be found before a run.

    Other files are compiled when the model first calls a function from them.
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
    """The architecture of a model; raises InputError if the session's tree does not know it."""
    tree = session.options.tree
    if tree is None:
        raise InputError("building libllama needs a source")
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
    """Compile libllama with an architecture, and the files `sources` of ggml-cuda/, into the build for a target."""
    assert session.options.tree is not None, "the architecture was read from a tree"
    step("building libllama")
    session.add_kernels(target, (), program, sources, files_of(session.options.tree, architecture))


def program_words(session: Session, request: Request, folder: Path, raw: Path) -> list[str]:
    """The command line of fattn-capture; a text prompt is written to the folder."""
    threads = session.options.simulation.threads or cores()
    words = [str(request.model), str(raw), *request.words(threads)]
    if request.prompt.text is None:
        return words
    write_text(prompt := folder / "prompt", request.prompt.text)
    return [*words, "--prompt", str(prompt)]


def available_memory() -> int:
    """Memory available to a program, in bytes; 0 if unknown."""
    lines = MEMORY.read_text().splitlines() if MEMORY.is_file() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)


PREFIX = "fattn-capture: "
ERRORS = {2: InputError, 3: MachineError, 4: LostError}
"""The exceptions by exit status, which native/models/options.h defines."""
QUIET = {"DEBUGINFOD_URLS": "", "GGML_NO_BACKTRACE": "1"}
"""Without these variables, ggml starts gdb when it aborts, and gdb writes to stdout."""
Answer = Callable[[Mapping[str, Any]], str]


def converse(argv: Sequence[str], env: Mapping[str, str], timeout: float, answer: Answer) -> Completed:
    """Run the program to completion, and reply to each of its lines; `timeout` is the limit in seconds for each line.

    The process has always ended when this function returns or raises.
    """
    began = time.monotonic()
    with scratch() as folder, dialogue(argv, {**env, **QUIET}, folder / "stderr", "fattn-capture") as speaker:
        line = speaker.ask("", timeout)
        while line:
            try:
                document = json.loads(line)
            except json.JSONDecodeError:
                raise LostError(f"unexpected line from fattn-capture: {line!r}") from None
            line = speaker.ask(answer(document), timeout)
        code = speaker.wait(timeout)
        return Completed(tuple(argv), code, "", speaker.said.read_text(errors="replace"), time.monotonic() - began)


def missing_or_error(done: Completed, model: str) -> Missing | None:
    """Return the function that a program lacked, or None if it succeeded; raises the program's error otherwise."""
    ending = parse_ending(done)
    if ending is None or isinstance(ending, Missing):
        return ending
    said = [line.removeprefix(PREFIX) for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    if done.code in ERRORS and said:
        raise ERRORS[done.code](f"{model}: {said[-1]}")
    raise LostError(f"{model}: {ending.message if isinstance(ending, Failed) else done.describe()}")
