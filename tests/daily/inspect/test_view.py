"""Facts as a user sees them, of one GPU and of two: in a terminal, on a page, as JSON; the map of the work."""

import inspect
import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from markupsafe import Markup, escape

from fattn_probe.base.errors import InputError
from fattn_probe.base.view.svg import pinned
from fattn_probe.cases.device.origin import MEASURED, Method, Origin, legend
from fattn_probe.daily.inspect import coverage
from fattn_probe.daily.inspect.coverage import Coverage, CoverageFinding, check
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
from fattn_probe.daily.inspect.view.stream_k_map import PALETTE, colour_of, rows_of, segments_of, select
from fattn_probe.daily.inspect.view.work_picture import TerminalMap, page_map, svg_of
from fattn_probe.llama.launch.tiles import BlockWork, Grid, TileWork, tiles_of
from tests import made
from tests.daily.inspect.made_facts import (
    REASONS,
    causal,
    decode,
    decompositions,
    fractional,
    gqa,
    grids,
    in_turn,
    numbers,
    stream_k,
    with_block,
    with_work,
)

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
def test_page_and_map_are_well_formed_load_nothing_and_links_lead_somewhere(made):
    text = page(made(), REASONS)
    reader = Reader(text)
    assert not reader.names & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://\S+?(?=[\"'< ])", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text.replace("url(#map-hatch)", "")
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert ("#missing" in reader.links) == (made is gqa)
    text = svg_of(made())
    assert ET.fromstring(text).tag == f"{SVG}svg"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme:dark" in text


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


def test_a_line_breaks_between_template_arguments_and_foreign_text_is_escaped():
    assert breakable("k<64,8,false>, a < b") == "k<wbr>&lt;64,<wbr>8,<wbr>false&gt;, a &lt; b"
    assert breakable("!x && Q->ne[1] == 7") == '!x &amp;&amp; <span class="whole">Q-&gt;ne[1]</span> == 7'
    assert breakable("flash_attn_ext_f16 on sim_h200") == "flash_<wbr>attn_<wbr>ext_<wbr>f16 on sim_h200"
    assert breakable(HOSTILE) == "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
    odd = TensorFacts("K", "f16", (1, 1, 1, 1), (2, 2, 2, 2), HOSTILE, HOSTILE, 0, True)
    about = {"case": HOSTILE, "device": HOSTILE, "source": HOSTILE}
    choice = replace(gqa().choice, kernel=HOSTILE, template={HOSTILE: HOSTILE})
    assert "script" not in Reader(page(replace(gqa(), about=about, tensors=(odd,), choice=choice), [HOSTILE])).names


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
    assert "block 2 stops at kbc 3, block 4 starts at 4: no block computes KV step 3 of sequence 0, KV head 0" in text
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
    titles = side_by_side(gqa(), replace(gqa(), about={**gqa().about, "source": "pypi:xllamacpp==0.2.8"})).titles
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
    lines = printed(render(replace(fractional(), blocks=fractional().blocks[::2])), 200).splitlines()
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
    (gap, share) = facts_json(with_block(gqa(), replace(gqa().blocks[2], tiles=())))["coverage"]["findings"]
    assert (gap["kind"], gap["tile"], gap["steps"]) == ("gap", (0, 0, 0, 0), (2, 3))
    assert share["message"] == "block 2 (kbc 2 to 3) computes nothing, but its share is [0, 0, 0, 0] steps 2:3"


def test_the_documentation_names_every_key_and_kind():
    documented = set(re.findall(r"`(\w+)`", (Path(__file__).parents[3] / "docs/guide/inspect.md").read_text()))
    of_facts = (Facts, TensorFacts, Term, Decision, Choice, KernelLaunch, MissingFacts)
    of_work = (TileWork, BlockWork, Grid, CoverageFinding, Coverage)
    keys = {field.name for record in (*of_facts, *of_work) for field in fields(record)}
    assert (keys - {"mask_ends"}) | {"passes", "reasons"} <= documented  # the document has no `mask_ends`
    kinds = set(re.findall(r'Finding\(\s*"(\w+)"', inspect.getsource(coverage)))
    assert len(kinds) == 8
    assert kinds <= documented


