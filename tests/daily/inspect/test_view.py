"""Facts as a user sees them: in a terminal, on a page, as JSON; of one GPU, and of two side by side."""

import inspect
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup, escape

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device.origin import MEASURED, Method, Origin, legend
from fattn_probe.daily.inspect import coverage
from fattn_probe.daily.inspect.coverage import Coverage, CoverageFinding
from fattn_probe.daily.inspect.facts import (
    Choice,
    Decision,
    Facts,
    KernelLaunch,
    MissingFacts,
    TensorFacts,
    Term,
    block_at,
)
from fattn_probe.daily.inspect.view.page import breakable, page, side_by_side_page
from fattn_probe.daily.inspect.view.show import (
    FINDINGS_SHOWN,
    facts_json,
    pairs,
    render,
    render_side_by_side,
    said,
    side_by_side,
    side_by_side_json,
)
from fattn_probe.llama.launch.tiles import BlockWork, Grid, TileWork
from tests import made
from tests.daily.inspect.made_facts import REASONS, causal, decode, fractional, gqa, stream_k, with_block

VOID = {"wbr", "meta", "link", "br", "img", "input", "hr"}
HOSTILE = '"><script>alert(1)</script>'


class Reader(HTMLParser):
    """The page's elements with their attributes, its ids and links; every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.names = {tag for tag, _ in self.found}

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.found.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("made", [gqa, fractional, decode, causal])
def test_a_page_is_well_formed_loads_nothing_and_its_links_lead_somewhere(made):
    text = page(made(), REASONS)
    reader = Reader(text)
    assert not reader.names & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://\S+?(?=[\"'< ])", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text.replace("url(#map-hatch)", "")
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert ("#missing" in reader.links) == (made is gqa)


def test_the_page_shows_the_facts():
    text = page(gqa(), REASONS).replace("<wbr>", "")
    for words in (
        "<title>gqa on sim:h200</title>",
        "<svg ",
        "flash_attn_ext_f16&lt;64,64,8,8,false,false,false&gt;",
        "use_gqa_opt &amp;&amp; gqa_ratio &gt; 4 held",
        "<dt>nsm</dt><dd>132</dd>",
        "each of 8 KV steps is done exactly once",
        "the simulator has no SMs to ask",
    ):
        assert words in text


def test_a_line_breaks_between_template_arguments_and_not_in_a_member():
    assert breakable("k<64,8,false>, a < b") == "k<wbr>&lt;64,<wbr>8,<wbr>false&gt;, a &lt; b"
    assert breakable("!x && Q->ne[1] == 7") == '!x &amp;&amp; <span class="whole">Q-&gt;ne[1]</span> == 7'
    assert breakable("flash_attn_ext_f16 on sim_h200") == "flash_<wbr>attn_<wbr>ext_<wbr>f16 on sim_h200"
    assert breakable(HOSTILE) == "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"


def test_foreign_text_is_escaped_on_a_page():
    odd = TensorFacts("K", "f16", (1, 1, 1, 1), (2, 2, 2, 2), HOSTILE, HOSTILE, 0, True)
    about = {"case": HOSTILE, "device": HOSTILE, "source": HOSTILE}
    choice = replace(gqa().choice, kernel=HOSTILE, template={HOSTILE: HOSTILE})
    reader = Reader(page(replace(gqa(), about=about, tensors=(odd,), choice=choice), [HOSTILE]))
    assert "script" not in reader.names


def test_a_page_has_a_trace_as_it_is_and_else_only_what_was_found():
    text = page(gqa(), trace=Markup("<svg id='t'></svg>"))
    assert "<h2>Trace</h2>\n<svg id='t'></svg>" in text
    assert '<li><a href="#trace">Trace</a></li>' in text
    text = page(Facts({"case": "gqa", "device": "gpu"}, launch={"nsm": 132}))
    assert re.findall(r"<h2>(.*)</h2>", text) == ["Launch"]
    text = printed(render(Facts({"case": "gqa", "device": "gpu"}, launch={"nsm": 132})))
    assert [line for line in text.splitlines() if line] == ["gqa on gpu", "Launch", "GPU        nsm 132"]


def test_faults_are_reported_on_a_page_and_that_of_a_stopped_kernel_first():
    text = page(replace(gqa(), blocks=gqa().blocks[:3] + gqa().blocks[4:]))
    assert "block 2 stops at kbc 3, block 4 starts at 4: no block does KV step 3 of sequence 0, KV head 0" in text
    assert 'class="verdict fail"' in text
    text = page(replace(gqa(), fault="misaligned: a vector at common.cuh:822"))
    assert '<div class="verdict fail"><b>fault</b> misaligned: a vector at common.cuh:822</div>' in text
    assert text.index("<b>fault</b>") < text.index("<h2>")


def test_a_page_of_two_side_by_side():
    """The first map was below 50 rows of facts, and two kernels in a cell had only a comma between them."""
    text = side_by_side_page(side_by_side(gqa(), on_rtx4070()))
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    sections = ["work-a", "work-b", "facts", "decisions"]
    assert reader.links == ["#main", *(f"#{section}" for section in sections)]
    assert re.findall(r'<section id="([^"]+)"', text) == sections
    assert "<h2>Division of work: gqa on sim:rtx4070</h2>" in text
    folded = [text[part.start() : part.end()] for part in re.finditer(r"<details>.*?</details>", text, re.DOTALL)]
    assert ["<td>nsm</td><td>132</td><td>46</td>" in part for part in folded] == [True, False]
    assert "5 differ</summary>" in folded[0]
    assert "<summary>1 condition answered differently</summary>" in folded[1]
    names = [kernel.kernel for kernel in gqa().kernels]
    assert "<td>" + "\n".join(map(escape, names)) + "</td>" in text.replace("<wbr>", "")


def test_a_page_of_two_equal_inspections_has_nothing_to_unfold():
    text = side_by_side_page(side_by_side(gqa(), gqa()))
    assert "<details>" not in text
    assert "none differs</p>" in text


def on_rtx4070() -> Facts:
    """gqa as a GPU of another kind might have it: no tile divided, one decision the other way."""
    facts = gqa()
    other = stream_k(facts.grid, 2)
    decisions = (replace(facts.choice.decisions[0], held=False), *facts.choice.decisions[1:])
    return replace(
        facts,
        about={**facts.about, "device": "sim:rtx4070"},
        launch={**facts.launch, "blocks_num": [2, 1, 1], "nsm": 46, "fixup": "none"},
        kernels=other.kernels,
        blocks=other.blocks,
        choice=replace(facts.choice, decisions=decisions),
    )


def printed(what: object, width: int = 80) -> str:
    return "\n".join(line.rstrip() for line in made.shown(what, width=width).splitlines())


def shown(a: Facts, b: Facts, width: int = 80) -> list[str]:
    return printed(render_side_by_side(side_by_side(a, b)), width).splitlines()


def test_what_two_inspections_differ_in():
    found = side_by_side(gqa(), on_rtx4070()).facts
    assert [name for name, *_ in found] == ["blocks_num", "nsm", "fixup", "kernels", "blocks"]
    assert found[1] == ("nsm", 132, 46)
    less = replace(gqa(), launch={name: value for name, value in gqa().launch.items() if name != "nsm"})
    assert side_by_side(gqa(), less).facts == (("nsm", 132, None),)
    assert side_by_side(less, gqa()).facts == (("nsm", None, 132),)
    both = side_by_side(gqa(), on_rtx4070())
    assert said(both) == f"{len(gqa().flat()) - 5} facts are equal, 5 differ"
    assert said(side_by_side(gqa(), gqa())) == f"{len(gqa().flat())} facts are equal, none differs"
    assert both.decisions == (("ggml_cuda_get_best_fattn_kernel", "gqa_opt_applies", "yes", "no"),)
    nothing = replace(gqa(), choice=replace(gqa().choice, decisions=()))
    assert [b for *_, b in side_by_side(gqa(), nothing).decisions] == ["not asked", "not asked"]
    document = json.loads(json.dumps(side_by_side_json(side_by_side(gqa(), on_rtx4070()))))
    assert document["a"]["device"] == "sim:h200"
    assert document["facts"][0] == {"fact": "blocks_num", "a": [8, 1, 1], "b": [2, 1, 1]}
    assert document["decisions"][0]["condition"] == "gqa_opt_applies"
    assert document["equal"] == len(gqa().flat()) - 5


def test_an_occupancy_that_is_not_known_is_said():
    """Two GPUs may differ for no other reason."""
    facts = on_rtx4070()
    assumed = replace(facts, kernels=tuple(replace(one, origin=Origin(Method.ASSUMED)) for one in facts.kernels))
    line = f"gqa on sim:rtx4070: max_blocks_per_sm {legend([Origin(Method.ASSUMED)])[0]}"
    assert line in shown(gqa(), assumed, 250)
    assert str(escape(line)) in side_by_side_page(side_by_side(gqa(), assumed))
    assert "max_blocks_per_sm" not in "".join(shown(gqa(), facts))


def test_two_side_by_side_in_a_terminal_are_told_apart():
    lines = shown(gqa(), on_rtx4070())
    assert lines[0] == "gqa on sim:h200  |  gqa on sim:rtx4070"
    assert "nsm          132                                 46" in lines
    assert "Division of work: gqa on sim:rtx4070" in lines
    assert "      1 │4          ┃5          ┃6          ┃7          │" in lines
    assert "      1 │1                                              │" in lines
    assert max(map(len, lines)) <= 80
    older = replace(gqa(), about={**gqa().about, "source": "pypi:xllamacpp==0.2.8"})
    titles = side_by_side(gqa(), older).titles
    assert titles == ("gqa on sim:h200, pypi:xllamacpp==2026.10.11549", "gqa on sim:h200, pypi:xllamacpp==0.2.8")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("made", [gqa, fractional, decode, causal])
def test_facts_fit_the_terminal(made, verbose, width):
    assert max(map(len, printed(render(made(), REASONS, verbose=verbose), width).splitlines())) <= width


def test_the_first_screen_of_gqa():
    text = printed(render(gqa(), REASONS))
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
    lines = printed(render(facts), 200).splitlines()
    assert any(f"max_blocks_per_sm 2{mark}  " in line for line in lines)
    assert [line for line in lines if line.startswith("(")] == legend([origin])
    assert all(f"<p>{escape(line)}</p>" in page(facts) for line in legend([origin]))
    assert [launch["origin"] for launch in facts_json(facts)["kernels"]] == [str(origin), "unknown"]


def test_verbose_lists_blocks_and_conditions():
    lines = printed(render(gqa(), verbose=True), 100).splitlines()
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
    assert line in printed(render(facts, verbose=True), 120)


def test_the_first_faults_are_listed_and_the_rest_counted():
    facts = replace(fractional(), blocks=fractional().blocks[::2])
    lines = printed(render(facts), 200).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("coverage: fail, "))
    found = int(lines[at].removeprefix("coverage: fail, ").split()[0])
    told = [line for line in lines[at + 1 :] if line.startswith("- ") and " more: " not in line]
    counted = [int(line.split()[2]) for line in lines[at + 1 :] if " more: " in line]
    assert len(told) == FINDINGS_SHOWN
    assert sum(counted) + len(told) == found


def test_words_of_a_program_are_not_markup():
    odd = TensorFacts("K", "f16", (1, 1, 1, 1), (2, 2, 2, 2), "[red]cache_k[/]", "[bold]x", 2, True)
    text = printed(render(Facts({"device": "[bold]gpu"}, tensors=(odd,))), 120)
    assert '"[red]cache_k[/]", view of [bold]x + 2' in text
    assert text.startswith("[bold]gpu\n")


def test_a_narrow_terminal_cuts_no_kernel_and_breaks_between_pairs():
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    text = printed(render(Facts({}, kernels=(KernelLaunch(kernel, (1, 12, 32), (32, 4, 1), 0),))), 70)
    assert text.splitlines()[-2:] == [f"0  {kernel}", "  grid 1x12x32   block 32x4x1   shared 0 B"]
    text = printed(pairs({"nbatch_fa": 64, "blocks_num": [8, 1, 1], "stream_k": True}), 32)
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


def test_a_block_cannot_be_chosen_if_no_block_is_known():
    with pytest.raises(InputError, match=r"^x\.block: no block's work is known$"):
        block_at(replace(gqa(), blocks=()), 0, 0, "x")
