import io

import pytest
from rich.console import Console

from fattn_probe.base.errors import InputError
from fattn_probe.llama.build.command import announced, find_kernel, status_line
from fattn_probe.llama.build.ninja import Progress
from tests.llama.build.tree import make_tree


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mma 64,64,8,8", "mma 64,64,8,8"),
        ("vec 64,f16,q8_0", "vec 64,GGML_TYPE_F16,GGML_TYPE_Q8_0"),
        ("vec 64, GGML_TYPE_F16, GGML_TYPE_Q8_0", "vec 64,GGML_TYPE_F16,GGML_TYPE_Q8_0"),
    ],
)
def test_a_kernel_is_found_by_its_name(tmp_path, text, name):
    assert find_kernel(make_tree(tmp_path), text).name == name


def test_an_unknown_kernel_is_answered_with_those_of_its_head_size(tmp_path):
    with pytest.raises(InputError) as raised:
        find_kernel(make_tree(tmp_path), "mma 64,64,8,1")
    assert "it has mma 64,64,8,8" in str(raised.value)
    assert "mma 80,80" not in str(raised.value)


def test_the_status_line():
    assert status_line(Progress(5, 20, "fattn.cu", 12.6)).plain.endswith(" 5/20 0:13 fattn.cu")
    line = status_line(Progress(5, 20, "fattn-probe-vec-128-f16-q8_0.cu", 62, 80.2)).plain
    assert line.endswith(" 5/20 1:02, about 1:20 left vec 128,f16,q8_0")


def test_the_status_line_fits_60_columns():
    progress = Progress(150, 152, "fattn-probe-mma-576-512-16-16.cu", 701.0, 600.0)
    assert len(status_line(progress).plain) <= 60


def test_without_a_terminal_only_the_title_is_printed():
    output = io.StringIO()
    report = announced(Console(file=output), "Building b11549")
    report(Progress(0, 24, "fattn.cu", 0.0))
    report(Progress(1, 24, "convert.cu", 1.0))
    assert output.getvalue() == "Building b11549: 24 steps\n"
