"""The words of `capture`: prompts, layers, sizes."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.daily.models.program import Prompt, Request, check_layers, parse_layers, parse_size, size_text

REQUEST = Request(Path("model.gguf"), Prompt(tokens=7, seed=3))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("", ()), ("0", (0,)), ("0,5-7", (0, 5, 6, 7)), (" 3 , 1-2,2", (1, 2, 3)), ("4-4", (4,)), ("5,", (5,))],
)
def test_layers_are_numbers_and_ranges(text, layers):
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["x", "-1", "1-", "1-2-3", "٣", "1.5", "0x1", "999999999999"])
def test_another_text_is_no_layer(text):
    with pytest.raises(InputError, match="is not a layer or a range of layers, such as 0,5-7"):
        parse_layers(text)


def test_a_range_that_ends_before_it_starts_is_refused():
    with pytest.raises(InputError, match="the range 7-5 ends before it starts"):
        parse_layers("0,7-5")


def test_a_layer_that_the_model_lacks_is_named():
    check_layers(replace(REQUEST, layers=(0, 23)), 24)
    with pytest.raises(InputError, match=r"the model has layers 0 to 23, not 24, 30"):
        check_layers(replace(REQUEST, layers=(0, 24, 30)), 24)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2G", 2 << 30), ("500M", 500 << 20), ("1.5k", 1536), ("4096", 4096), ("1 GiB", 1 << 30), ("3MB", 3 << 20)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text.replace(" ", "")) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "2X", "nan", "inf", "1e400"])
def test_another_text_is_no_size(text):
    with pytest.raises(InputError, match="not a size such as 500M or 2G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(5, "5 B"), (1536, "1.5 KiB"), (1020 << 10, "1,020 KiB"), (3 << 30, "3 GiB")]
)
def test_a_size_in_words(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize("prompt", [{}, {"tokens": 0}, {"text": ""}])
def test_a_prompt_has_tokens(prompt):
    with pytest.raises(InputError, match="the prompt has 0 tokens"):
        Prompt(**prompt)


def test_a_prompt_is_a_text_or_random():
    with pytest.raises(InputError, match="choose one"):
        Prompt("text", 5)


def test_the_words_of_a_request():
    words = replace(REQUEST, type_V="q8_0", layers=(1, 4), every=True).words(threads=6)
    pairs = dict(pairwise(words))
    assert (pairs["--tokens"], pairs["--seed"], pairs["--threads"]) == ("7", "3", "6")
    assert (pairs["--type-k"], pairs["--type-v"]) == ("f16", "q8_0")
    assert words[words.index("--every") :] == ["--every", "--layer", "1", "--layer", "4"]
    assert not {"--every", "--no-flash-attn"} & set(REQUEST.words(threads=1))
    assert "--no-flash-attn" in replace(REQUEST, flash_attn=False).words(threads=1)
