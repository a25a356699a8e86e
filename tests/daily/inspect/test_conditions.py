"""Conditions out of source text: literal snippets, and the trees of three eras; and the dispatch in the cache."""

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.daily.inspect.dispatch import decide
from fattn_probe.daily.inspect.dispatch.decide import digest_of, dispatch_of, plan_of, read_dispatch
from fattn_probe.daily.inspect.inspector import InspectOptions, Inspector
from fattn_probe.llama import source
from fattn_probe.llama.build import Build
from fattn_probe.llama.build.key import OVERLAY
from fattn_probe.llama.cxx.expressions import (
    Macro,
    Reader,
    debugger_expression,
    expand,
    holds,
    lacking,
    read_macros,
    settle,
    truth_of_value,
)
from fattn_probe.llama.cxx.tokens import draft_of, tokenize
from fattn_probe.llama.source.features import CUDA
from tests.daily.inspect import small_dispatch
from tests.daily.inspect.small_dispatch import HEADER, SOURCE, line_of
from tests.llama.build.test_key import MANIFEST
from tests.stand_in import StandIn

MACROS = read_macros([small_dispatch.COMMON])
remembered_dispatch = decide.remembered_dispatch.__wrapped__  # without what this process has in memory


@pytest.fixture(scope="module")
def dispatch():
    return dispatch_of({name: small_dispatch.FILES[name] for name in ("fattn-tile.cuh", "fattn.cu")}, MACROS)


@pytest.fixture
def at(dispatch):
    """The conditions that begin on the line of fattn.cu that begins so."""

    def at(beginning, text=SOURCE, file="fattn.cu"):
        line = line_of(text, beginning)
        (found,) = [item for item in dispatch.conditions if (item.file, item.lines[0]) == (file, line)]
        return found

    return at


def logic(text, macros=None):
    draft = draft_of(tokenize(text))
    return Reader(draft, macros or {}).logic(0, len(draft.words))


def test_functions_are_those_that_the_entry_leads_to(dispatch):
    names = [function.name for function in dispatch.functions]
    prefix = "ggml_cuda_flash_attn_ext"
    assert names[:2] == [prefix, "get_best_kernel"]
    assert set(names[2:]) == {f"{prefix}_{word}" for word in ("vec", "tile", "tile_switch", "tile_case")}
    assert dispatch.functions[0].location == f"fattn.cu:{line_of(SOURCE, 'switch (get_best_kernel')}"
    assert dispatch.parameters[f"{prefix}_tile_case"] == ("D", "ncols2")


def test_a_condition_over_two_lines_and_calls_that_are_not_evaluated(at):
    condition = at("if (cc >= CC_NEW")
    line = line_of(SOURCE, "if (cc >= CC_NEW")
    assert condition.lines == (line, line + 1)
    assert condition.body == (line + 2, line + 2)
    assert condition.leads_to == "return BEST_KERNEL_VEC"
    assert condition.text == "cc >= CC_NEW && Q->ne[1] == 1 && !(Q->ne[2] > 64 || K->ne[1] >= 8192)"
    texts = [atom.text for atom in condition.logic.atoms()]
    assert texts == ["cc >= CC_NEW", "Q->ne[1] == 1", "Q->ne[2] > 64", "K->ne[1] >= 8192"]
    first = next(condition.logic.atoms())
    assert (first.ask, [text for text, _ in first.variables]) == ("cc >= 890", ["cc"])
    called, amd = at("if (has_tensor_cores").logic.atoms()
    assert (called.ask, [ask for _, ask in called.variables]) == ("", ["cc"])
    assert amd.ask == "((cc >= 0x1000000))"


def test_what_a_body_leads_to(at):
    assert at("if (has_tensor_cores").leads_to == "return BEST_KERNEL_TILE"
    assert at("if (K->type == GGML_TYPE_F16").leads_to.startswith("if (cc >= CC_NEW && ")
    assert at("if (can_use_vec)").leads_to == ""
    assert at("if (use_gqa_opt && gqa_ratio > 4)").leads_to == "ggml_cuda_flash_attn_ext_tile_case<D, 8>"
    assert at("if (Q->ne[1] > 8/ncols2", HEADER, "fattn-tile.cuh").leads_to == "launch_fattn<D, 16/ncols2, ncols2>"
    assert at("if (dst->softcap", HEADER, "fattn-tile.cuh").leads_to == "kernel = flash_kernel<D, 1, ncols2, false>"


