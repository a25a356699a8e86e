"""Devices: the catalogue of GPUs for the simulator, and the targets a case can run on."""

from fattn_probe.device.catalogue import Device, amd_devices, every_device, find_device, load_devices
from fattn_probe.device.resources import Resources, measured_resources
from fattn_probe.device.target import Target, parse_target, parse_targets

__all__ = [
    "Device",
    "Resources",
    "Target",
    "amd_devices",
    "every_device",
    "find_device",
    "load_devices",
    "measured_resources",
    "parse_target",
    "parse_targets",
]
