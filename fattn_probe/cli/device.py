"""The command line of `device`."""

import typer

from fattn_probe.base.console import show
from fattn_probe.cases.device import find_device, load_devices
from fattn_probe.cases.device import show as devices_show
from fattn_probe.cli import flags

device_app = typer.Typer(help="The catalogue of simulated GPUs.", no_args_is_help=True)


@device_app.command("list")
def device_list(devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """List the simulated GPUs."""
    catalogue = load_devices(devices)
    show(devices_show.device_list(catalogue), lambda: devices_show.render_list(catalogue), as_json)


@device_app.command("show")
def device_show(identifier: str, devices: flags.Devices = None, as_json: flags.Json = False) -> None:
    """Show one simulated GPU, each figure with its source."""
    device = find_device(load_devices(devices), identifier)
    show(devices_show.device_show(device), lambda: devices_show.render_show(device), as_json)
