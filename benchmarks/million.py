"""One case of 1,048,576 KV rows x 8,192 queries in sampled mode, in a process of its own; prints one JSON document."""

import argparse
import json
import resource
import time

import numpy as np

from fattn_probe.reference.sampled import Sample, choose_rows, sample
from fattn_probe.scenario import Case, expand, loads

OP = "version: 1\nabout: a million tokens\nhsk: {D}\nn_head: 16\nn_q: {n_q}\nn_kv: {n_kv}\nmask: {{kind: {mask}}}\n"
DATA = "data: {{Q: {{kind: {kind}}}, K: {{kind: {kind}}}, V: {{kind: {kind}}}}}\nn_head_kv: {n_head_kv}\n"


def output_of(case: Case, found: Sample) -> np.ndarray:
    """What a kernel may have left: rounded exact rows where they are known, the middle of the hull elsewhere."""
    dst = np.empty((case.n_seq, case.n_q, case.n_head, case.hsv), np.float32)
    dst[...] = ((found.low + found.high) / 2)[:, None]
    dst[tuple(found.rows.T)] = found.reference
    return dst


def main() -> None:
    """Inputs, reference and verdict, timed together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-kv", type=int, default=1048576)
    parser.add_argument("--n-q", type=int, default=8192)
    parser.add_argument("--n-head-kv", type=int, default=16)
    parser.add_argument("--D", type=int, default=128)
    parser.add_argument("--kind", default="uniform")
    parser.add_argument("--mask", default="causal")
    asked = vars(parser.parse_args())
    begin = time.perf_counter()
    (case,) = expand(loads((OP + DATA).format(**asked)))
    rows = choose_rows(case, seams=range(1024, case.n_q, 1024))
    found = sample(case, rows)
    dst = output_of(case, found)
    judged = time.perf_counter()
    implausible = found.implausible(dst, 1e-3)
    error = found.of(dst) - found.reference
    nmse = float((error**2).sum() / (found.reference**2).sum())
    end, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    assert not len(implausible)
    assert nmse < 1e-14
    print(
        json.dumps(
            asked
            | {
                "rows": len(rows),
                "seconds": end - begin,
                "verdict_seconds": end - judged,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "peak_GiB": usage.ru_maxrss / 2**20,
            }
        )
    )


if __name__ == "__main__":
    main()
