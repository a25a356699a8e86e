"""Read whole tensors of an op through the debugger, after its kernels have run.

Standard library only, because gdb's own Python loads this module.
"""

from pathlib import Path
from typing import Any

from fattn_probe.daily.inspect.procedures.dispatch import LAUNCHER, trace_dispatch
from fattn_probe.daily.inspect.procedures.op import ROLES
from fattn_probe.machine.debug.protocol import Debugger, DebuggerError

Document = dict[str, Any]


def read_tensors(debugger: Debugger, plan: Document) -> Document:
    """Run the op to its end and write each tensor's bytes, first to last, to a file in `folder`.

    `plan`: `dispatch` (the plan of `trace_dispatch`), `sizes` (bytes by role), `folder`, `simulated`. The memory of a
    simulated GPU belongs to the program; from a real GPU, the debugger copies memory with a call of
    `ggml_backend_tensor_get`. Returns `sizes` or `ended`.
    """
    _, stop = trace_dispatch(debugger, plan["dispatch"])
    if not stop.function.startswith(LAUNCHER):
        return {"ended": [stop.reason, stop.detail, stop.function]}
    stop = debugger.resume("finish")  # also runs the kernels before and after the attention kernel
    if stop.reason != "step":
        return {"ended": [stop.reason, stop.detail, stop.function]}
    read = _memory if plan["simulated"] else _copy
    for role, size in plan["sizes"].items():
        (Path(plan["folder"]) / role).write_bytes(read(debugger, ROLES[role], size))
    debugger.execute("kill")
    return {"sizes": plan["sizes"]}


def _memory(debugger: Debugger, tensor: str, size: int) -> bytes:
    return debugger.memory(_integer(debugger, f"(long)({tensor})->data"), size)


def _copy(debugger: Debugger, tensor: str, size: int) -> bytes:
    buffer = _integer(debugger, f"(long)((void *(*)(unsigned long))malloc)({size})")
    debugger.execute(f"call (void)ggml_backend_tensor_get({tensor}, (void *){buffer}, 0, {size})")
    found = debugger.memory(buffer, size)
    debugger.execute(f"call ((void (*)(void *))free)((void *){buffer})")
    return found


def _integer(debugger: Debugger, expression: str) -> int:
    (text,) = debugger.evaluate([expression])
    if text is None:
        raise DebuggerError(f"{expression}: {debugger.refusal(expression)}")
    return int(text)
