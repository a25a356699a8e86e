"""Profiles as a JSON document."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fattn_probe.device import Device
from fattn_probe.profile.command import Profiled
from fattn_probe.profile.counts import Counts, Profile
from fattn_probe.profile.occupancy import occupancy
from fattn_probe.profile.points import point_of, roof_for

Gpus = Mapping[str, Device | None]


def document(done: Sequence[Profiled], gpus: Gpus) -> dict[str, Any]:
    """Key `profiles`: `name`, `on`, `problem`, `flops`, `formula`, `launches` with their counts."""
    return {"profiles": [profile_json(one.name, profile, gpus) for one in done for profile in one.profiles]}


def profile_json(name: str, profile: Profile, gpus: Gpus) -> dict[str, Any]:
    """One case or program on one target."""
    device = gpus[profile.on]
    return {
        "name": name,
        "on": profile.on,
        "problem": profile.problem or None,
        "flops": profile.flops,
        "formula": [asdict(traffic) for traffic in profile.formula],
        "launches": [launch_json(profile, counts, device) for counts in profile.counts],
    }


def launch_json(profile: Profile, counts: Counts, device: Device | None) -> dict[str, Any]:
    """One launch: what it was, its counts by their keys, bytes by tensor, occupancy, and its place on the roofline."""
    fits = occupancy(counts.launch, device) if device else None
    roof, point = roof_for(counts, device), point_of(profile, counts)
    value: dict[str, Any] = counts.launch.document() | {"counts": dict(counts.values)}
    value["sectors_of_a_load"], value["sectors_of_a_store"] = counts.sectors_of_a_load, counts.sectors_of_a_store
    value["traffic"] = [asdict(traffic) for traffic in counts.traffic]
    value["occupancy"] = fits and {
        "blocks": fits.blocks,
        "share": fits.share,
        "limits": fits.limits,
        "limited_by": list(fits.limited_by),
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
