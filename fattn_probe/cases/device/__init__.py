"""Devices: the catalogue of GPUs for the simulator, and the targets on which a case can run."""

from fattn_probe.cases.device.catalogue import Device, arch_name, cc_order, find_device, is_amd, load_devices, units_of
from fattn_probe.cases.device.origin import Origin, Resources, figures_of
from fattn_probe.cases.device.target import Target, parse_target, parse_targets

__all__ = [
    "Device",
    "Origin",
    "Resources",
    "Target",
    "arch_name",
    "cc_order",
    "figures_of",
    "find_device",
    "is_amd",
    "load_devices",
    "parse_target",
    "parse_targets",
    "units_of",
]