def test_a_block_cannot_be_chosen_if_no_block_is_known():
    with pytest.raises(InputError, match=r"^x\.block: no block's work is known$"):
        block_at(replace(gqa(), blocks=()), 0, 0, "x")


def stops_early() -> Facts:
    """A share that ends four KV steps before the next one begins."""
    facts = fractional()
    block = facts.blocks[46]
    early = replace(block, kbc_stop=block.kbc_stop - 4, tiles=tiles_of(block.kbc, block.kbc_stop - 4, facts.grid))
    return with_block(facts, early)


def drawn(facts: Facts, width: int = 80, most: int | None = 24) -> list[str]:
    return [line.rstrip() for line in made.shown(TerminalMap(facts, check(facts), most), width=width).splitlines()]


def test_gqa_without_colour():
    assert drawn(gqa()) == [
        " KV row  0           64          128         192",
        "KV step  0           1           2           3",
        "   z_KV",
        "      0 │0          ┃1          ┃2          ┃3          │",
        "      1 │4          ┃5          ┃6          ┃7          │",
        "│n  block n   ┃  seam: the fixup kernel adds the two parts",
        "8 blocks on 2 output tiles of 4 KV steps; 1 KV step per block. Each tile is",
        "divided among 4 blocks.",
    ]


def test_a_division_that_repeats_is_drawn_once_and_whole_on_request():
    lines = drawn(fractional())
    assert lines[3].startswith("    0   0 │0")
    assert lines[10].startswith("    0   7 │9")
    assert lines[11].strip() == "⋮ the same 23 more times: every 8 tiles, block numbers + 11"
    assert sum(line.endswith("│") for line in drawn(fractional(), most=None)) == 192
    grid = Grid(1, 1, 1, 3, 1)
    blocks = tuple(BlockWork(at, (0, 0, at), None, None, (TileWork(0, at, 0, 0, 0, 1),)) for at in range(3))
    choice = Choice("vec", "flash_attn_ext_vec", {"D": 128, "ncols": 1}, {"nthreads": 128})
    lines = drawn(Facts({}, choice=choice, grid=grid, blocks=blocks), 60, 2)
    assert any("the same once more: each tile, block numbers + 1" in line for line in lines)


def test_blocks_that_take_turns_are_labelled_with_a_digit_and_hidden_steps_are_hatched():
    assert drawn(decode())[3] == "    0       0 │" + "0 1 2 3 4 5 6 7 " * 4 + "│"
    assert "▒" * 32 + "╱" * 32 in drawn(in_turn(Grid(512, 1, 1, 2, 1), 38, {(0, 0): 256}), 80)[3]
    row = drawn(causal(), 100)[3]
    assert row.strip().startswith("0    0 │0 ")
    assert row.count("╱") > 40


def test_rows_left_out_and_blocks_without_work_are_counted():
    lines = drawn(stream_k(Grid(8, 97, 1, 1, 1), 50), most=10)
    assert sum([int(line.split()[1]) for line in lines if "not shown" in line]) + 10 == 97
    lines = drawn(stream_k(Grid(2, 1, 7, 2, 1), 92), 200)
    assert lines[-1] == (
        "92 blocks on 14 output tiles of 2 KV steps; 0 to 1 KV step per block. 64 blocks have nothing to do. "
        "Each tile is divided among 2 blocks."
    )


def test_a_fault_is_shown_though_rows_are_left_out_and_so_are_steps_done_twice():
    lines = drawn(stops_early(), 100)
    (fault,) = [line for line in lines if "!!!!" in line]
    assert fault.startswith("    0  34 │")
    assert any("!  not computed by any block" in line for line in lines)
    block = replace(gqa().blocks[2], kbc_stop=4, tiles=tiles_of(2, 4, gqa().grid))
    assert drawn(with_block(gqa(), block))[3] == "      0 │0          ┃1          ┃2          ############│"


