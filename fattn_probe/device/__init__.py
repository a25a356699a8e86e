"""Devices: the catalogue of GPUs for the simulator, and the targets a case can run on."""

from fattn_probe.device.catalogue import Device, find_device, load_devices
from fattn_probe.device.registers import measured_registers, merge
from fattn_probe.device.target import Target, parse_target, parse_targets

__all__ = [
    "Device",
    "Target",
    "find_device",
    "load_devices",
    "measured_registers",
    "merge",
    "parse_target",
    "parse_targets",
]
