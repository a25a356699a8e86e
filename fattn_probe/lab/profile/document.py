"""Profiles as a JSON document, and launches as points on the roofline of their GPU."""

from collections.abc import Mapping, Sequence
from typing import Any

from fattn_probe.base.documents import plain
from fattn_probe.cases.device import Device
from fattn_probe.lab.profile.command import Profiled
from fattn_probe.lab.profile.counts import Counts, Profile
from fattn_probe.lab.profile.roofline import Point, Roof, occupancy, roof_of
from fattn_probe.llama.launch.kernel import columns_of_tile

Gpus = Mapping[str, Device | None]


def roof_for(counts: Counts, device: Device | None) -> Roof | None:
    """The roof for a launch: that of the tensor cores if it used them, otherwise that of float32.

    ncu also counts half-precision arithmetic as tensor instructions, but then without ldmatrix.
    """
    values = counts.values
    tensor = bool(values.get("tensor_flops") or (values.get("tensor") and values.get("ldmatrix")))
    return roof_of(device, tensor=tensor) if device is not None else None


def point_of(profile: Profile, counts: Counts) -> Point | None:
    """The launch's point on the roofline, with the op's operations for an attention kernel; None if it is unknown."""
    flops = profile.flops if columns_of_tile(counts.launch) else counts.values.get("tensor_flops")
    moved = counts.bytes_moved
    if not flops or not moved:
        return None
    nanoseconds = counts.values.get("nanoseconds")
    label = f"{counts.launch.kernel} on {profile.on}"
    return Point(label, flops, moved, nanoseconds / 1e9 if nanoseconds else None)


def document(done: Sequence[Profiled], gpus: Gpus) -> dict[str, Any]:
    """Key `profiles`: `name`, `on`, `problem`, `flops`, `formula`, `division_origin`, `launches` with their counts."""
    return {
        "profiles": [
            {
                "name": name,
                "on": profile.on,
                "problem": profile.problem or None,
                "flops": profile.flops,
                "formula": plain(profile.formula),
                "division_origin": None if profile.division is None else str(profile.division),
                "launches": [launch_json(profile, counts, gpus[profile.on]) for counts in profile.counts],
            }
            for name, profiles in done
            for profile in profiles
        ]
    }


def launch_json(profile: Profile, counts: Counts, device: Device | None) -> dict[str, Any]:
    """One launch: its kernel, counts by key, bytes by tensor, occupancy, and position on the roofline."""
    fits = occupancy(counts.launch, device) if device else None
    roof, point = roof_for(counts, device), point_of(profile, counts)
    value: dict[str, Any] = counts.launch.document() | {"counts": dict(counts.values)}
    value["sectors_of_a_load"], value["sectors_of_a_store"] = counts.sectors_of_a_load, counts.sectors_of_a_store
    value["traffic"] = plain(counts.traffic)
    value["occupancy"] = fits and {
        "blocks": fits.blocks,
        "share": fits.share,
        "limits": fits.limits,
        "limited_by": list(fits.limited_by),
        "origin": str(counts.launch.origin),
    }
    value["roofline"] = (
        point
        and roof
        and {
            "flops": point.flops,
            "bytes": point.bytes,
            "intensity": point.intensity,
            "ridge": roof.ridge,
            "bound": roof.bound(point.intensity),
            "attainable": roof.attainable(point.intensity),
            "achieved": point.achieved,
            "least_seconds": point.least_seconds(roof),
        }
    )
    return value
