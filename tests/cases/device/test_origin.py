"""Where registers are from is said wherever they are shown; how many blocks fit on an SM follows from their table."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Resources, load_devices
from fattn_probe.cases.device import origin as module
from fattn_probe.cases.device.origin import MEASURED, UNKNOWN, Compiled, Method, Origin, figures_of, merge
from fattn_probe.cases.op import Op, Params, Sizes
from fattn_probe.cases.scenario import expand, loads
from fattn_probe.cases.scenario.cases import cases_of
from fattn_probe.llama.launch.architecture import arch_number
from fattn_probe.llama.launch.constants import default_constants
from fattn_probe.llama.launch.geometry import division_origin, geometry_of
from fattn_probe.llama.launch.record import LaunchRecord, parse_launches
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from fattn_probe.machine.run.command import plan_cases, render_plan, run_json
from fattn_probe.machine.run.prepare import dry_runs, prepare
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation, resource_lines
from fattn_probe.verdict.judge.cases import judge_case
from fattn_probe.verdict.judge.checks import Checks
from fattn_probe.verdict.present.tables import render, rows_as_json
from tests.made import H200, SCENARIOS, shown, target

GQA = "flash_attn_ext_f16<64,64,8,8,false,false,false>"
ASSUMED = Origin(Method.ASSUMED)
OTHERS = [Origin(Method.MEASURED, 7551), Origin(Method.ESTIMATED), Origin(Method.ESTIMATED, 7551)]
OTHERS += [ASSUMED, UNKNOWN]


@dataclass(frozen=True)
class OfTable(Simulation):
    """A simulation that has its figures from a file of the test."""

    file: Path = Path("/dev/null")

    def env(self, device, build_number, **how):
        return super().env(device, build_number, **how) | {"FATTN_PROBE_RESOURCES": str(self.file)}


@pytest.mark.parametrize("origin", [MEASURED, *OTHERS])
def test_an_origin_can_be_spelled_and_read(origin):
    assert module.parse_origin(str(origin)) == origin


def test_only_figures_of_the_kernel_that_runs_are_shown_without_a_mark():
    assert (MEASURED.known, MEASURED.marked(168), module.legend([MEASURED])) == (True, "168", [])
    marks = ["b7551", "estimated", "estimated b7551", "assumed", "unknown"]
    assert [origin.marked(255) for origin in OTHERS] == [f"255 ({mark})" for mark in marks]
    assert [line.partition(":")[0] for line in module.legend([MEASURED, *OTHERS, *OTHERS])] == [
        f"({mark})" for mark in marks
    ]
    assert not any(origin.known for origin in OTHERS)
    assert all("b7551, not from the source that runs here" in OTHERS[place].explained for place in (0, 2))


def op(n_kv, n_q=1, n_head=16):
    return Op.contiguous(Sizes(1, n_head, 2, n_q, n_kv, 64, 64), Params(1.0), ("f16", "f16"))


def mma(*grid):
    values = ("64", "64", "8", "8", "false", "false", "false")
    named = tuple(zip(("DKQ", "DV", "ncols1", "ncols2"), values, strict=False))
    launch = LaunchRecord(0, "flash_attn_ext_f16", named, grid, (32, 4, 1), 0, origin=ASSUMED)
    return [LaunchRecord(0, "flash_attn_mask_to_KV_max", (), (1, 1, 1), (1, 1, 1), 0), launch]


def vec(*grid):
    named = (("D", "64"), ("ncols", "1"), ("type_K", "GGML_TYPE_F16"), ("type_V", "GGML_TYPE_F16"))
    return [LaunchRecord(0, "flash_attn_ext_vec", named, grid, (32, 4, 1), 0, origin=ASSUMED)]


@pytest.mark.parametrize(
    ("launches", "n_kv", "device", "rests"),
    [
        (mma(264, 1, 1), 65536, "h200", True),  # as many blocks as fit
        (mma(8, 1, 1), 256, "h200", False),  # a block for each of 8 KV steps, which fit in any case
        (mma(8, 1, 1), 256, "a100", True),  # before Ada, whole tiles are an alternative
        (mma(8, 1, 1), 256, "gb10", True),
        (mma(8, 1, 1), 256, "rx7900xtx", False),  # heads of 64 on RDNA3 and 4
        (mma(8, 1, 1), 256, "mi300x", True),
        (mma(2, 1, 1), 64, "a100", False),  # one KV step a tile
        (mma(92, 1, 1), 256, "rtx4070", True),  # releases of 2025 launch as many blocks as fit, whatever the work
        (vec(1, 3, 16), 4096, "h200", True),
        (vec(1, 1, 16), 4096, "h200", True),  # it is not divided, because of the occupancy
        (vec(1, 1, 16), 128, "h200", False),
        ([], 4096, "h200", False),
    ],
)
def test_a_grid_rests_on_the_occupancy_if_that_divides_the_kv_rows(launches, n_kv, device, rests):
    gpu = load_devices()[device]
    found = division_origin(launches, gpu, geometry_of(op(n_kv), launches, arch_number(gpu.arch), default_constants()))
    assert found == (ASSUMED if rests else None)


def test_kernels_whose_steps_are_not_known_may_rest_on_the_occupancy():
    assert division_origin(mma(2, 1, 1), load_devices()["h200"], None) == ASSUMED


def small(n_kv):
    text = f"version: 1\nabout: x\nhsk: 64\nn_head: 14\nn_head_kv: 2\nn_q: 7\nn_kv: {n_kv}\nmask: {{kind: causal}}\n"
    (case,) = expand(loads(text, "grouped.yaml"))
    return case


CASE, LONG = small(256), small(8704)  # 272 KV steps on two tiles, which is more than 264 blocks
TABLES = {
    "measured": Compiled(11549, "90", GQA, Resources(226)),
    "measured b7551": Compiled(7551, "90", GQA, Resources(226)),
    "assumed": Compiled(11549, "90", "flash_attn_tile<40,40,2,1,false>", Resources(226)),
}


@pytest.fixture
def table(tmp_path, request):
    """A session whose simulator has the attention kernel's figures from the table of the parameter."""
    (tmp_path / "table.csv").write_text("kernel\n")
    (tmp_path / "table.csv").write_text(merge([TABLES[request.param]], tmp_path / "table.csv"))
    (tmp_path / "figures").write_text("".join(resource_lines(figures_of("90", "11549", tmp_path / "table.csv"))))
    return request.param, OfTable(file=tmp_path / "figures", threads=1)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("table", TABLES, indirect=True)
