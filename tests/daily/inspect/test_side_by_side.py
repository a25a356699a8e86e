import json
from dataclasses import replace

from markupsafe import escape

from fattn_probe.cases.device.origin import Method, Origin, legend
from fattn_probe.daily.inspect.facts import Facts
from fattn_probe.daily.inspect.view.page import side_by_side_page
from fattn_probe.daily.inspect.view.side_by_side import (
    DecisionDifference,
    FactDifference,
    render_side_by_side,
    said,
    side_by_side,
    side_by_side_json,
)
from tests import made
from tests.daily.inspect.made_facts import gqa, stream_k


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


def shown(a: Facts, b: Facts, width: int = 80) -> list[str]:
    text = made.shown(render_side_by_side(side_by_side(a, b)), width=width)
    return [line.rstrip() for line in text.splitlines()]


def test_differences_in_the_order_of_the_first_facts():
    found = side_by_side(gqa(), on_rtx4070()).facts
    assert [row.fact for row in found] == ["blocks_num", "nsm", "fixup", "kernels", "blocks"]
    assert found[1] == FactDifference("nsm", 132, 46)


def test_a_fact_that_one_lacks_differs():
    less = replace(gqa(), launch={name: value for name, value in gqa().launch.items() if name != "nsm"})
    assert side_by_side(gqa(), less).facts == (FactDifference("nsm", 132, None),)
    assert side_by_side(less, gqa()).facts == (FactDifference("nsm", None, 132),)


def test_equal_facts_are_counted():
    both = side_by_side(gqa(), on_rtx4070())
    assert said(both) == f"{len(gqa().flat()) - 5} facts are equal, 5 differ"
    assert said(side_by_side(gqa(), gqa())) == f"{len(gqa().flat())} facts are equal, none differs"


def test_an_occupancy_that_is_not_known_is_said():
    """Two GPUs may differ for no other reason."""
    facts = on_rtx4070()
    assumed = replace(facts, kernels=tuple(replace(one, origin=Origin(Method.ASSUMED)) for one in facts.kernels))
    line = f"gqa on sim:rtx4070: max_blocks_per_sm {legend([Origin(Method.ASSUMED)])[0]}"
    assert line in shown(gqa(), assumed, 250)
    assert str(escape(line)) in side_by_side_page(side_by_side(gqa(), assumed))
    assert "max_blocks_per_sm" not in "".join(shown(gqa(), facts))


def test_decisions_that_differ():
    both = side_by_side(gqa(), on_rtx4070())
    assert both.decisions == (DecisionDifference("ggml_cuda_get_best_fattn_kernel", "gqa_opt_applies", "yes", "no"),)
    nothing = replace(gqa(), choice=replace(gqa().choice, decisions=()))
    assert [row.b for row in side_by_side(gqa(), nothing).decisions] == ["not asked", "not asked"]


def test_in_a_terminal():
    lines = shown(gqa(), on_rtx4070())
    assert lines[0] == "gqa on sim:h200  |  gqa on sim:rtx4070"
    assert "nsm          132                                 46" in lines
    assert "Division of work: gqa on sim:rtx4070" in lines
    assert "      1 │4          ┃5          ┃6          ┃7          │" in lines
    assert "      1 │1                                              │" in lines
    assert max(map(len, lines)) <= 80


def test_two_sources_on_one_device_are_told_apart():
    older = replace(gqa(), about={**gqa().about, "source": "pypi:xllamacpp==0.2.8"})
    titles = side_by_side(gqa(), older).titles
    assert titles == ("gqa on sim:h200, pypi:xllamacpp==2026.10.11549", "gqa on sim:h200, pypi:xllamacpp==0.2.8")


def test_json():
    document = json.loads(json.dumps(side_by_side_json(side_by_side(gqa(), on_rtx4070()))))
    assert document["a"]["device"] == "sim:h200"
    assert document["facts"][0] == {"fact": "blocks_num", "a": [8, 1, 1], "b": [2, 1, 1]}
    assert document["decisions"][0]["condition"] == "gqa_opt_applies"
    assert document["equal"] == len(gqa().flat()) - 5
