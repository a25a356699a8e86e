"""Precompile the headers that all attention kernels include: they take as long to compile as a small kernel itself.

The compiler reads our header before a kernel's file (`-include`). If a precompiled header is beside it, g++ uses that
one instead, and produces the same object, bit for bit. The depfile then does not list the included headers, by which
ccache and ninja identify an object. So each kernel's file begins with a line that contains their digest.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fattn_probe.base.cache import Kind, get_or_make
from fattn_probe.base.digest import hexdigest
from fattn_probe.base.errors import BuildError
from fattn_probe.base.files import remove_tree
from fattn_probe.base.process import run
from fattn_probe.llama.build.sources import CUDA
from fattn_probe.llama.build.steps import BuildStep, Plan
from fattn_probe.llama.cxx.includes import included

PRECOMPILED = Kind("precompiled", "the precompiled header")
HEADERS, QUICK_HEADERS = "fattn-probe-headers.h", "fattn-probe-headers-quick.h"
"""Files in an overlay's ggml-cuda/: one for each set of flags, because g++ does not check that all flags agree."""
TEXT = '#include "prelude.h"\n#include "fattn-common.cuh"\n'
FEW = 4
"""The fewest kernels for which a precompiled header pays off: it takes 2.4 s, and saves 0.65 s of 1.7 to 3 s each."""
MOST = 16
"""The number of precompiled headers that the cache keeps; each takes 80 MB, and the oldest are removed."""


@functools.lru_cache(maxsize=64)
def digest_line(folder: Path, state: str) -> str:
    """The first line of a kernel's file: a digest of the build folder's headers, computed once per overlay `state`."""
    cuda, ggml, sim = folder / "overlay" / CUDA, folder / "overlay/ggml", folder / "native/sim"
    places = (sim, sim / "include", folder / "native/cublas", cuda, ggml / "include", ggml / "src")
    texts = included([cuda / HEADERS], places, folder)
    return f"// headers: {hexdigest(chr(0).join(f'{path.name} {texts[path]}' for path in sorted(texts)))}\n"


@contextlib.contextmanager
def precompiled(folder: Path, plan: Plan, env: Mapping[str, str], compilers: Sequence[str]) -> Iterator[None]:
    """Link precompiled headers for the plan's kernels into a build folder, for the duration of the block.

    The headers are from earlier builds, or are created now if at least FEW kernels are missing. A header that does not
    compile is left out: compiling the kernels then shows its errors. If the cache is read-only, or removes a header in
    use, g++ reads the headers themselves.
    """
    missing: dict[str, list[BuildStep]] = {}
    for step in plan.steps:
        for name in {HEADERS, QUICK_HEADERS}.intersection(step.command):
            if step.command.count("-include") == 1 and not (folder / step.output).is_file():
                missing.setdefault(name, []).append(step)
    links = []
    try:
        for name, steps in missing.items():
            link = folder / "overlay" / CUDA / f"{name}.gch"
            command = steps[0].command  # for a kernel; changed below to precompile the header
            words = [word for word in command[: command.index("-MD")] if word != "ccache"]
            words[(at := words.index(name)) - 1 : at + 1] = []
            words[-1:] = ["c++-header", f"overlay/{CUDA}/{name}", "-o"]
            line = (folder / steps[0].inputs[0]).read_text().partition("\n")[0]
            key = hexdigest("\0".join((*words, line, *compilers)))
            if len(steps) >= FEW or PRECOMPILED.place(key).is_dir():
                with contextlib.suppress(BuildError):
                    made = get_or_make(PRECOMPILED, key, functools.partial(make, folder, words, env))
                    link.unlink(missing_ok=True)
                    link.symlink_to(made / link.name)
                    links.append(link)
        yield
    finally:
        for link in links:
            link.unlink(missing_ok=True)


def make(folder: Path, command: Sequence[str], env: Mapping[str, str], made: Path) -> None:
    """Precompile a build's header into the cache, and remove the oldest ones beyond MOST."""
    run([*command, made / f"{Path(command[-2]).name}.gch", f"-fdebug-prefix-map={folder}=."], cwd=folder, env=env)
    others = sorted(PRECOMPILED.root.glob("*/"), key=lambda path: path.stat().st_mtime)
    for path in others[: -MOST + 1]:
        remove_tree(path)