def test_plan_marks_registers_that_are_not_known(table, tree):
    origin, simulation = table
    done = list(plan_cases(Session(RunOptions(tree, simulation=replace(simulation, dry=True))), [(CASE, [H200])]))
    launches = {launch["kernel"]: launch for launch in run_json(done)["runs"][0]["launches"]}
    attention = launches["flash_attn_ext_f16"]
    assert (attention["origin"], attention["regs"]) == (origin, 255 if origin == "assumed" else 226)
    assert launches["flash_attn_stream_k_fixup_uniform"]["origin"] == "assumed"  # no table of this test has it
    mark = origin.removeprefix("measured").strip()
    line = next(line for line in shown(render_plan(done)).splitlines() if GQA in line)
    assert (f"{attention['regs']} ({mark})" if mark else f" {attention['regs']} ") in line
    assert (f"({mark}): " in shown(render_plan(done))) is bool(mark)


@pytest.mark.build
@pytest.mark.network
def test_a_folder_has_figures_of_a_release(tree):
    """The shipped table has the kernel of `gqa` on an H200."""
    dry = Simulation(dry=True, skip_kernels=True)
    found = []
    for source in (tree, resolve(str(tree.root))):
        session, work = Session(RunOptions(source, simulation=dry)), [(CASE, [H200])]
        prepare(session, work)
        (done,) = plan_cases(session, work)
        found.append(next(launch for launch in done.launches if launch.spelling == GQA))
    release, folder = found
    assert (str(release.origin), str(folder.origin)) == ("measured", f"measured b{tree.build_number}")
    assert (release.regs, release.max_blocks_per_sm) == (folder.regs, folder.max_blocks_per_sm)


