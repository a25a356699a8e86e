"""A case and its inputs to the arrays the reference works on: the only place here that knows scenarios."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fattn_probe.errors import InputError
from fattn_probe.reference.attention import F64, OpParams, attention, fully_masked_rows
from fattn_probe.scenario import Case, view_values

Inputs = dict[str, npt.NDArray[np.uint8]]


def reference_of(case: Case, inputs: Inputs) -> F64:
    """The exact output of a case, (n_seq, n_q, n_head, hsv), from the bytes its kernels read.

    The op's parameters are rounded to float32 first, as the op stores them. Raises InputError where an input holds NaN
    or an infinity (-inf is what masks are made of, and allowed there).
    """
    tensors = {name: view_values(case, inputs, name) for name in case.tensors}
    problems = [problem for name, values in tensors.items() for problem in _problems(name, values)]
    if problems:
        raise InputError(f"case {case.name}: " + "; ".join(problems))
    sinks = tensors.get("sinks")
    return attention(
        tensors["Q"],
        tensors["K"],
        tensors["V"],
        tensors.get("mask"),
        params=OpParams(*(float(np.float32(value)) for value in (case.scale, case.max_bias, case.logit_softcap))),
        sinks=None if sinks is None else sinks.ravel(),
    )


def fully_masked_of(case: Case, inputs: Inputs) -> npt.NDArray[np.bool_] | None:
    """The rows of a case that are masked everywhere, (n_seq, n_q, n_head); None without a mask."""
    if "mask" not in case.tensors:
        return None
    return fully_masked_rows(view_values(case, inputs, "mask"), case.n_seq, case.n_head, case.n_q)


def _problems(name: str, values: npt.NDArray[np.floating[Any]]) -> list[str]:
    """What keeps a tensor's values from having an exact answer."""
    bad = ~np.isfinite(values)
    if name == "mask":
        bad &= ~np.isneginf(values)
    number = int(bad.sum())
    return [f"{name} holds {number} values that are NaN or infinite"] if number else []