def test_a_block_of_an_amd_gpu_is_no_cuda_block():
    amd = replace(stops_early(), launch={"cc": 0x1000906})
    assert any(" blocks on " in line for line in drawn(amd))
    assert not any("CUDA" in line for line in drawn(amd)) and "CUDA" not in svg_of(amd)
    assert any("blocks on" in line for line in drawn(stops_early()))


@given(decompositions(), st.integers(40, 120), st.integers(1, 30))
def test_any_division_fits_and_shows_no_fault(facts, width, most):
    lines = drawn(facts, width, most)
    assert max(map(len, lines)) <= width
    assert not any(line.endswith(("not computed by any block", "computed more than once")) for line in lines)
    text = svg_of(facts)
    ET.fromstring(text)
    assert 'class="bad"' not in text
    assert "nan" not in text.lower()


def test_neighbouring_blocks_differ_in_lightness():
    lightness = [sum(bytes.fromhex(PALETTE[colour_of(block)][0][1:])) for block in range(100)]
    assert min(abs(a - b) for a, b in pairwise(lightness)) > 200


def test_segments_of_a_row_join_up_and_one_odd_tile_ends_the_repetition():
    facts = causal()
    for row in rows_of(facts):
        segments = segments_of(row, 16)
        assert [segment.start for segment in segments[1:]] == [segment.stop for segment in segments[:-1]]
        assert (segments[0].start, segments[-1].stop) == (0, 16)
    facts = fractional()
    odd = with_block(facts, replace(facts.blocks[100], tiles=()))
    assert select(rows_of(facts), facts.grid, 24).period == 8
    assert select(rows_of(odd), odd.grid, 24).period is None


SVG = "{http://www.w3.org/2000/svg}"


def titles(facts: Facts) -> list[str]:
    root = ET.fromstring(svg_of(facts))
    return [element.text or "" for element in root.iter(f"{SVG}title")]


def test_parts_masked_steps_and_faults_have_tooltips_and_foreign_text_is_escaped():
    assert titles(gqa())[1:5] == [
        f"block {block}: KV step {block} of sequence 0, KV head 0, head group 0, query tile 0" for block in range(4)
    ]
    assert len(titles(gqa())) == 1 + sum(len(block.tiles) for block in gqa().blocks)
    assert titles(replace(gqa(), about={"device": "<script>&"}))[0].endswith(" on <script>&")
    hidden = next(title for title in titles(causal()) if title.endswith(", hidden by the mask"))
    assert hidden.startswith("block 0: KV steps 4 to 14 of sequence 0, KV head 0, head group 0, query tile 0")
    assert [title for title in titles(stops_early()) if "any block" in title] == [
        "KV steps 7 to 10 of sequence 0, KV head 0, head group 0, query tile 34: not computed by any block"
    ]


def test_tiles_that_are_alike_are_folded_and_those_left_out_counted():
    facts = stream_k(Grid(4, 8, 1, 32, 1), 256)
    text = svg_of(facts)
    assert len(titles(facts)) == 1 + 4
    assert "⋮ the same 252 more times: each tile, block numbers + 1" in text
    text = svg_of(causal())
    assert re.search("⋮ [0-9]+ tiles not shown", text)


def test_the_labels_are_beside_the_map_of_a_page():
    labels, work = map(ET.fromstring, pinned(page_map(fractional()).drawing(), page_map(fractional()).left))
    assert labels.attrib["height"] == work.attrib["height"]
    assert "KV step" in {text.text for text in labels.iter(f"{SVG}text")}
    assert "KV step" not in {text.text for text in work.iter(f"{SVG}text")}
    (x, _, width, _) = map(float, work.attrib["viewBox"].split())
    assert float(labels.attrib["width"]) == x
    assert x + width == 960


