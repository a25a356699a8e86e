"""Versions in a capture."""

import numpy as np
import pytest

from fattn_probe.machine.run.provenance import driver, versions

CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12.2.0\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@x)\nGCC version:\n"
)


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.65.06"), ("GCC version:\n", None)])
def test_the_driver_s_version(text, version, tmp_path):
    assert driver(tmp_path / "version") is None
    (tmp_path / "version").write_text(text)
    assert driver(tmp_path / "version") == version


def test_versions_include_the_packages_that_generate_inputs():
    assert versions()["numpy"] == np.__version__
