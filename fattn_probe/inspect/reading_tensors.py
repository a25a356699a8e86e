"""Reading whole tensors of an op through the debugger, after its kernels have run.

Standard library only, as all that gdb's own Python may load.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fattn_probe.debug.protocol import Debugger, DebuggerError
from fattn_probe.inspect.reading import ROLES, insert_near, point_of

Document = dict[str, Any]


def read_tensors(debugger: Debugger, plan: Document) -> Document:
    """Run the op to its end and write each tensor's bytes, from its first to its last, to a file of `folder`.

    The program itself fetches them (`ggml_backend_tensor_get`), since a device's memory is the device's. `plan`:
    `anchors`, `roles`, `folder`. Returns the size in bytes by role, or `ended`.
    """
    points = insert_near(debugger, plan["anchors"], ("launched",))
    stop = debugger.resume("run")
    debugger.delete(*points)
    if point_of(points, stop) != "launched":
        return {"ended": [stop.reason, stop.detail, stop.function]}
    debugger.resume("finish")  # the fixup and combine kernels too
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
