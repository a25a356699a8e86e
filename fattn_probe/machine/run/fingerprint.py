"""Fingerprints of a session: before a build, and with the build."""

from dataclasses import replace

from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.cases.device import Target
from fattn_probe.llama.build.key import named
from fattn_probe.llama.build.stamp import package_stamp
from fattn_probe.machine.run.gpu import gpu_name
from fattn_probe.machine.run.provenance import driver, version
from fattn_probe.machine.run.session import RunOptions, Session


def of_source(options: RunOptions) -> Fingerprint:
    """The source, its patches and build options; needs no build and no GPU."""
    return Fingerprint(
        tree=options.tree.digest if options.tree else "",
        patches=named(options.patches),
        flavour=options.flavour,
        sanitize=options.sanitize,
        quants=options.quants,
        version=version("fattn-probe"),
    )


def on_target(found: Fingerprint, target: Target) -> Fingerprint:
    """A fingerprint with the device of a target."""
    device: tuple[tuple[str, int | str], ...] = ()
    if target.device is not None:
        device = (("id", target.device.id), ("name", target.device.name), *target.device.properties().items())
    elif target.engine == "cuda":
        device = (("name", gpu_name(target.gpu)),)
    return replace(found, target=str(target), device=device)


def fingerprint_of(session: Session, target: Target) -> Fingerprint:
    """The fingerprint of a session on a target: its build, made or not, its device, and fattn-probe."""
    built = session.manifest_for(target).fingerprint
    found = replace(built, engine=target.engine, version=version("fattn-probe"), own=package_stamp())
    real = target.engine == "cuda"
    return replace(on_target(found, target), driver=(driver() or "unknown") if real else "")
