"""Which of upstream's cases `inspect --program test-backend-ops` takes."""

from types import SimpleNamespace
from typing import Any

import pytest

from fattn_probe.base.errors import InputError, LostError
from fattn_probe.cases.device import Target
from fattn_probe.daily.inspect import upstream
from fattn_probe.daily.ops.parse import OpResult, OpsReport

CASE = "FLASH_ATTN_EXT(hsk=64)"


def listing(status, **other):
    results = (OpResult(CASE, status),)
    return OpsReport(("test-backend-ops", "support"), results, None, "NVIDIA H200", 1.0, **other)


def choose(monkeypatch, report):
    monkeypatch.setattr(upstream, "run_ops_on", lambda *words, **options: report)
    session = SimpleNamespace(
        build_for=lambda target, program: SimpleNamespace(test_backend_ops="test-backend-ops"), env=lambda *words: {}
    )
    inspector: Any = SimpleNamespace(session=session)
    upstream.inspect_upstream(inspector, "hsk=64", Target("cuda"))


def test_a_case_that_the_device_does_not_support(monkeypatch):
    with pytest.raises(InputError, match="supports none of the 1 cases"):
        choose(monkeypatch, listing("not-supported"))


def test_a_listing_that_did_not_end_is_lost(monkeypatch):
    with pytest.raises(LostError, match="silent for 600 s"):
        choose(monkeypatch, listing("lost", stopped="silent for 600 s"))
