"""From a program's path through its dispatch to decisions and sentences, with a script for a debugger and with gdb."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import fattn_probe
from fattn_probe.cases.scenario.inputs import make_inputs
from fattn_probe.daily.inspect.dispatch.decide import Visit, decisions, dispatch_of, plan_of, visits_of
from fattn_probe.daily.inspect.dispatch.explain import explain
from fattn_probe.daily.inspect.facts import Decision, Facts, Term
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.daily.inspect.procedures.op import trace_dispatch
from fattn_probe.llama import source
from fattn_probe.llama.cxx.expressions import read_macros
from fattn_probe.machine.debug.protocol import Debugger, DebuggerError, StopRecord
from fattn_probe.machine.run.session import RunOptions, Session
from fattn_probe.machine.run.simulator import Simulation
from tests.daily.inspect import small_dispatch
from tests.daily.inspect.small_dispatch import FILES, SOURCE, line_of
from tests.made import shipped, target
from tests.stand_in import StandIn

BEST = "get_best_kernel"
GDB_SCRIPT = """
import json, sys
sys.path.insert(0, {root!r})
import gdb
gdb.execute("set confirm off")
from fattn_probe.machine.debug.agent import InProcess
from fattn_probe.daily.inspect.procedures.op import trace_dispatch
visits, stop = trace_dispatch(InProcess(), json.load(open("plan.json")))
json.dump([visits, stop.function], open("visits.json", "w"))
"""


@pytest.fixture(scope="module")
def dispatch():
    texts = {name: FILES[name] for name in ("fattn-tile.cuh", "fattn.cu")}
    return dispatch_of(texts, read_macros([small_dispatch.COMMON]))


class Scripted(StandIn):
    """A debugger with scripted stops; `values` are the same at all of them."""

    def __init__(self, stops, values):
        self.stops, self.values = iter(stops), values
        self.numbers, self.commands = {}, []

    def insert(self, location, condition=""):
        if location.startswith("gone.cu"):
            raise DebuggerError("No source file named gone.cu.")
        self.numbers[len(self.numbers) + 1] = location
        return len(self.numbers)

    def delete(self, *numbers):
        for number in numbers:
            del self.numbers[number]

    def resume(self, command):
        self.commands.append(command)
        return next(self.stops)

    def walk(self, stop, advance):
        return Debugger.walk(self, stop, advance)

    def evaluate(self, expressions, level=0):
        return [self.values.get(expression) for expression in expressions]


def at(function, beginning, text=SOURCE, file="overlay/fattn.cu", **more):
    return StopRecord("step", function=function, file=file, line=line_of(text, beginning), **more)


ENTRY = "ggml_cuda_flash_attn_ext"
LAUNCHED = StopRecord("step", function="launch_fattn<64, 8, 1>", file="fattn-tile.cuh", line=6)


def entered():
    stop = at(ENTRY, "switch (get_best_kernel(ctx, dst))")
    return StopRecord("breakpoint", (1,), stop.function, stop.file, stop.line)


def path(*beginnings):
    return [entered(), *(at(BEST, beginning) for beginning in beginnings)]


def decided(dispatch, stops, values):
    visits, _ = trace_dispatch(Scripted([*stops, LAUNCHED], values), plan_of(dispatch))
    return decisions(dispatch.conditions, visits_of(visits))


VALUES = {
    "cc": "900",
    "cc >= 890": "true",
    "can_use_vec": "true",
    "Q->ne[1]": "7",
    "Q->ne[1] == 1": "false",
    "mask": "(const ggml_tensor *) 0x7ffe10",
    "mask->ne[2]": "1",
    "mask->ne[2] != 1": "false",
}


def test_the_path_shows_which_conditions_held_and_values_which_part_failed(dispatch):
    stops = path(
        "if (mask &&", "if (has_tensor", "if (can_use_vec)", "if (K->type ==", "if (cc >=", "return BEST_KERNEL_T"
    )
    found = decided(dispatch, stops, VALUES)
    held = {decision.condition: decision.held for decision in found}
    assert held["mask && mask->ne[2] != 1"] is False
    assert held["has_tensor_cores(cc) && !CC_IS_AMD(cc)"] is True
    assert held["K->type == GGML_TYPE_F16"] is True
    assert held["cc >= CC_NEW && Q->ne[1] == 1 && !(Q->ne[2] > 64 || K->ne[1] >= 8192)"] is False
    (turing,) = [decision for decision in found if decision.condition.startswith("has_tensor_cores")]
    assert turing.terms == (Term("has_tensor_cores(cc)", "true"), Term("cc", "900"), Term("CC_IS_AMD(cc)", "false")), (
        "what the debugger could not be asked follows from what happened"
    )
    assert found[-1].leads_to == "return BEST_KERNEL_TILE"
    assert (found[-1].condition, found[-1].line) == ("otherwise", line_of(SOURCE, "return BEST_KERNEL_TILE;"))
    (masked,) = [decision for decision in found if decision.condition.startswith("mask &&")]
    assert masked.terms == (Term("mask", "true"), Term("mask->ne[2] != 1", "false"), Term("mask->ne[2]", "1"))


def test_the_statement_of_a_switch_is_named_once(dispatch):
    """Host code that g++ 13 makes for nvcc jumps without a second visit of the line (an H200's host, 2026-11-28)."""
    stops = [*path("if (mask &&", "return BEST_KERNEL_T"), at(ENTRY, "ggml_cuda_flash_attn_ext_tile(ctx, dst)")]
    *before, found = (one for one in decided(dispatch, stops, VALUES) if one.held)
    assert found.condition == "switch (get_best_kernel(ctx, dst)) case BEST_KERNEL_TILE"
    assert before and {one.function for one in before} == {BEST}, "the function that the switch calls decides first"


def test_lines_of_one_condition_in_any_order(dispatch):
    first = line_of(SOURCE, "const bool can_use_vec")
    lines = [
        StopRecord("step", function=BEST, file="fattn.cu", line=line) for line in (first + 1, first, first + 1, first)
    ]
    stops = [entered(), *lines, at(BEST, "if (mask &&")]
    (found, *_) = decided(dispatch, stops, VALUES | {"Q->ne[0] <= 256": "true", "can_use_vec": "false"})
    assert (found.line, found.held, found.leads_to) == (first, False, "can_use_vec = true")
    assert found.terms[0] == Term("Q->ne[0] <= 256", "true")


def test_a_function_under_a_condition_and_back(dispatch):
    stops = [
        *path("if (mask &&", "return BEST_KERNEL_NONE"),
        at(ENTRY, "switch (get_best_kernel"),
        at(ENTRY, "GGML_ABORT"),
    ]
    stops[-1] = StopRecord("step", function=ENTRY, file="fattn.cu", line=line_of(SOURCE, "case BEST_KERNEL_NONE:") + 1)
    found = decided(dispatch, stops, VALUES | {"mask->ne[2] != 1": "true"})
    assert [decision.leads_to for decision in found] == ["return BEST_KERNEL_NONE", 'GGML_ABORT("fatal error")']
    assert found[1].condition == "switch (get_best_kernel(ctx, dst)) case BEST_KERNEL_NONE"


@pytest.mark.parametrize(("misaligned", "held"), [(0, False), (2, True)])
def test_a_loop_is_one_decision(dispatch, misaligned, held):
    function = "ggml_cuda_flash_attn_ext_tile_switch<64>"
    turn = [at(function, "for (int i = 1"), at(function, "if (t->nb[i]")]
    stops = [
        *turn * 3,
        *[*turn, at(function, "use_gqa_opt = false;")] * misaligned,
        *turn,
        at(function, "if (use_gqa_opt && gqa_ratio > 4"),
    ]
    (found,) = [
        decision
        for decision in decided(dispatch, [entered(), *stops], {"t->nb[i]": "130"})
        if decision.leads_to == "use_gqa_opt = false"
    ]
    assert found.held is held
    assert found.terms == ((Term("t->nb[i] % 16 != 0", "true"), Term("t->nb[i]", "130")) if held else ())


def test_unknown_decisions_are_omitted(dispatch):
    one_line = [Visit(BEST, "fattn.cu", line_of(SOURCE, "if (has_tensor"), {}, {})]
    assert decisions(dispatch.conditions, one_line) == ()


def test_the_commands_that_step_through_the_dispatch(dispatch):
    plan = plan_of(dispatch, "run")
    plan["stops"].append("gone.cu:1")
    call = at("ggml_cuda_flash_attn_ext_tile_switch<64>", "ggml_cuda_flash_attn_ext_tile_case<D, 1>(ctx")
    elsewhere = StopRecord("step", function="memcpy", file="string.h", line=3)
    debugger = Scripted([entered(), call, elsewhere, call, LAUNCHED], {})
    _, stop = trace_dispatch(debugger, plan)
    assert stop is LAUNCHED
    assert debugger.commands == ["run", "next", "step", "finish", "step"]
    assert not debugger.numbers, "no breakpoint is left"


@pytest.mark.parametrize("stop", [StopRecord("exited", detail="1"), StopRecord("signal", detail="SIGABRT")])
def test_a_program_that_never_reaches_the_dispatch(dispatch, stop):
    assert trace_dispatch(Scripted([stop], {}), plan_of(dispatch)) == ([], stop)


def decision(condition, held, leads_to, function="f", **terms):
    found = tuple(Term(name, value) for name, value in terms.pop("terms", {}).items())
    return Decision(function, "fattn.cu", 1, condition, held, leads_to, found)


def test_sentences():
    said = explain(
        [
            decision(
                "use_gqa_opt && r > 4", False, "f1<D, 8>", terms={"use_gqa_opt": "true", "r > 4": "false", "r": "3"}
            ),
            decision(
                "use_gqa_opt && r > 2", True, "f1<D, 4>", terms={"use_gqa_opt": "true", "r > 2": "true", "r": "3"}
            ),
            decision("n <= 8/ncols2", False, "f2<D, 8/ncols2>", "f1", terms={"n": "7", "ncols2": "4"}),
            decision("amd_mma(cc)", False, "f2<D, 1>", "f1", terms={"amd_mma(cc)": "false"}),
            decision("otherwise", True, "f2<D, 64/ncols2>", "f1"),
        ],
        {"f1": ("D", "ncols2"), "f2": ("D", "ncols1")},
    )
    assert said == [
        "use_gqa_opt && r > 2 held (r = 3), so ncols2 = 4",
        "ncols2 = 8 needed r > 4; it is 3",
        "nothing else held, so ncols1 = 64/ncols2 = 16",
        "ncols1 = 8/ncols2 = 2 needed n <= 8/ncols2 (n = 7, ncols2 = 4)",
    ]


def test_only_what_this_vendors_gpus_could_run_is_explained():
    cc = {"cc": "16779526"}
    found = [
        decision("turing_mma_available(cc)", False, "return MMA", terms={"turing_mma_available(cc)": "false"} | cc),
        decision("amd_mfma_available(cc)", False, "return MMA", terms={"amd_mfma_available(cc)": "false"} | cc),
        decision("CC_IS_NVIDIA(cc)", False, "nvidia = true", terms={"CC_IS_NVIDIA(cc)": "false"} | cc),
        decision("nvidia && n == 1", False, "return VEC", terms={"nvidia": "false", "n == 1": "true"}),
        decision("n <= 8 || (CC_IS_NVIDIA(cc) && cc == X)", False, "return SMALL", terms={"n": "9"} | cc),
        decision("otherwise", True, "return TILE"),
    ]
    assert explain(found, {}, amd=True) == [
        "nothing else held, so TILE",
        "MMA needed amd_mfma_available(cc); cc is gfx906",
        "VEC needed nvidia",
        "SMALL needed n <= 8; it is 9",
    ]
    assert explain(found, {}) == [
        "nothing else held, so TILE",
        "nvidia is false: it needs CC_IS_NVIDIA(cc); cc is gfx906",
        "MMA needed turing_mma_available(cc); cc is gfx906",
        "VEC needed nvidia",
        "SMALL needed n <= 8 || (CC_IS_NVIDIA(cc) && cc == X) (n = 9, cc = gfx906)",
    ]


def test_a_false_bool_is_explained_where_it_was_missed():
    missed = decision("ok && n == 1", False, "return VEC", terms={"ok": "false", "n == 1": "true", "n": "1"})
    value = decision("r % 2 == 0", False, "ok = true", terms={"r % 2 == 0": "false", "r": "3"})
    other = decision("r % 3 == 1", False, "idle = true", terms={"r % 3 == 1": "false", "r": "3"})
    assert explain([value, other, missed, decision("otherwise", True, "return TILE")], {}) == [
        "nothing else held, so TILE",
        "ok is false: it needs r % 2 == 0; r is 3",
        "VEC needed ok",
    ]


needs_gdb = pytest.mark.skipif(
    shutil.which("gdb") is None or shutil.which("g++") is None, reason="gdb or g++ is not here"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    argv = ["g++", "-std=c++17", "-g", "-O0", "-x", "c++", "fattn.cu", "-o", "small"]
    subprocess.run(argv, cwd=folder, check=True, timeout=60)
    return folder


def under_gdb(folder, dispatch, words):
    """Decisions and sentences of one run of the small program."""
    (folder / "plan.json").write_text(json.dumps(plan_of(dispatch, f"run {words}")))
    (folder / "trace.py").write_text(GDB_SCRIPT.format(root=str(Path(fattn_probe.__file__).parents[1])))
    argv = ["gdb", "-nx", "-batch", "-x", "trace.py", "small"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (folder / "visits.json").exists(), done.stderr
    visits, function = json.loads((folder / "visits.json").read_text())
    (folder / "visits.json").unlink()
    assert function.startswith("launch_fattn<")
    found = decisions(dispatch.conditions, visits_of(visits))
    return found, explain(found, dispatch.parameters)


@needs_gdb
@pytest.mark.gdb
def test_seven_queries_under_gdb(program, dispatch):
    found, said = under_gdb(program, dispatch, "7 7")
    assert said == [
        "Q->ne[0] == 64 held, so most = 8",
        "has_tensor_cores(cc) && !CC_IS_AMD(cc) held (cc = 900), so BEST_KERNEL_TILE",
        "BEST_KERNEL_VEC needed Q->ne[1] == 1; it is 7",
        "dst->src[1]->ne[0] is 64, so D = 64",
        "use_gqa_opt && gqa_ratio > 4 held (gqa_ratio = 7), so ncols2 = 8",
        "dst->softcap == 0.0f held, so ncols1 = 1, use_softcap = false",
    ]
    assert len({(item.line, item.condition) for item in found}) == len(found), "nothing twice"
    most = next(item for item in found if item.leads_to == "most = 8")
    assert (most.held, most.terms) == (True, (Term("Q->ne[0] == 64", "true"), Term("Q->ne[0]", "64")))


@needs_gdb
@pytest.mark.gdb
def test_one_query_of_a_quantised_cache_goes_through_the_macro(program, dispatch):
    found, said = under_gdb(program, dispatch, "1 3 q")
    assert said[1:3] == [
        "Q->ne[1] <= 2 held (Q->ne[1] = 1), so BEST_KERNEL_VEC",
        "BEST_KERNEL_TILE was next: has_tensor_cores(cc) && !CC_IS_AMD(cc) held (cc = 900)",
    ]
    (macro,) = [item for item in found if item.function == "ggml_cuda_flash_attn_ext_vec"]
    assert (macro.condition, macro.held) == ("VEC_CASES(GGML_TYPE_Q8_0)", True)


@needs_gdb
@pytest.mark.gdb
def test_unaligned_rows_and_a_tile_of_sixteen(program, dispatch):
    found, said = under_gdb(program, dispatch, "12 3 u")
    assert "t->nb[i] % 16 != 0 held (t->nb[i] = 130), so use_gqa_opt = false" in said
    assert "ncols2 = 4 needed use_gqa_opt" in said
    assert "Q->ne[1] > 8/ncols2 held (Q->ne[1] = 12, ncols2 = 1), so ncols1 = 16/ncols2 = 16" in said
    constexpr = [item for item in found if item.condition.startswith("ncols2 <= ")]
    assert [(item.condition, item.held) for item in constexpr] == [("ncols2 <= 4", True)], "not what was not compiled"


MMA = "turing_mma_available(cc) && Q->ne[0] != 40 && Q->ne[0] != 72"
SAID = {
    ("gqa", "sim:rtx4070", "pypi:xllamacpp==0.2.8"): [
        f"{MMA} held (cc = 890, Q->ne[0] = 64), so BEST_FATTN_KERNEL_MMA_F16",
        "BEST_FATTN_KERNEL_VEC needed Q->ne[1] == 1; it is 7",
        "nothing else held, so ncols2 = 1",
        "ncols2 = 8 needed gqa_ratio % 8 == 0; gqa_ratio is 7",
    ],
    ("gqa", "sim:h200", source.DEFAULT_SOURCE): [
        f"{MMA} held (cc = 900, Q->ne[0] = 64), so BEST_FATTN_KERNEL_MMA_F16",
        "BEST_FATTN_KERNEL_VEC needed Q->ne[1] == 1; it is 7",
        "use_gqa_opt && gqa_ratio > 4 held (gqa_ratio = 7), so ncols2 = 8",
        "nothing else held, so ncols1 = 64/ncols2 = 8",
    ],
    ("decode", "sim:h200", source.DEFAULT_SOURCE): [
        f"BEST_FATTN_KERNEL_MMA_F16 was next: {MMA} held (cc = 900, Q->ne[0] = 128)",
        "Q->ne[1] == 1 held, so cols_per_block = 1",
    ],
    ("gqa", "sim:gtx1060", source.DEFAULT_SOURCE): [
        "nothing else held, so BEST_FATTN_KERNEL_TILE",
        "BEST_FATTN_KERNEL_MMA_F16 needed turing_mma_available(cc); cc is 610",
        "BEST_FATTN_KERNEL_VEC needed Q->ne[1] == 1 and !gqa_opt_applies; Q->ne[1] is 7",
    ],
}
MARKS = {  # a build or a kernel is compiled for each
    ("gqa", "sim:rtx4070"): pytest.mark.night,
    ("decode", "sim:h200"): pytest.mark.slow,
    ("gqa", "sim:gtx1060"): pytest.mark.night,
}


@needs_gdb
@pytest.mark.gdb
@pytest.mark.build
@pytest.mark.network
@pytest.mark.parametrize(
    ("scenario", "on", "spec"), [pytest.param(*which, marks=MARKS.get(which[:2], ())) for which in SAID]
)
def test_upstream_kernels_are_explained(scenario, on, spec):
    session = Session(RunOptions(source.resolve(spec), "debug", simulation=Simulation(threads=1)))
    inspector = Inspector(session, InspectOptions(blocks=False))
    case = shipped(scenario)
    inspection = inspector.inspect(case, make_inputs(case), target(on))
    parameters = inspector.dispatch(session.build_for(target(on))).parameters
    assert isinstance(inspection.result, Facts), inspection.result
    said = explain(inspection.result.choice.decisions, parameters)
    assert [sentence for sentence in said if sentence in SAID[scenario, on, spec]] == SAID[scenario, on, spec], said
