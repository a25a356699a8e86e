"""Reading whole tensors of an op through the debugger, after its kernels have run.

Standard library only, as all that gdb's own Python may load.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fattn_probe.debug.protocol import Debugger, DebuggerError
from fattn_probe.inspect.procedures.dispatch import LAUNCHER
from fattn_probe.inspect.procedures.op import ROLES, to_launch

Document = dict[str, Any]


def read_tensors(debugger: Debugger, plan: Document) -> Document:
    """Run the op to its end and write each tensor's bytes, from its first to its last, to a file of `folder`.

    The program itself fetches them (`ggml_backend_tensor_get`), since a device's memory is the device's. `plan`:
    what `to_launch` takes, `roles`, `folder`. Returns the size in bytes by role, or `ended`.
    """
    stop = to_launch(debugger, plan)
    if not stop.function.startswith(LAUNCHER):
        return {"ended": [stop.reason, stop.detail, stop.function]}
    stop = debugger.resume("finish")  # the kernels before and after it too
    if stop.reason != "step":
        return {"ended": [stop.reason, stop.detail, stop.function]}
    sizes = dict(_dump_all(debugger, plan["roles"], Path(plan["folder"])))
    debugger.execute("kill")
    return {"sizes": sizes}


def _dump_all(debugger: Debugger, roles: list[str], folder: Path) -> Iterator[tuple[str, int]]:
    for role in roles:
        at = ROLES[role]
        size = _integer(debugger, f"(long)ggml_nbytes({at})")
        buffer = _integer(debugger, f"(long)((void *(*)(unsigned long))malloc)({size})")
        debugger.execute(f"call (void)ggml_backend_tensor_get({at}, (void *){buffer}, 0, {size})")
        debugger.execute(f"dump binary memory {folder / role} {buffer} {buffer + size}")
        debugger.execute(f"call ((void (*)(void *))free)((void *){buffer})")
        yield role, size


def _integer(debugger: Debugger, expression: str) -> int:
    (text,) = debugger.evaluate([expression])
    if text is None:
        raise DebuggerError(f"cannot evaluate {expression}")
    return int(text)