def test_values_that_conditions_use_loops_switches_macros_and_guards_are_conditions(dispatch, at):
    assert (at("const bool can_use_vec").variable, at("const bool can_use_vec").leads_to) == (
        "can_use_vec",
        "can_use_vec = true",
    )
    most = at("const int most")
    assert (most.text, most.leads_to) == ("Q->ne[0] == 64", "most = 8")
    assert not [condition for condition in dispatch.conditions if condition.variable == "unused"]
    assert at("if (t->nb[i] % 16").in_loop
    assert at("if (t->nb[i] % 16").leads_to == "use_gqa_opt = false"
    cases = at("switch (dst->src[1]").cases
    assert [case.labels for case in cases] == [("40", "64"), ("default",)]
    assert cases[0].leads_to == "ggml_cuda_flash_attn_ext_tile_switch<64>"
    assert cases[1].leads_to == 'GGML_ABORT("fatal error")'
    assert at("VEC_CASES(GGML_TYPE_Q8_0)").kind == "macro"
    assert at("if constexpr (ncols2 <= 2)", HEADER, "fattn-tile.cuh").guarded
    assert not at("if constexpr (ncols2 <= 4)", HEADER, "fattn-tile.cuh").guarded
    assert not [condition for condition in dispatch.conditions if "GGML_ASSERT" in condition.text]


def test_brackets_are_taken_off_and_ternaries_left_whole():
    read = logic("((a && !b) || (c ? d && e : f) || !(g == 1))")
    assert read.kind == "or"
    assert [child.kind for child in read.children] == ["and", "atom", "not"]
    assert [atom.text for atom in read.atoms()] == ["a", "b", "c ? d && e : f", "g == 1"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Q->ne[1] * gqa_ratio_eff > 16", ["Q->ne[1]", "gqa_ratio_eff"]),
        ("ggml_is_quantized(K->type)", ["K->type"]),
        ("std::max<int64_t>(4096, 2*n_gather) > K->ne[1]", ["n_gather", "K->ne[1]"]),
        ("K->type == GGML_TYPE_F16", ["K->type"]),
        ("info().devices[id].cc > DKQ/2", ["id", "DKQ"]),
        ("mask", []),
    ],
)
def test_variables_of_an_atom(text, parts):
    (atom,) = logic(text).atoms()
    assert [text for text, _ in atom.variables] == parts


def test_macros_are_replaced_for_the_debugger_except_one_with_two_bodies():
    macros = read_macros(["#define A 256 // x\n#define B (A + 1)\n#define IS(x) (x >= A && x < B)\n#define A2 1\n"])
    macros |= read_macros(["#define LONG 1 \\\n + 2\n"])
    assert "LONG" not in macros
    assert expand("n % A == 0 && IS(cc) && p == nullptr", macros) == (
        "n % 256 == 0 && ((cc >= 256 && cc < ((256 + 1)))) && p == 0"
    )
    assert debugger_expression("f(A) > 1", macros) == ""
    assert debugger_expression("sizeof(half) > A", macros) == "sizeof(half) > 256"
    assert read_macros(["#define W 32\n#define V 1\n", "#define W 64\n"]) == {"V": Macro(None, "1")}


@pytest.mark.parametrize(
    ("value", "truth"),
    [("true", True), ("0", False), ("0x0", False), ("(ggml_tensor *) 0x55", True), ("0.5", True), ("GGML_F16", None)],
)
def test_truth_of_a_printed_value(value, truth):
    assert truth_of_value(value) is truth
    assert truth_of_value(None) is None


def test_what_follows_from_the_outcome():
    read = logic("f(x) && a > 1 && !(b || g(y))")
    known = {"a > 1": True, "b": False, "f(x)": None, "g(y)": None}
    settle(read, True, known)
    assert (known["f(x)"], known["g(y)"]) == (True, False)

    known = {"a > 1": True, "b": False, "f(x)": True, "g(y)": None}
    settle(read, False, known)
    assert known["g(y)"] is True

    known = {"a > 1": True, "b": False, "f(x)": None, "g(y)": None}
    settle(read, False, known)
    assert (known["f(x)"], known["g(y)"]) == (None, None), "either may be to blame"


def test_what_was_lacking():
    read = logic("a && b && !(c || d)")
    known = {"a": True, "b": False, "c": True, "d": False}
    assert holds(read, known) is False
    assert [part.text for part in lacking(read, known)] == ["b", "!(c || d)"]


ERAS = {"A": "pypi:xllamacpp==0.2.8", "B": "pypi:xllamacpp==0.2.12", "C": source.DEFAULT_SOURCE}


