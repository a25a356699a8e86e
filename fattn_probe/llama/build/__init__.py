"""Builds: compile a llama.cpp tree into programs that run its attention on the simulator or on a GPU."""

from fattn_probe.llama.build.ensure import at_rest, ensure, export, open_build, replacing_lock
from fattn_probe.llama.build.key import CPU_RUNNER, RUNNER, TEST_BACKEND_OPS, Build, BuildRequest, Manifest
from fattn_probe.llama.build.ninja import Progress

__all__ = [
    "CPU_RUNNER",
    "RUNNER",
    "TEST_BACKEND_OPS",
    "Build",
    "BuildRequest",
    "Manifest",
    "Progress",
    "at_rest",
    "ensure",
    "export",
    "open_build",
    "replacing_lock",
]
