"""Random cases with ordinary data: those of `fattn-probe fuzz`, without the regions in which errors are unusual."""

from collections.abc import Iterator

from fattn_probe.cases.device import load_devices, parse_targets
from fattn_probe.cases.scenario import Case
from fattn_probe.lab.fuzz.run import Lane, lanes
from fattn_probe.lab.fuzz.scenarios import SOFTCAP, Settings
from fattn_probe.machine.run.session import Session

DEVICES = ("sim:h200", "sim:rtx4070", "sim:rtx3090ti", "sim:rtx2060", "sim:v100", "sim:gtx1060")
ORDINARY = frozenset({"uniform", "normal", "fa3_outliers", "large_logits"})
WIDEST = 8.0
NEW_KERNELS = 0.3
AT_ONCE = 30


def random_cases(
    session: Session, seed: int, count: int, devices: tuple[str, ...] = DEVICES
) -> Iterator[tuple[Case, str]]:
    """(case, target) pairs, as many for each architecture, the same for the same arguments; their kernels are built."""
    found = lanes(session, parse_targets(",".join(devices), load_devices()), seed, NEW_KERNELS)
    for number, lane in enumerate(found):
        yield from of_lane(lane, (number + 1) * count // len(found) - number * count // len(found))


def of_lane(lane: Lane, count: int) -> Iterator[tuple[Case, str]]:
    """So many cases of one lane."""
    while count:
        for drawn in lane.batch(AT_ONCE)[0]:
            if count and drawn.kernels and ordinary(drawn.settings):
                count -= 1
                yield drawn.case, str(drawn.target)


def ordinary(settings: Settings) -> bool:
    """Whether numbers are like those of a model, and no known defect of llama.cpp is to be expected."""
    data = settings.get("data", {}).values()
    layout, mask = settings.get("layout", {}), settings.get("mask", {"kind": "none"})["kind"]
    return (
        all(one["kind"] in ORDINARY and one.get("scale", 1) <= WIDEST for one in data)
        and not any(view.get("pad", 0) % 8 for view in layout.values())
        and layout.get("mask", {}).get("per_sequence", True)
        and ("logit_softcap" not in settings or settings["hsk"] in SOFTCAP)
        and settings.get("n_seq", 1) * settings["n_q"] < 1024
        and mask not in ("masked_rows", "blocks")
    )
