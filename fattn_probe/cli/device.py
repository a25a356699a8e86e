"""The command line of `device`: the catalogue as text and as JSON."""

from collections.abc import Mapping

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.console import show
from fattn_probe.base.tables import Table
from fattn_probe.cases.device import Device, arch_name, cc_order, find_device, load_devices
from fattn_probe.cli import flags

GIB, KIB = 2**30, 2**10
COLUMNS = ("id", "name", "cc", "SMs,\nCUs", "shared KiB", "threads", "blocks", "GiB")
device_app = typer.Typer(help="The catalogue of simulated GPUs.", no_args_is_help=True)


@device_app.command("list")
def device_list(devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """List the simulated GPUs."""
    catalogue = load_devices(devices)
    show(catalogue_json(catalogue), lambda: catalogue_table(catalogue), as_json)


@device_app.command("show")
def device_show(identifier: str, devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """Show one simulated GPU, with the source of each figure."""
    device = find_device(load_devices(devices), identifier)
    show(device_json(device), lambda: device_table(device), as_json)


def catalogue_json(devices: Mapping[str, Device]) -> list[dict[str, object]]:
    """The data of `device list --json`: one mapping per device, NVIDIA before AMD, oldest architecture first."""
    ordered = sorted(devices.values(), key=lambda device: (cc_order(device.cc), device.multiProcessorCount))
    return [{"id": device.id, "name": device.name, "cc": device.cc, **device.properties()} for device in ordered]


def device_json(device: Device) -> dict[str, object]:
    """The data of `device show --json`: the figures, their sources, the names of assumed figures, and the spec."""
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


def catalogue_table(devices: Mapping[str, Device]) -> RenderableType:
    """The catalogue as a table: shared memory (LDS) per SM or CU and per block, threads and blocks per SM or CU."""
    rows = []
    for item in catalogue_json(devices):
        device = devices[str(item["id"])]
        shared = f"{device.sharedMemPerMultiprocessor // KIB}/{device.sharedMemPerBlockOptin // KIB}"
        counts = device.maxThreadsPerMultiProcessor, device.maxBlocksPerMultiProcessor
        memory = f"{device.totalGlobalMem / GIB:.1f}"
        rows.append(
            (device.id, device.name, device.cc, str(device.multiProcessorCount), shared, *map(str, counts), memory)
        )
    table = Table(COLUMNS, tuple(rows), frozenset(COLUMNS[2:]), heading=COLUMNS[:2])
    pairs = [Text("CUs: AMD's compute units; for RDNA GPUs (gfx10 and later), pairs of them")] * any(
        device.gfx for device in devices.values()
    )
    return Group(Text("--on sim:ID simulates one of these"), table, *pairs)


def device_table(device: Device) -> Group:
    """One device as a table: each figure, named as in cudaDeviceProp, with its document's number in the list below."""
    documents = list(dict.fromkeys(device.sources.values()))
    macro = f", __CUDA_ARCH__ {device.cuda_arch}" if device.cuda_arch else ""
    title = f"{device.id}: {device.name}, {arch_name(device.arch)}{macro}"
    notes = [f"[{number}] {text}" for number, text in enumerate(documents, 1)]
    notes += ["(assumed): nominal memory, or the figure for the GPU that `like` names"] if device.assumed else []
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
