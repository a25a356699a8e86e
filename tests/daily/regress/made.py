"""Runs of a history that never ran."""

from fattn_probe.daily.regress.records import Identity

SIM = Identity("here", "sim:h200", "9.0", "", "sim", "release", "pypi:x==1", "11063", "", "0.1.0")
GPU = Identity("here", "NVIDIA H200", "90", "580", "cuda", "release", "pypi:x==1", "11063", "", "0.1.0")


def night(history, *results, identity=SIM, ended=True, accepted="", **more):
    """A run of the suite `nightly` with these results."""
    run = history.begin(identity, "nightly", **more)
    for result in results:
        history.add(run, result)
    if ended:
        history.end(run)
    if accepted:
        history.accept(run, "me", accepted)
    return run
