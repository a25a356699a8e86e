"""The prompts to run through a model, and the ops to record."""

from dataclasses import dataclass
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import times
from fattn_probe.cases.op.ggml_types import TypeName

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Prompt:
    """A text, or if None, a number of random tokens from a seed."""

    text: str | None = None
    tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text == "" or (self.text is None and self.tokens < 1):
            raise InputError("the prompt has 0 tokens: give it by --prompt TEXT or --tokens N")
        if self.text is not None and self.tokens:
            raise InputError("--prompt and --tokens are both a prompt: choose one")


@dataclass(frozen=True)
class Request:
    """One run of a model.

    `generate` is the number of tokens after the prompt, `context` the positions of each sequence (0: as many as
    needed), `batch` the tokens of one evaluation (`n_ubatch`), `sequences` the number of parallel prompts. Empty
    `layers` means all. With `every`, each evaluation is recorded, otherwise the last of the prompt and the very last.
    `budget` limits the recorded bytes. Without `flash_attn`, attention is matrix products and a softmax, and V must not
    be quantised.
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
    """InputError for layers that a model with `known` of them does not have."""
    beyond = [str(layer) for layer in request.layers if layer >= known]
    if beyond:
        raise InputError(f"{request.model}: --layers: the model has layers 0 to {known - 1}, not {', '.join(beyond)}")


def parse_layers(text: str) -> tuple[int, ...]:
    """The layers of a list of numbers and ranges, `0,5-7`; InputError for anything else."""
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
    """The bytes of a size such as `2G`, `500M` or `4096`; InputError for anything else."""
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
