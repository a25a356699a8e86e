"""The simulator compared with a real H200: launches and bits of shipped scenarios, upstream's list, random ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from fattn_probe.cases.scenario import expand, load
from fattn_probe.cases.scenario.cases import cases_of, resolve
from fattn_probe.cases.scenario.from_ops import from_ops
from fattn_probe.llama.launch.record import in_words
from fattn_probe.llama.source import ggml_types, kernel_parameters
from fattn_probe.llama.source import resolve as resolve_source
from fattn_probe.llama.source.patches import find as find_patch
from fattn_probe.machine.run.prepare import dry_runs, prepare
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.verdict.measure.metrics import digest_of
from maintain.agreement import agreement, exported, hashes_of, read_hashes, read_recording
from tests.made import H200, ROOT, SCENARIOS, captured

RECORDING = Path(__file__).parent / "data/h200"
FAULTS = [SCENARIOS / f"known-faults/{name}.yaml" for name in ("masked-rows", "q8-race")]
FILES = [*sorted(SCENARIOS.glob("*.yaml")), *FAULTS]  # what the recording has
CASES = [case for path in FILES for case in expand(load(path))]
# Those of `scripts/test`: their kernels are those of other fast tests, and a vec kernel.
FAST = ("gqa", "sinks", "unaligned", "masked-rows", "decode")
# CI adds a softcap, each way to hold K and V that differs, and a tile kernel; a night the rest: each is compiled.
IN_CI = ("softcap", "q8-cache-n_q=1", "sequences-n_seq=4-n_q=8-n_kv=256-mask=causal", "tile-hsk=72-n_q=40")
UPSTREAM = read_hashes(RECORDING.with_name("h200-upstream.csv.gz"))
# Of upstream's list, some for each kernel family and each way to fuse a sum (docs/measurements/agreement.md):
# `hsk`, `nr23`, `kv`, `nb`, `max_bias`, softcap, types of K and V.
DRAWN = (
    *((256, "4,1", 512, 1, bias, 0, "f16") for bias in (0, 8)),
    (72, "4,1", 512, 1, 8, 0, "f16"),
    (128, "4,1", 512, 75, 0, 0, "f16"),
    *((128, ratio, 512, 3, 0, 10, "f16") for ratio in ("1,1", "4,1")),
    (128, "1,1", 512, 1, 0, 10, "f16"),
)
DRAWN_IN_CI = ((64, "1,1", 512, 1, 8, 0, "q8_0"), (72, "4,1", 512, 32, 8, 0, "f16"))

pytestmark = [pytest.mark.build, pytest.mark.network]


@pytest.fixture(scope="module")
def recorded(tree):
    return read_recording(RECORDING, ggml_types(tree.root), kernel_parameters(tree.root))[1]


def upstream_case(hsk, nr23, kv, queries, max_bias, softcap, kind):
    """A case of upstream's list, without sinks."""
    name = (
        f"FLASH_ATTN_EXT(hsk={hsk},hsv={hsk},nh=4,nr23=[{nr23}],kv={kv},nb={queries},mask=1,sinks=0,"
        f"max_bias={max_bias:f},logit_softcap={softcap:f},prec=f32,type_K={kind},type_V={kind},permute=[0,1,2,3],"
        "kv_view=1,v_is_view_of_k=0,n_kv_max=0)"
    )
    return resolve(from_ops(name), name, "upstream")


def share_of_an_sm(launch):
    """What an attention kernel takes of an SM, and how many blocks fit; unknown for other kernels."""
    attention = launch.kernel.startswith("flash_attn_")
    return (launch.regs, launch.static_shared, launch.max_blocks_per_sm) if attention else launch.kernel


def marks(case):
    return [] if case.name in FAST else [pytest.mark.slow if case.name in IN_CI else pytest.mark.night]


@pytest.fixture(scope="module", autouse=True)
def kernels(session, selected_cases):
    """One parallel build of all kernels."""
    prepare(session, [(case, [H200]) for case in selected_cases])


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=marks(case)) for case in CASES])
def test_simulated_h200_is_the_h200(case, session, recorded):
    there = recorded[case.name]
    assert there.digest == case.digest, "the scenario has changed: record it again (scripts/agreement)"
    here = captured(session, case)
    found = agreement(there, here.dst, here.launches)
    assert here.launches == there.launches
    assert list(map(share_of_an_sm, here.launches)) == list(map(share_of_an_sm, there.launches))
    assert found.nmse <= 1e-12
    # 1.0 with g++ 12; another compiler may fuse other multiply-adds
    assert found.share >= 0.97


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(upstream_case(*drawn), id="-".join(map(str, drawn)), marks=mark)
        for some, mark in ((DRAWN_IN_CI, pytest.mark.slow), (DRAWN, pytest.mark.night))
        for drawn in some
    ],
)
def test_cases_of_upstreams_list_have_the_h200_s_bits(case, session):
    here = captured(session, case)
    assert hashes_of(case.digest, in_words(here.launches), digest_of(here.dst)) == UPSTREAM[case.name]


