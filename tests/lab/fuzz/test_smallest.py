"""The processes that shrink failures."""

from fattn_probe.cases.device import load_devices, parse_target
from fattn_probe.daily.regress.pool import Job
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.results import result_without_times
from fattn_probe.lab.fuzz.findings import FindingKind
from fattn_probe.lab.fuzz.smallest import Smallest, SmallestFailure, shrunk
from fattn_probe.machine.run.session import RunOptions

SETTINGS = {"hsk": 64, "n_head": 2, "n_kv": 64, "n_q": 3}


def test_without_time_each_failure_is_its_own_smallest():
    job = Job(result_without_times, RunOptions(None), {}, parse_target("sim:h200", load_devices()))
    kind = FindingKind("fail", "", "mma", "wrong")
    results = [Result(f"fuzz-1-{number}", "d", "fail", "wrong") for number in range(3)]
    found = list(shrunk([SmallestFailure(kind, SETTINGS, result, job) for result in results], 2, 0))
    expected = [Smallest(kind, "sim:h200", result.name, SETTINGS, result) for result in results]
    assert sorted(found, key=lambda one: one.name) == expected
