"""A trace as records: each step with the state of the tile's last query in the head under study."""

import numpy as np

from fattn_probe.lab.study.algorithms import run
from fattn_probe.lab.study.problem import RowState, StudyStep, rows_of, summary_of
from tests.lab.study.drawn_ops import made_op, subject_of

SAME = slice(0, 2)


def step(before, maximum, total, what="tile", heads=slice(0, 1)):
    state = RowState(*(np.array(values, float) for values in (before, maximum, total)))
    return StudyStep(what, SAME, slice(4, 8), state, 10, 3, 0, heads, True)


def test_a_row_without_earlier_sums_does_not_count_as_rescaled():
    first = step([-np.inf, -np.inf], [1, 2], [1, 1])
    second = step([1, 2], [3, 2], [2, 3])
    late = step([-np.inf, 2], [1, 4], [1, 3])  # the mask hid everything from the first row until now
    rows = rows_of([first, second, late], 0)
    assert [(row.rose, row.again) for row in rows] == [(0, 0), (1, 2), (1, 1)]
    assert [row.rescale for row in rows] == [None, 1.0, np.exp(-2)]
    found = summary_of([first, second, late])
    assert (found.tiles, found.hidden, found.rose, found.rows) == (3, 0, 2, 3)


def test_a_row_is_the_tiles_last_query():
    (row,) = rows_of([step([0, 0], [5, 6], [7, 8])], 0)
    assert (row.step, row.queries, row.kv, row.maximum, row.total) == (1, (0, 2), (4, 8), 6.0, 8.0)
    assert (row.reads, row.writes) == (10, 3)


def test_only_the_studied_head_of_several_is_shown():
    both = step([[0, 0], [1, 1]], [[0, 0], [9, 9]], [[1, 1], [2, 2]], heads=slice(4, 6))
    assert [rows_of([both], head)[0].maximum for head in (4, 5)] == [0.0, 9.0]
    assert [rows_of([both], head)[0].rose for head in (4, 5)] == [0, 2]


def test_every_head_of_a_stream_k_tile_has_the_maximum_it_has_alone():
    op = made_op(0, n_head_kv=2, group=3, n_q=4, n_kv=6)
    for head in range(6):
        together = rows_of(run("stream-k", subject_of(op, head=head, B_c=3, blocks=1)).trace, head)
        alone = rows_of(run("fa2", subject_of(op, head=head, B_c=3)).trace, 0)
        np.testing.assert_allclose(
            [row.maximum for row in together if row.what == "tile"],
            [row.maximum for row in alone if row.what == "tile"],
            rtol=1e-14,
        )
