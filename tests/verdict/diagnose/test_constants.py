"""Each number of a diagnosis names the test that pins it, or says that none is known."""

import re
from pathlib import Path

import numpy as np

from fattn_probe.verdict.diagnose import constants
from fattn_probe.verdict.diagnose.row import AttentionRow, WrongRow

UNPINNED = 14


def test_each_constant_names_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parents[2].rglob("test_*.py"))
    text = Path(constants.__file__).read_text()
    named = dict(re.findall(r"^([A-Z][A-Z0-9_]+) = .*?  # (test_\w+|unpinned)", text, re.MULTILINE))
    assert list(named.values()).count("unpinned") <= UNPINNED
    assert set(named) == {name for name in vars(constants) if name.isupper()}
    assert [test for test in named.values() if test != "unpinned" and f"def {test}(" not in tests] == []


def test_a_search_has_a_limit_of_work():
    K = np.zeros((1 << 14, 128))
    row = WrongRow(AttentionRow(K, K, K[:, 0], K[:, 0], 0.0, None), None, K[0], K[0], K[0] > 0)
    assert (row.affords(64), row.affords(65)) == (True, False)
