"""`device list` and `device show`: the catalogue as text and as JSON."""

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.tables import Table
from fattn_probe.cases.device.catalogue import Device, arch_name, cc_order

GIB, KIB = 2**30, 2**10
COLUMNS = ("id", "name", "cc", "SMs,\nCUs", "shared KiB", "threads", "blocks", "GiB")


def device_list(devices: Mapping[str, Device]) -> list[dict[str, object]]:
    """The data of `device list --json`: one mapping per device, NVIDIA's first, oldest architecture first."""
    ordered = sorted(devices.values(), key=lambda device: (cc_order(device.cc), device.multiProcessorCount))
    return [{"id": device.id, "name": device.name, "cc": device.cc, **device.properties()} for device in ordered]


def device_show(device: Device) -> dict[str, object]:
    """The data of `device show --json`: the figures, their sources, which ones come from a similar GPU, the spec."""
    return {
        "id": device.id,
        "name": device.name,
        "arch": arch_name(device.arch),
        "__CUDA_ARCH__": device.cuda_arch,
        "properties": device.properties(),
        "sources": dict(device.sources),
        "assumed": list(device.assumed),
        "spec": device.spec(),
    }


def render_list(devices: Mapping[str, Device]) -> RenderableType:
    """The catalogue as a table; shared memory (LDS) per SM or CU and per block, threads and blocks per SM or CU."""
    rows = tuple(tuple(_row(devices[str(item["id"])])) for item in device_list(devices))
    table = Table(COLUMNS, rows, frozenset(COLUMNS[2:]), heading=COLUMNS[:2])
    pairs = [Text("CUs: AMD's compute units; for RDNA GPUs (gfx10 and later), pairs of them")] * any(
        device.gfx for device in devices.values()
    )
    return Group(Text("--on sim:ID simulates one of these"), table, *pairs)


def _row(device: Device) -> Iterable[str]:
    yield from (device.id, device.name, device.cc, str(device.multiProcessorCount))
    yield f"{device.sharedMemPerMultiprocessor // KIB}/{device.sharedMemPerBlockOptin // KIB}"
    yield from (str(device.maxThreadsPerMultiProcessor), str(device.maxBlocksPerMultiProcessor))
    yield f"{device.totalGlobalMem / GIB:.1f}"


def render_show(device: Device) -> Group:
    """One device: each figure with cudaDeviceProp's name, and the number of its document (listed below)."""
    documents = list(dict.fromkeys(device.sources.values()))
    macro = f", __CUDA_ARCH__ {device.cuda_arch}" if device.cuda_arch else ""
    title = f"{device.id}: {device.name}, {arch_name(device.arch)}{macro}"
    notes = [f"[{number}] {text}" for number, text in enumerate(documents, 1)]
    notes += ["(assumed): nominal memory, or the figure of the GPU that this one is `like`"] if device.assumed else []
    rows = (
        (
            name,
            f"{value} (assumed)" if name in device.assumed else str(value),
            f"[{documents.index(source) + 1}]" if (source := device.sources.get(name)) else "",
        )
        for name, value in device.properties().items()
    )
    return Group(
        Text(title), Table(("figure", "value", "source"), tuple(rows), frozenset({"value"})), Text("\n".join(notes))
    )