@pytest.mark.network
@pytest.mark.parametrize("era", ERAS)
def test_the_dispatch_of_every_era(era):
    root = source.resolve(ERAS[era]).root
    prefix = "ggml_cuda_flash_attn_ext"
    families = {f"{prefix}_{word}" for word in ("vec", "vec_case", "tile", "tile_case", "mma_f16", "mma_f16_case")}
    switches = {f"{prefix}_mma_f16_switch_ncols{n}" for n in (1, 2)}

    dispatch = read_dispatch(root)
    functions = {function.name for function in dispatch.functions}
    assert {prefix, "ggml_cuda_get_best_fattn_kernel"} | families | switches <= functions
    conditions = [item for item in dispatch.conditions if item.function == "ggml_cuda_get_best_fattn_kernel"]
    turing = next(item for item in conditions if item.text.startswith("turing_mma_available(cc)"))
    assert turing.leads_to == "return BEST_FATTN_KERNEL_MMA_F16"
    vec = [item for item in conditions if item.leads_to == "return BEST_FATTN_KERNEL_VEC" and item.kind == "if"]
    assert any("Q->ne[1] == 1" in item.text for item in vec)
    gqa = next(item for item in conditions if item.variable == "gqa_opt_applies")
    assert "K->ne[1] % 256 == 0" in {atom.ask for atom in gqa.logic.atoms()}, "FATTN_KQ_STRIDE is known"
    assert all(item.lines[0] <= item.lines[1] and item.text for item in conditions if item.kind != "outcome")


SMALL = """
enum best_kernel { NONE = 0, VEC = 1 };
static best_kernel choose(const ggml_tensor * dst) {
    if (dst->ne[1] == 1) {
        return VEC;
    }
    return NONE;
}
void ggml_cuda_flash_attn_ext(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    choose(dst);
}
"""


@pytest.fixture
def root(cache, tmp_path):
    """A tree with one file, and an empty cache."""
    folder = tmp_path / "tree"
    (folder / CUDA).mkdir(parents=True)
    (folder / CUDA / "fattn.cu").write_text(SMALL)
    return folder


@pytest.fixture
def reads(monkeypatch):
    """Is called with each tree that is read."""
    noted = Mock(side_effect=decide.read_dispatch)
    monkeypatch.setattr(decide, "read_dispatch", noted)
    return noted


def test_a_dispatch_is_read_once_and_again_if_its_source_changes(root, reads):
    first, second = remembered_dispatch(root), remembered_dispatch(root)
    assert first == second == decide.dispatch_of({"fattn.cu": SMALL}, {})
    assert [condition.text for condition in second.conditions][:1] == ["dst->ne[1] == 1"]
    assert reads.call_count == 1
    remembered_dispatch(root)
    (root / CUDA / "fattn.cu").write_text(SMALL.replace("== 1)", "== 2)"))
    assert remembered_dispatch(root).conditions[0].text == "dst->ne[1] == 2"
    assert reads.call_count == 2


@pytest.mark.parametrize("scoped", ["enum class", "enum struct"])
def test_a_choice_may_be_a_scoped_enumeration(scoped):
    """Without its choice, the whole function was left out, and inspect gave no reason for the family."""
    plain, other = (dispatch_of({"fattn.cu": SMALL.replace("enum", word)}, {}) for word in ("enum", scoped))
    assert plain == other and [function.name for function in plain.functions][1:] == ["choose"]


def test_a_choice_in_a_header_is_not_passed_over():
    """A step into it happens only where the context is passed on: its reasons were missing."""
    choice, entry = SMALL.split("void ", 1)
    apart = dispatch_of({"fattn-select.cuh": choice, "fattn.cu": f"void {entry}"}, {})
    (function,) = apart.functions[1:]
    assert plan_of(apart)["stops"] == [function.location] and function.file == "fattn-select.cuh"
    whole = dispatch_of({"fattn.cu": SMALL}, {})
    assert plan_of(whole)["stops"] == [whole.functions[1].location]


def test_a_source_without_the_function_that_launches_is_refused(root):
    """inspect once called the op unsupported."""
    build = Build(root, replace(MANIFEST, source="path:mine"))
    (root / OVERLAY / CUDA).mkdir(parents=True)
    (root / OVERLAY / CUDA / "fattn.cu").write_text(SMALL)
    inspector = Inspector(StandIn(), InspectOptions())
    with pytest.raises(InputError, match=r"^path:mine has no function launch_fattn, "):
        inspector.dispatch(build)


def test_the_code_that_reads_is_part_of_the_key(root):
    """Since the package was moved into districts, the key had the source alone."""
    with patch.object(Path, "read_bytes", autospec=True, side_effect=Path.read_bytes) as read:
        digest_of(root)
    names = {path.name for (path,), _ in read.call_args_list}
    assert {"fattn.cu", "decide.py", "extract.py", "expressions.py", "statements.py"} <= names
