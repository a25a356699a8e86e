"""Devices: the catalogue of GPUs for the simulator, and the targets on which a case can run."""

from fattn_probe.cases.device.catalogue import Device, amd_devices, every_device, find_device, load_devices
from fattn_probe.cases.device.origin import Origin
from fattn_probe.cases.device.resources import Resources, figures_of
from fattn_probe.cases.device.target import Target, parse_target, parse_targets

__all__ = [
    "Device",
    "Origin",
    "Resources",
    "Target",
    "amd_devices",
    "every_device",
    "figures_of",
    "find_device",
    "load_devices",
    "parse_target",
    "parse_targets",
]
