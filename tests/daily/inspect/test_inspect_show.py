import inspect
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from markupsafe import escape

from fattn_probe.cases.device.origin import MEASURED, Method, Origin, legend
from fattn_probe.daily.inspect import coverage
from fattn_probe.daily.inspect.coverage import Coverage, CoverageFinding
from fattn_probe.daily.inspect.facts import Choice, Decision, Facts, KernelLaunch, MissingFacts, TensorFacts, Term
from fattn_probe.daily.inspect.view.page import page
from fattn_probe.daily.inspect.view.show import FINDINGS_SHOWN, facts_json, render
from fattn_probe.daily.inspect.view.tables import pairs
from fattn_probe.llama.launch.tiles import BlockWork, Grid, TileWork
from tests import made
from tests.daily.inspect.made_facts import REASONS, causal, decode, fractional, gqa, stream_k, with_block


def shown(what: object, width: int = 80) -> str:
    return "\n".join(line.rstrip() for line in made.shown(what, width=width).splitlines())


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("made", [gqa, fractional, decode, causal])
def test_fits_the_terminal(made, verbose, width):
    assert max(map(len, shown(render(made(), REASONS, verbose=verbose), width).splitlines())) <= width


def test_the_first_screen_of_gqa():
    text = shown(render(gqa(), REASONS))
    assert text.startswith("gqa on sim:h200\nsource pypi:xllamacpp==2026.10.11549   build_number 11549   engine sim\n")
    for line in (
        "K        f16    64 256 2 1   2 128 32768 65536",
        "scale 0.125   max_bias 0   logit_softcap 0   prec 0   n_kv_max 0",
        "kernel     flash_attn_ext_f16<64,64,8,8,false,false,false>  (mma_f16)",
        "because    - use_gqa_opt && gqa_ratio > 4 held (gqa_ratio = 7), so ncols2 = 8",
        "work       gqa_ratio 7             ntiles_x 1              ntiles_z_gqa 1",
        "1   flash_attn_stream_k_fixup_uniform                 2x8x8   64x1x1   0 B",
        "      0 │0          ┃1          ┃2          ┃3          │",
        "coverage: pass, each of 8 KV steps is done exactly once, and every part is added",
        "blocks.sm: the simulator has no SMs to ask",
    ):
        assert line in text.splitlines()
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize(
    ("origin", "mark"),
    [(MEASURED, ""), (Origin(Method.ASSUMED), " (assumed)"), (Origin(Method.MEASURED, 7551), " (b7551)")],
)
def test_an_occupancy_that_is_not_known_is_marked(origin, mark):
    facts = gqa()
    main, fixup = facts.kernels
    facts = replace(facts, kernels=(replace(main, origin=origin), fixup))
    lines = shown(render(facts), 200).splitlines()
    assert any(f"max_blocks_per_sm 2{mark}  " in line for line in lines)
    assert [line for line in lines if line.startswith("(")] == legend([origin])
    assert all(f"<p>{escape(line)}</p>" in page(facts) for line in legend([origin]))
    assert [launch["origin"] for launch in facts_json(facts)["kernels"]] == [str(origin), "unknown"]


def test_verbose_lists_blocks_and_conditions():
    lines = shown(render(gqa(), verbose=True), 100).splitlines()
    assert "    3     3          4          0      0        0    0   3:4   needs_fixup" in lines
    assert any(
        line.startswith("fattn.cu:92    use_gqa_opt && gqa_ratio > 4   yes    use_gqa_opt = true") for line in lines
    )


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (decode(), "  254     0 6 31          0      7        3    0   6:32:8"),
        (stream_k(Grid(1, 1, 1, 1, 1), 2), "no work"),
        (causal(), "coverage: pass, each of 2560 KV steps is done exactly once (1536 more are hidden by the mask)"),
    ],
    ids=["blocks in turn", "a block without work", "steps that the mask hides"],
)
def test_every_block_is_listed(facts, line):
    assert line in shown(render(facts, verbose=True), 120)


