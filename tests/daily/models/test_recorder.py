"""What of a run is recorded: the budget, the sizes said before, the index."""

import json
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.op.blocks import QuantBlocks
from fattn_probe.daily.models.capture import LaunchLog, Recorder, expected_size
from fattn_probe.daily.models.recorded_op import INDEX, Index, Offer
from fattn_probe.daily.models.request import Prompt, Request
from fattn_probe.daily.models.show import ranges

MODEL = {"layers": 2, "steps": 3, "prompts": [[1, 2]]}


def recorder(tmp_path, **request):
    notes = list[str]()
    asked = Request(Path("model.gguf"), Prompt(tokens=2), **request)
    return Recorder(
        request=asked,
        folder=tmp_path,
        raw=tmp_path / "raw",
        launches=LaunchLog(tmp_path / "launches"),
        blocks=QuantBlocks(tmp_path),
        provenance={},
        kept=lambda capture: capture,
        note=notes.append,
        step=lambda step: None,
    ), notes


def offer(layer=0, step=0, size=100):
    return {"offer": {"layer": layer, "step": step, "part": 0, "phase": "prompt", "bytes": size, "most": 2 * size}}


def test_what_does_not_fit_the_budget_is_left_out(tmp_path):
    found, _ = recorder(tmp_path, budget=250)
    assert found.answer({"model": MODEL}) == "go"
    assert found.answer(offer(size=300)) == "no"
    assert found.answer(offer(layer=1, size=250)) == "yes"
    assert found.left_out == ["layer-00-step-0000"]


def test_sizes_are_said_once_and_first(tmp_path):
    found, notes = recorder(tmp_path, every=True)
    found.answer({"model": MODEL})
    found.answer(offer(size=1 << 20))
    found.answer(offer(layer=1))
    assert notes == ["2 layers in 3 steps: about 12 MiB at most"]


@pytest.mark.parametrize(
    ("request_", "step", "words"),
    [
        ({}, 1, "2 layers in 2 steps: about 400 B at most"),
        ({}, 2, "2 layers in 1 steps: about 200 B at most"),
        ({"layers": (1,)}, 1, "1 layers in 2 steps: about 200 B at most, of which --budget takes 150 B"),
    ],
)
def test_expected_sizes(request_, step, words):
    asked = Request(Path("m"), Prompt(tokens=2), budget=150 if request_ else 1 << 30, **request_)
    assert expected_size(asked, MODEL, Offer(0, step, 0, "prompt", 50, 100)) == words


def test_each_step_is_told(tmp_path):
    found, _ = recorder(tmp_path)
    steps = list[str]()
    found.step = steps.append
    found.answer({"model": MODEL})
    assert [found.answer({"step": number}) for number in (0, 2)] == ["go", "go"]
    assert steps == ["evaluating step 1 of 3", "evaluating step 3 of 3"]


def test_a_layer_that_the_model_lacks_ends_the_run(tmp_path):
    found, _ = recorder(tmp_path, layers=(5,))
    with pytest.raises(InputError, match="the model has layers 0 to 1, not 5"):
        found.answer({"model": MODEL})


def test_another_message_is_lost(tmp_path):
    with pytest.raises(LostError, match="said"):
        recorder(tmp_path)[0].answer({"else": 1})


def test_the_index_is_written_as_a_document_with_its_version(tmp_path):
    index = Index(False, {"model": {"file": "m.gguf"}}, [], ["layer-01-step-0000"], 0)
    index.write(tmp_path)
    found = json.loads((tmp_path / INDEX).read_text())
    assert found == json.loads(json.dumps(index.to_json()))
    assert (found["version"], found["complete"], found["left_out"]) == (1, False, ["layer-01-step-0000"])
    assert [path.name for path in tmp_path.iterdir()] == [INDEX]


def test_ranges():
    assert ranges({7, 0, 5, 6}) == "0, 5-7"
    assert ranges([]) == ""
