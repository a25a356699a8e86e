"""Read the division of work of an inspected launch from the output of `fattn-probe inspect --json`."""

import json
from pathlib import Path

from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import MIB, read_text
from fattn_probe.cases.op import Sizes
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.lab.study.stream_k import StudyLaunch, launch_of
from fattn_probe.llama.launch.geometry import grid_of

MOST_JSON = 256 * MIB
"""Limit for the output of `inspect --json`, in bytes."""
FACTS = Document("the facts of an inspection", Facts)


def read_launch(path: Path, case: str, shape: Sizes) -> StudyLaunch:
    """The launch of a case in a file of `inspect --json`; InputError if it is missing or belongs to a different op."""
    facts = _facts(path, case)
    launch = launch_of(facts)
    if facts.choice and facts.choice.template.get("use_sparse"):
        raise InputError(f"{path}: the kernel of {case} gathers its KV rows (n_kv_max), which study does not support")
    expected = grid_of(shape, launch.ncols1, launch.ncols2, launch.nbatch_fa)
    if launch.grid != expected:
        raise InputError(f"{path}: {launch.grid} does not fit {case}, which has {expected}; inspect this case again")
    return launch


def _facts(path: Path, case: str) -> Facts:
    text = read_text(path, "the inspection", most=MOST_JSON)
    try:
        found = {one["case"]: one["facts"] for one in json.loads(text)["inspections"] if one["facts"]}
        if case in found:
            return FACTS.of({**found[case], "kernels": ()})  # whose origins are words there
    except (InputError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is not an output of `fattn-probe inspect --json`: {error!r}") from error
    raise InputError(f"{path} has no facts of case {case}; it has {', '.join(found) or 'none'}")