def test_blocks_that_take_turns_are_dashed_lines():
    dashed = [
        element
        for element in ET.fromstring(svg_of(decode())).iter(f"{SVG}path")
        if "stroke-dasharray" in element.attrib
    ]
    assert len(dashed) == 4 * 8  # four of 32 tiles that are alike
    on, off = map(float, dashed[0].attrib["stroke-dasharray"].split())
    assert off == pytest.approx(7 * on, rel=1e-3)


def test_maps_of_one_page_share_no_ids():
    first, second = (ET.fromstring(svg_of(causal(), name)) for name in ("a", "b"))
    ids = [{element.attrib["id"] for element in root.iter() if "id" in element.attrib} for root in (first, second)]
    assert ids[0] == {"a-hatch"}
    assert not ids[0] & ids[1]
    assert "url(#a-hatch)" in {element.attrib.get("fill") for element in first.iter()}


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (stream_k, (Grid(128, 256, 1, 8, 2), 4097)),
        (stream_k, (Grid(64, 1000, 1, 1, 1), 9973)),
        (in_turn, (Grid(512, 1, 4, 8, 4), 38, {(sequence, 0): 200 + 30 * sequence for sequence in range(4)})),
        (in_turn, (Grid(256, 1, 8, 8, 4), 60)),
    ],
)
def test_thousands_of_blocks_make_a_small_file(made, words):
    text = svg_of(made(*words))
    ET.fromstring(text)
    assert len(text) < 500_000


def test_nothing_to_draw():
    assert svg_of(Facts({})) == ""


@given(decompositions())
def test_right_decompositions_pass(facts):
    assert check(facts).findings == ()


def recut(facts: Facts, block: int, kbc: int, kbc_stop: int) -> Facts:
    """The same with one block's share moved, and its tiles with it, as a wrong `kbc` would do it."""
    grid, old = facts.grid, facts.blocks[block]
    return with_block(facts, replace(old, kbc=kbc, kbc_stop=kbc_stop, tiles=tiles_of(kbc, kbc_stop, grid)))


@given(grids, numbers, st.data())
def test_a_kbc_that_is_off_by_one_is_reported(grid, number, data):
    facts = stream_k(grid, number)
    block = data.draw(st.sampled_from(facts.blocks))
    which, by = data.draw(st.sampled_from(["kbc", "kbc_stop"])), data.draw(st.sampled_from([-1, 1]))
    moved = {"kbc": block.kbc, "kbc_stop": block.kbc_stop}
    moved[which] += by
    assert not check(recut(facts, block.block, **moved)).passes


@given(decompositions(), st.data())
def test_a_block_that_is_not_there_is_reported(facts, data):
    gone = data.draw(st.sampled_from(facts.blocks))
    assume(len(facts.blocks) > 1)
    assert not check(replace(facts, blocks=tuple(block for block in facts.blocks if block is not gone))).passes


@given(decompositions(), st.data())
def test_blocks_that_do_each_others_tiles_are_reported(facts, data):
    a, b = data.draw(st.sampled_from(facts.blocks)), data.draw(st.sampled_from(facts.blocks))
    assume([work.tile for work in a.tiles] != [work.tile for work in b.tiles])
    assert not check(with_block(with_block(facts, replace(a, tiles=b.tiles)), replace(b, tiles=a.tiles))).passes


@given(decompositions(), st.sampled_from(["sequence", "z_KV", "zt_gqa", "jt", "kb0_start"]), st.data())
def test_a_work_elsewhere_is_reported(facts, name, data):
    block = data.draw(st.sampled_from([block for block in facts.blocks if block.tiles] or [None]))
    assume(block is not None)
    place = data.draw(st.integers(0, len(block.tiles) - 1))
    work = block.tiles[place]
    moved = replace(work, **{name: getattr(work, name) + data.draw(st.sampled_from([-1, 1]))})
    assert not check(with_work(facts, block.block, place, moved)).passes