def test_the_first_faults_are_listed_and_the_rest_counted():
    facts = replace(fractional(), blocks=fractional().blocks[::2])
    lines = shown(render(facts), 200).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("coverage: fail, "))
    found = int(lines[at].removeprefix("coverage: fail, ").split()[0])
    told = [line for line in lines[at + 1 :] if line.startswith("- ") and " more: " not in line]
    counted = [int(line.split()[2]) for line in lines[at + 1 :] if " more: " in line]
    assert len(told) == FINDINGS_SHOWN
    assert sum(counted) + len(told) == found


def test_words_of_a_program_are_not_markup():
    odd = TensorFacts("K", "f16", (1, 1, 1, 1), (2, 2, 2, 2), "[red]cache_k[/]", "[bold]x", 2, True)
    text = shown(render(Facts({"device": "[bold]gpu"}, tensors=(odd,))), 120)
    assert '"[red]cache_k[/]", view of [bold]x + 2' in text
    assert text.startswith("[bold]gpu\n")


def test_a_long_kernel_is_not_cut():
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    text = shown(render(Facts({}, kernels=(KernelLaunch(kernel, (1, 12, 32), (32, 4, 1), 0),))), 70)
    assert text.splitlines()[-2:] == [f"0  {kernel}", "  grid 1x12x32   block 32x4x1   shared 0 B"]


def test_only_what_was_found_is_shown():
    text = shown(render(Facts({"case": "gqa", "device": "gpu"}, launch={"nsm": 132})))
    assert [line for line in text.splitlines() if line] == ["gqa on gpu", "Launch", "GPU        nsm 132"]


def test_pairs_break_between_not_within():
    text = shown(pairs({"nbatch_fa": 64, "blocks_num": [8, 1, 1], "stream_k": True}), 32)
    assert text.splitlines() == ["nbatch_fa 64   blocks_num 8 1 1", "stream_k true"]


def test_json_has_everything_by_stable_names():
    document = json.loads(json.dumps(facts_json(gqa(), REASONS)))
    assert set(document) == {
        "about", "tensors", "op_params", "choice", "launch", "kernels", "grid", "blocks", "missing", "fault",
        "coverage",
    }  # fmt: skip
    assert document["tensors"][2]["ne"] == [64, 256, 2, 1]
    assert document["choice"]["reasons"] == list(REASONS)
    assert document["choice"]["decisions"][1]["terms"][1] == {"text": "gqa_ratio", "value": "7"}
    assert document["blocks"][3]["tiles"] == [
        {
            "sequence": 0, "z_KV": 0, "zt_gqa": 0, "jt": 0, "kb0_start": 3, "kb0_stop": 4, "kb0_step": 1,
            "needs_fixup": True, "is_fixup": False, "kb0_limit": None, "read": True,
        }
    ]  # fmt: skip
    assert document["coverage"] == {
        "passes": True, "findings": [], "tiles": 2, "steps": 8, "skipped": 0, "blocks": 8
    }  # fmt: skip


def test_json_of_a_fault():
    block = replace(gqa().blocks[2], tiles=())
    (gap, share) = facts_json(with_block(gqa(), block))["coverage"]["findings"]
    assert (gap["kind"], gap["tile"], gap["steps"]) == ("gap", (0, 0, 0, 0), (2, 3))
    assert share["message"] == "block 2 (kbc 2 to 3) does nothing, but its share is [0, 0, 0, 0] steps 2:3"


def test_the_documentation_names_every_key_and_kind():
    text = (Path(__file__).parents[3] / "docs/guide/inspect.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text))
    records = (
        Facts,
        TensorFacts,
        Term,
        Decision,
        Choice,
        KernelLaunch,
        TileWork,
        BlockWork,
        Grid,
        MissingFacts,
        CoverageFinding,
    )
    keys = {field.name for record in (*records, Coverage) for field in fields(record)}
    assert keys | {"passes", "reasons"} <= documented
    kinds = set(re.findall(r'Finding\(\s*"(\w+)"', inspect.getsource(coverage)))
    assert len(kinds) == 7
    assert kinds <= documented
