"""A launch as a point on the roofline of its GPU."""

from fattn_probe.device import Device
from fattn_probe.launch.kernel import columns_of_tile
from fattn_probe.profile.counts import Counts, Profile
from fattn_probe.profile.roofline import Point, Roof, roof_of


def roof_for(counts: Counts, device: Device | None) -> Roof | None:
    """The roof above a launch: that of tensor cores if it used them, else of float32."""
    return roof_of(device, tensor=uses_tensor_cores(counts)) if device is not None else None


def uses_tensor_cores(counts: Counts) -> bool:
    """Whether a kernel multiplied matrices: ncu's count has half-precision arithmetic too, but no ldmatrix then."""
    values = counts.values
    return bool(values.get("tensor_flops") or (values.get("tensor") and values.get("ldmatrix")))


def point_of(profile: Profile, counts: Counts) -> Point | None:
    """The launch's point: an attention kernel's operations are the op's; None if operations or bytes are unknown."""
    flops = profile.flops if columns_of_tile(counts.launch) else counts.values.get("tensor_flops")
    moved = counts.bytes_moved
    if not flops or not moved:
        return None
    nanoseconds = counts.values.get("nanoseconds")
    label = f"{counts.launch.kernel} on {profile.on}"
    return Point(label, flops, moved, nanoseconds / 1e9 if nanoseconds else None)