@given(grids, numbers, st.sampled_from(["needs_fixup", "is_fixup"]), st.data())
def test_a_wrong_fixup_flag_is_reported(grid, number, name, data):
    facts = stream_k(grid, number)
    block = data.draw(st.sampled_from([block for block in facts.blocks if block.tiles]))
    place = data.draw(st.integers(0, len(block.tiles) - 1))
    work = block.tiles[place]
    flipped = with_work(facts, block.block, place, replace(work, **{name: not getattr(work, name)}))
    assert "fixup" in {finding.kind for finding in check(flipped).findings}


def test_a_step_that_no_block_does_or_two_do():
    facts = recut(fractional(), 46, fractional().blocks[46].kbc, fractional().blocks[46].kbc_stop - 1)
    (finding,) = check(facts).findings
    assert finding.kind == "gap"
    assert finding.blocks == (46, 47)
    assert finding.message == (
        "block 46 stops at kbc 2186, block 47 starts at 2187: "
        "no block computes KV step 10 of sequence 0, KV head 0, head group 0, query tile 34"
    )
    facts = recut(gqa(), 2, 2, 4)
    kinds = {finding.kind: finding.message for finding in check(facts).findings}
    expected = "KV step 3 of sequence 0, KV head 0, head group 0, query tile 0 is computed 2 times, by blocks 2 and 3"
    assert kinds["overlap"] == expected
    assert kinds["fixup"].endswith("blocks 2 and 3 write dst, but only the last block should")


ALONE = "no block computes the tile at sequence 0, KV head 7, head group 3, query tile 0"
NOT_ADDED = "192 tiles are divided among blocks, but no flash_attn_stream_k_fixup was launched to add the parts"


@pytest.mark.parametrize(
    ("facts", "said", "steps"),
    [
        (replace(decode(), kernels=(), blocks=decode().blocks[:-8]), ALONE, (0, 32)),
        (replace(fractional(), kernels=fractional().kernels[:1]), NOT_ADDED, None),
    ],
    ids=["a tile", "parts"],
)
def test_what_nobody_does_is_reported_once(facts, said, steps):
    assert [(finding.message, finding.steps) for finding in check(facts).findings] == [(said, steps)]


def test_masked_steps_are_counted_and_without_blocks_there_is_no_verdict():
    coverage = check(causal())
    assert coverage.passes
    assert (coverage.tiles, coverage.steps, coverage.skipped) == (256, 4096, 1536)
    assert check(Facts({}, grid=Grid(4, 1, 1, 2, 1))) is None
    assert check(replace(gqa(), grid=None)) is None


def test_rows_that_the_mask_shows_must_not_be_hidden_by_its_scan():
    ends = tuple(range(1, 1025))  # causal: query q sees KV rows 0 to q
    facts = replace(causal(), mask_ends=(ends,))
    assert check(facts).passes
    (finding,) = check(replace(facts, mask_ends=((*ends[:9], 300, *ends[10:]),))).findings
    assert (finding.kind, finding.tile, finding.steps) == ("scan", (0, 0, 0, 1), (4, 5))
    assert finding.message == (
        "the scan of the mask gives KV_max 256 for sequence 0, query tile 1, but query 9 sees KV row 299"
    )
    sparse = replace(facts.choice, template={**facts.choice.template, "use_sparse": True})
    assert check(replace(facts, choice=sparse, mask_ends=((1024,) * 1024,))).passes  # it counts gathered rows
    assert "mask_ends" not in facts_json(facts)


def test_the_planted_fault_of_the_seam():
    """patches/fault-stream-k-seam.patch: a share that ends inside a tile ends one step early."""
    facts, early = fractional(), []
    for block in facts.blocks:
        inside = block.kbc_stop % 64 > 1 and block.kbc_stop - block.kbc > 1
        early.append(recut(facts, block.block, block.kbc, block.kbc_stop - inside).blocks[block.block])
    findings = check(replace(facts, blocks=tuple(early))).findings
    assert {finding.kind for finding in findings} == {"gap"}
    assert len(findings) == sum(new != old for new, old in zip(early, facts.blocks, strict=True)) == 240
