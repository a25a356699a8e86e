import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markupsafe import Markup, escape

from fattn_probe.daily.inspect.facts import Facts, TensorFacts
from fattn_probe.daily.inspect.view.page import Section, breakable, page, side_by_side_page
from fattn_probe.daily.inspect.view.side_by_side import side_by_side
from tests.daily.inspect.made_facts import REASONS, causal, decode, fractional, gqa
from tests.daily.inspect.test_side_by_side import on_rtx4070

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
def test_is_well_formed_and_loads_nothing(made):
    text = page(made(), REASONS)
    reader = Reader(text)
    assert not reader.names & {"script", "link", "img", "iframe"}
    assert set(re.findall(r"https?://\S+?(?=[\"'< ])", text)) == {"http://www.w3.org/2000/svg"}
    assert "url(" not in text.replace("url(#map-hatch)", "")


def test_every_link_leads_somewhere():
    reader = Reader(page(gqa(), REASONS))
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert "#missing" in reader.links


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


def test_foreign_text_is_escaped():
    odd = TensorFacts("K", "f16", (1, 1, 1, 1), (2, 2, 2, 2), HOSTILE, HOSTILE, 0, True)
    about = {"case": HOSTILE, "device": HOSTILE, "source": HOSTILE}
    choice = replace(gqa().choice, kernel=HOSTILE, template={HOSTILE: HOSTILE})
    reader = Reader(page(replace(gqa(), about=about, tensors=(odd,), choice=choice), [HOSTILE]))
    assert "script" not in reader.names


def test_further_sections_come_in_as_they_are():
    text = page(gqa(), sections=[Section("trace", "Trace of block 3", Markup("<svg id='t'></svg>"))])
    assert "<h2>Trace of block 3</h2>\n<svg id='t'></svg>" in text
    assert '<li><a href="#trace">Trace of block 3</a></li>' in text


def test_only_what_was_found_is_shown():
    text = page(Facts({"case": "gqa", "device": "gpu"}, launch={"nsm": 132}))
    assert re.findall(r"<h2>(.*)</h2>", text) == ["Launch"]


def test_a_fault_is_reported():
    text = page(replace(gqa(), blocks=gqa().blocks[:3] + gqa().blocks[4:]))
    assert "block 2 stops at kbc 3, block 4 starts at 4: no block does KV step 3 of sequence 0, KV head 0" in text
    assert 'class="verdict fail"' in text


def test_a_stopped_kernel_is_reported_first():
    text = page(replace(gqa(), fault="misaligned: a vector at common.cuh:822"))
    assert '<div class="verdict fail"><b>fault</b> misaligned: a vector at common.cuh:822</div>' in text
    assert text.index("<b>fault</b>") < text.index("<h2>")


def test_two_side_by_side():
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


def test_two_equal_inspections_have_nothing_to_unfold():
    text = side_by_side_page(side_by_side(gqa(), gqa()))
    assert "<details>" not in text
    assert "none differs</p>" in text
