"""The table of `compare --kernel`, the times and their intervals."""

import dataclasses
import random
import re

import numpy as np
import pytest

from fattn_probe.cases.device import Target
from fattn_probe.lab.kernels.compiled import shipped
from fattn_probe.lab.kernels.extras import Attended
from fattn_probe.lab.kernels.names import Package
from fattn_probe.lab.kernels.show import Speed, document, render
from fattn_probe.lab.profile.roofline import Roof
from tests.made import shown

from .test_contenders import Exact, case_of, rows


def timed(name="exact", seconds=(1e-3, 2e-3, 3e-3)):
    (row,) = rows([Exact(name=name)], case_of())
    judgement = dataclasses.replace(row.judgement, on="gpu", seconds=seconds)
    return dataclasses.replace(row, target=Target("cuda", None, 0), judgement=judgement)  # sim:h200's figures stay


def drawn(found, width=120):
    return shown(render(found, [shipped("naive")], maps=False), width=width)


def test_times_of_a_gpu_are_shown_with_their_interval():
    said = drawn([timed("one"), timed("two", (4e-3,))])
    assert "2000 µs" in said and "1000 to 3000" in said and "4000 µs" in said
    assert "TFLOP/s" in said and "algorithm of naive: fattn-probe study scenario --algorithm fa2" in said
    assert re.search(r"\d %", said) and "tensor cores and memory" in said
    assert said.count("scenario  ") == 1  # the case stands once above its kernels


@pytest.mark.parametrize(("target", "said"), [(Target("cuda", None, 0), False), (Target("cpu"), True)])
def test_where_a_package_ran_is_said_unless_it_was_the_gpu(target, said):
    package = Package("exact", lambda *_, **__: Attended(np.zeros(1)), "on this computer's CPU")
    row = dataclasses.replace(timed(), target=target)
    assert ("exact: on this computer's CPU" in shown(render([row], [package], maps=False))) == said


def test_the_share_of_the_roofline():
    roof = Roof(flops=1e12, bandwidth=1e9)
    assert Speed((2.0,), flop=1e9, nbytes=1e9).share(roof) == pytest.approx(0.5)  # 1 flop a byte: 1e9 a second at most
    assert Speed((2.0,), flop=1e12, nbytes=1.0).share(roof) == pytest.approx(0.5)


def test_without_times_there_is_no_column_for_them():
    assert "TFLOP/s" not in drawn(rows([Exact()], case_of()))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut(width):
    said = drawn([timed("kernel.cu:my_attention")], width)
    assert "kernel.cu:my_attention" in said and "pass" in said
    assert all(len(line) <= width for line in said.splitlines())


def test_the_document_has_each_kernel_s_times_and_launches():
    (row,) = document([timed()])["rows"]
    assert row["contender"] == "exact" and row["seconds"] == [1e-3, 2e-3, 3e-3]
    assert row["launches"] == [] and row["status"] == "pass"
    assert row["flop"] == 2 * 2 * 5 * 70 * 128
    assert row["bytes"] == 4 * 2 * 5 * 64 + 2 * 2 * 2 * 70 * 64 + 4 * 2 * 5 * 64


def test_the_interval_holds_the_median_as_often_as_it_says():
    draw = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = Speed(tuple(draw.random() for _ in range(20)), 1, 1).interval
        held += low <= 0.5 <= high
    assert 0.94 <= held / 2000 <= 0.99
    assert Speed((3.0, 1.0), 1, 1).interval == (1.0, 3.0)