@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize("table", TABLES, indirect=True)
def test_compare_says_which_grids_rest_on_an_occupancy_that_is_not_known(table, tree):
    origin, simulation = table
    session = Session(RunOptions(tree, simulation=simulation))
    checks = Checks(model="never")
    rows = [judge_case(session, case, H200, checks) for case in (CASE, LONG)]
    assert [row["division_origin"] for row in rows_as_json(rows)["rows"]] == [None, origin]
    said = " ".join(shown(render(rows)).split())
    assert (f"{LONG.name} on sim:h200: a GPU may divide the KV rows" in said) is (origin != "measured")
    assert said.endswith("2 pass")


def up(number, unit):
    return -(-number // unit) * unit


def fits(device, resources, launch):
    """NVIDIA's occupancy calculation, from its documentation; tests/test_agreement_h200.py has a real driver's."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    warps = up(threads, 32) // 32
    by_warps = device.maxThreadsPerMultiProcessor // 32 // warps
    quarter = device.regsPerMultiprocessor // 4  # a warp's registers are in one of an SM's four parts
    by_registers = quarter // up(32 * resources.registers, 256) * 4 // warps
    unit = 128 if device.major >= 8 else 256
    shared = up(resources.shared + launch.shared + device.reservedSharedMemPerBlock, unit)
    by_shared = device.sharedMemPerMultiprocessor // shared if shared else by_warps
    return min(by_warps, by_registers, by_shared, device.maxBlocksPerMultiProcessor)


def recorded_launches(tree):
    """A reader of dry runs: every launch, with all that the simulator says of it."""
    return lambda done: tuple(launch.to_json() for launch in done.result.launches)


def attention_launches(device):
    """By the host code alone: what fits on an SM follows from figures, so no kernel is compiled."""
    session = Session(RunOptions(resolve(DEFAULT_SOURCE)))
    cases = {case.op.digest: case for case in cases_of([SCENARIOS])}
    planned = dry_runs(session, cases, target(f"sim:{device}"), recorded_launches)
    assert planned.keys() == cases.keys() and len(cases) == 36
    for lines in planned.values():
        yield from (launch for launch in parse_launches("\n".join(lines)) if launch.kernel.startswith("flash_attn_"))


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night  # each architecture needs a build of the host code; CI compares launches with a real H200's
@pytest.mark.parametrize("device", [name for name, it in load_devices().items() if not it.gfx])
def test_planned_blocks_per_sm_are_the_occupancy_calculators(device):
    gpu = load_devices()[device]
    figures = figures_of(gpu.arch, resolve(DEFAULT_SOURCE).build_number)
    launches = list(attention_launches(device))
    assert launches
    for launch in launches:
        resources = figures[launch.spelling].resources
        assert (launch.regs, launch.static_shared) == (resources.registers, resources.shared), launch
        assert launch.max_blocks_per_sm == fits(gpu, resources, launch), launch


@pytest.fixture
def csv(tmp_path):
    """A table without kernels."""
    path = tmp_path / "resources.csv"
    path.write_text("kernel\n")
    return path


def test_merge_then_read_and_the_nearest_build_stands_in(csv):
    csv.write_text(merge([Compiled(11549, "90", GQA, Resources(168, 512, 16))], csv))
    newer = [Compiled(11549, "90", GQA, Resources(170, 512, 0)), Compiled(11549, "89", GQA, Resources(128))]
    csv.write_text(merge(newer, csv))
    assert figures_of("90", "11549", csv) == {GQA: module.Figures(Resources(170, 512, 0), MEASURED)}
    assert figures_of("89", "11549", csv) == {GQA: module.Figures(Resources(128), MEASURED)}
    assert figures_of("75", "11549", csv) == {}
    csv.write_text("kernel,100/90,200/90\na,1/0/0,2/0/0\nb,1/8/4,\n")
    assert origins("90", "120", csv) == {"a": (1, "measured b100"), "b": (1, "measured b100")}
    assert origins("90", "190", csv) == {"a": (2, "measured b200"), "b": (1, "measured b100")}
    assert origins("90", "200", csv) == {"a": (2, "measured"), "b": (1, "measured b100")}
    assert figures_of("90", "120", csv)["b"].resources == Resources(1, 8, 4)
    # A shallow clone, a program, a folder or a patch on b200: their kernels may have been changed.
    for number in ("?", "", "200"):
        assert origins("90", number, csv, released=False) == {"a": (2, "measured b200"), "b": (1, "measured b100")}


def origins(arch, build_number, csv, **how):
    """The registers of each kernel, and where they are from."""
    found = figures_of(arch, build_number, csv, **how)
    return {kernel: (figures.resources.registers, str(figures.origin)) for kernel, figures in found.items()}


@pytest.mark.parametrize("arch", ["61", "70"])
def test_figures_of_gpus_that_nvcc_has_dropped_are_estimates(csv, arch):
    csv.write_text(f"kernel,200/{arch}\na,2/0/0\n")
    assert origins(arch, "200", csv) == {"a": (2, "estimated")}
    assert origins(arch, "120", csv) == {"a": (2, "estimated b200")}
    assert figures_of(arch, "120", csv)["a"].origin == Origin(Method.ESTIMATED, 200)


def test_merge_rejects_impossible_register_counts_and_preserves_the_shipped_table(csv):
    with pytest.raises(InputError, match="256 registers"):
        merge([Compiled(11549, "90", GQA, Resources(256))], csv)
    added = Compiled(1, "90", "added", Resources(40))
    csv.write_text(merge([added]))
    assert sorted(map(str, module.read_table(csv))) == sorted(map(str, [added, *module.read_table()]))


@pytest.mark.parametrize(("arch", "count"), [("80", 168), ("86", 166), ("89", 166), ("90", 168)])
def test_the_shipped_counts_are_those_of_ptxas(arch, count):
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    assert figures_of(arch, "11549")[kernel].resources.registers == count


@pytest.mark.parametrize("arch", ["75", "80", "86", "89", "90", "100", "120", "121"])
def test_every_kernel_of_the_default_release_has_its_figures(arch):
    """A kernel without them gets those of its launch bounds: other blocks on an SM, other grids and other bits."""
    full = [item.kernel for item in module.read_table() if (item.build_number, item.arch) == (11549, arch)]
    every = {item.kernel for item in module.read_table() if item.build_number == 11549 and int(item.arch) >= 75}
    assert len(full) == 1011
    assert set(full) == every
    counts = Counter(kernel.partition("<")[0] for kernel in full)
    families = ("flash_attn_ext_f16", "flash_attn_ext_vec", "flash_attn_tile")
    assert [counts[name] for name in families] == [256, 48, 310]


def test_static_shared_memory_depends_on_the_release_and_before_turing_on_the_architecture():
    sizes: dict[tuple[int, str], set[int]] = {}
    for item in (item for item in module.read_table() if int(item.arch) >= 75):
        sizes.setdefault((item.build_number, item.kernel), set()).add(item.resources.shared)
    assert max(map(len, sizes.values())) == 1
    kernel = "flash_attn_tile<72,72,1,4,false>"
    assert [sizes[build, kernel] for build in (7551, 11549)] == [{11552}, {22304}]
    kernel = "flash_attn_tile<128,128,8,1,false>"
    pascal, volta, turing = (figures_of(arch, "11549")[kernel].resources.shared for arch in ("61", "70", "75"))
    assert pascal > volta == turing


def test_amd_s_figures_are_estimated():
    tile = figures_of("gfx942", "11549")["flash_attn_tile<64,64,8,1,false>"]
    assert tile.origin == Origin(Method.ESTIMATED)  # ROCm's clang may use other registers