@pytest.mark.night
def test_upstreams_whole_list_has_the_h200_s_bits(tmp_path):
    """All but those that stop at a finding."""
    history = tmp_path / "history.db"
    probe = [sys.executable, "-m", "fattn_probe"]
    whole = ("--sample", "all")  # no case runs only a part of its blocks
    subprocess.run([*probe, "regress", "upstream", "--on", "sim:h200", *whole, "--history", history], check=False)
    export = subprocess.run(
        [*probe, "history", "export", "--history", history], check=True, capture_output=True, text=True
    )
    here = exported(export.stdout.splitlines())
    assert len(here) == 3680  # the others stop at the mask scan
    assert {name for name in here if here[name] != UPSTREAM[name]} == set()


HOPPER = read_hashes(RECORDING.with_name("hopper-random.csv.gz"))
"""Hashes of 300 cases on an H100 (2026-11-25) and of 190 on an H200 (2026-11-28); llama.cpp b11549, nvcc 13.0."""
RELEASES = read_hashes(RECORDING.with_name("h200-releases.csv.gz"))
"""Hashes of `RELEASE CASE` for random-390 to random-489 with earlier releases, on an H200 (2026-11-28)."""
FAULTS_THERE = read_hashes(RECORDING.with_name("h200-faults.csv.gz"))
"""Hashes of the outputs of planted faults that a kernel's own arithmetic determines, on an H200 (2026-11-28)."""
# Head sizes 80 and 96, whose blocks on an SM, and so their bits, follow from ptxas's figures; 64 with q8_0; 72, and the
# one that rescales VKQ by the multiply-add of a step's first row; 320 and 256 of mma, and 256 of vec.
SOME = ("random-078", "random-048", "random-049", "random-212", "random-287", "random-242", "random-370", "random-374")

# Those whose launches were wrong before the table had figures for their releases.
OF_RELEASES = (
    *(f"0.2.12 random-{number}" for number in (406, 421, 432, 477)),
    "2026.4.8672 random-477",
    "0.2.8 random-477",
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    subprocess.run([ROOT / "scripts/random-scenarios", folder, "--count", "590"], check=True)
    return {case.name: case for case in cases_of(sorted(folder.glob("*.yaml")))}


@pytest.mark.slow
def test_every_random_scenario_is_the_recorded_one_and_has_the_launches_of_a_real_gpu(cases, tree):
    assert_launches({name: cases[name] for name in HOPPER}, HOPPER, tree)


@pytest.mark.night  # the host code of each release is compiled
@pytest.mark.parametrize("release", ["2026.9.11063", "2026.4.8672", "0.2.12", "0.2.8"])
def test_earlier_releases_have_the_launches_of_a_real_gpu(release, cases):
    there = {name.split()[1]: one for name, one in RELEASES.items() if name.split()[0] == release}
    assert len(there) >= 45
    assert_launches({name: cases[name] for name in there}, there, resolve_source(f"pypi:xllamacpp=={release}"))


def assert_launches(cases, recorded, tree):
    """Assert that the host code alone, for which no kernel is compiled, makes the recorded launches."""
    assert {name: case.digest for name, case in cases.items()} == {name: item.digest for name, item in recorded.items()}
    of_op = {case.op.digest: case for case in cases.values()}
    planned = dry_runs(Session(RunOptions(tree)), of_op, H200, words_of_launches)
    here = {name: hashes_of("", planned[case.op.digest][0], "").launches for name, case in cases.items()}
    assert here == {name: item.launches for name, item in recorded.items()}


def words_of_launches(tree):
    """A reader of dry runs."""
    return lambda done: (in_words(done.result.launches),)


@pytest.mark.night  # a kernel is compiled for each
@pytest.mark.parametrize("name", [*SOME, *OF_RELEASES])
def test_some_random_scenarios_have_the_bits_of_a_real_gpu(name, cases, session):
    *release, word = name.split()
    if release:
        session = Session(RunOptions(resolve_source(f"pypi:xllamacpp=={release[0]}")))
    case = cases[word]
    prepare(session, [(case, [H200])])
    here = captured(session, case)
    assert hashes_of(case.digest, in_words(here.launches), digest_of(here.dst)) == (HOPPER | RELEASES)[name]


@pytest.mark.night  # each fault is compiled
@pytest.mark.parametrize("fault", FAULTS_THERE)
def test_a_wrong_kernel_has_the_bits_of_a_real_gpu_too(fault, tree):
    own, there = ROOT / f"patches/faults/{fault}.yaml", FAULTS_THERE[fault]
    shown = cases_of([own if own.exists() else SCENARIOS / "gqa.yaml"])
    (case,) = [case for case in shown if case.digest == there.digest]
    session = Session(RunOptions(tree, patches=(find_patch(f"faults/{fault}", tree),)))
    prepare(session, [(case, [H200])])
    assert digest_of(captured(session, case).dst)[: len(there.output)] == there.output
