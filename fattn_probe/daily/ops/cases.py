"""Upstream's test cases as cases of fattn-probe, with our inputs."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fattn_probe.base.errors import InputError
from fattn_probe.cases.scenario import Case
from fattn_probe.cases.scenario.cases import resolve
from fattn_probe.cases.scenario.from_ops import from_ops

LIST = Path("tests/test-backend-ops.cpp")
V_IS_K = re.compile(r"\bv\s*=\s*ggml_view_4d\(ctx, k,")


def cases_of(lines: Iterable[str], root: Path) -> Iterator[Case]:
    """The cases of `FLASH_ATTN_EXT(...)` lines of the tree in `root`, without those that no scenario can express."""
    separate_V = separate_V_of(root)
    for line in lines:
        with contextlib.suppress(InputError):
            yield resolve(from_ops(line, separate_V=separate_V), line, "upstream")


def separate_V_of(root: Path) -> bool:
    """Whether V is separate from K in every case of a source's list; the older form of a case does not show this."""
    path = root / LIST
    return path.is_file() and not V_IS_K.search(path.read_text(errors="replace"))
