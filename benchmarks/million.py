"""One case of 1,048,576 KV rows x 8,192 queries in sampled mode, as a separate process; prints one JSON document."""

import argparse
import json
import resource
import time

import numpy as np

from fattn_probe.cases.scenario import Case, expand, loads
from fattn_probe.llama.launch.geometry import geometry_of
from fattn_probe.llama.launch.record import LaunchRecord, parse_launch
from fattn_probe.verdict.measure.expected import Expected
from fattn_probe.verdict.measure.sampled import judge_sample, rows_of
from fattn_probe.verdict.measure.verdict import Status
from fattn_probe.verdict.truth.error_model.kernel import kernel_of
from fattn_probe.verdict.truth.error_model.predict import predict_rows
from fattn_probe.verdict.truth.reference.sampled import Sample, generated, sample

OP = "version: 1\nabout: a million tokens\nhsk: {D}\nn_head: 16\nn_q: {n_q}\nn_kv: {n_kv}\nmask: {{kind: {mask}}}\n"
DATA = "data: {{Q: {{kind: {kind}}}, K: {{kind: {kind}}}, V: {{kind: {kind}}}}}\nn_head_kv: {n_head_kv}\n"


def launch_of(case: Case) -> LaunchRecord:
    """An H200's launch: 264 blocks of 64 columns."""
    ncols2 = min(8, case.op.sizes.group)
    kernel = (
        f"flash_attn_ext_f16<{case.op.sizes.hsk}, {case.op.sizes.hsv}, {64 // ncols2}, {ncols2}, false, false, false>"
    )
    return parse_launch(
        json.dumps({"order": 0, "kernel": f"void {kernel}()", "grid": [264, 1, 1], "block": [32, 4, 1], "shared": 0})
    )


def output_of(case: Case, found: Sample) -> np.ndarray:
    """A plausible kernel output: rounded exact values in sampled rows, and the middle of the hull in other rows."""
    dst = np.empty((case.op.sizes.n_seq, case.op.sizes.n_q, case.op.sizes.n_head, case.op.sizes.hsv), np.float32)
    dst[...] = ((found.low + found.high) / 2)[:, None]
    dst[tuple(found.rows.T)] = found.reference
    return dst


def main() -> None:
    """Time inputs, reference, prediction and verdict together."""
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
    launches, operands = [launch_of(case)], generated(case)
    geometry = geometry_of(case.op, launches, 90)
    rows = rows_of(case, geometry)
    found = sample(case, rows, operands)
    dst = output_of(case, found)
    judged = time.perf_counter()
    kernel = kernel_of(case.op, geometry, 90)
    assert kernel is not None
    prediction = predict_rows(case.op, operands, kernel, rows)
    verdict = judge_sample(case, dst, found, Expected(lambda: prediction))
    end, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    assert verdict.status is Status.PASS, verdict.reason
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
