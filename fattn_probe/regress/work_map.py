"""How a launch that the history keeps divided the work among blocks: its record and the kernels' arithmetic say it."""

import numpy as np

from fattn_probe.inspect.facts import Choice, Facts
from fattn_probe.launch.architecture import arch_number
from fattn_probe.launch.geometry import geometry_of
from fattn_probe.regress.records import Identity, Result, StoredCase

MOST_BLOCKS = 20000


def work_facts(case: StoredCase, result: Result, identity: Identity) -> Facts | None:
    """The facts that the map is drawn from; None where the launches are of no kernel whose arithmetic is known.

    What the mask hides is not known here: every KV step counts as done.
    """
    geometry = geometry_of(case.op, result.kernels, arch_number(identity.cc)) if result.launches else None
    if geometry is None or int(np.prod(geometry.kernel.blocks)) > MOST_BLOCKS:
        return None
    family = geometry.kernel.family
    choice = Choice(family.name, geometry.kernel.spelling, {}, {family.step_name: geometry.rows})
    about = {"case": case.name, "device": identity.device}
    return Facts(about, choice=choice, grid=geometry.grid, blocks=geometry.blocks())
