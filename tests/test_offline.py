"""`scripts/offline`: what it packs works where there is no network."""

import os
import shutil
import subprocess

import pytest

from fattn_probe.llama.build.ccache import ccache_folder
from tests.made import ROOT


def without_network():
    """The words before a command that take its network away; none where the kernel does not allow that."""
    words = ["unshare", "--map-root-user", "--net"]
    works = (
        shutil.which("unshare") and subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    )
    return words if works else []


@pytest.mark.build
@pytest.mark.network
@pytest.mark.night
def test_a_packed_folder_plans_a_launch_without_a_network(tmp_path):
    subprocess.run([ROOT / "scripts/offline", tmp_path / "pack"], check=True, capture_output=True)
    moved = (tmp_path / "pack").rename(tmp_path / "node")
    (tmp_path / "home").mkdir()
    does = f". {moved}/activate && fattn-probe --version && fattn-probe plan gqa --on sim:h200"
    # Another cache, but objects by content: it plans by the same host code.
    objects = {"CCACHE_DIR": str(ccache_folder())}
    environment = {"HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"], **objects}
    command = [*without_network(), "bash", "-c", does]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fattn-probe ")
    assert "flash_attn_ext_f16" in done.stdout


def test_too_few_words_print_the_help():
    done = subprocess.run([ROOT / "scripts/offline"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "scripts/offline FOLDER [PYTHON [EXTRAS]]" in done.stderr
