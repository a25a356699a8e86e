"""Commits from git, whatever the user's configuration says."""

import os
from pathlib import Path

import pytest

from fattn_probe.base.process import run
from fattn_probe.llama.source import git, resolve
from tests.llama.source.fake_index import FATTN, tagged
from tests.made import executable


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The user's own folder, and nothing else that configures git."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in [name for name in os.environ if name.startswith(("GIT_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


@pytest.fixture
def wanted(tmp_path, home):
    return tagged(tmp_path / "wanted", "// wanted")


def text_of(folder, ref="b4242"):
    """The kernels' file as fetched."""
    return (resolve(f"git+file://{folder}@{ref}").root / FATTN).read_text()


def test_another_repository_in_its_place(wanted, tmp_path, home):
    other = tagged(tmp_path / "other", "// other")
    (home / ".gitconfig").write_text(f'[url "file://{other}"]\n\tinsteadOf = file://{wanted}\n')
    assert text_of(wanted).startswith("// wanted\n")


def test_hooks_do_not_run(wanted, tmp_path, home):
    hook = executable(tmp_path / "hook", f'#!/bin/sh\ntouch {tmp_path}/ran\nexec "$@"\n')
    (home / ".gitconfig").write_text(f"[uploadpack]\n\tpackObjectsHook = {hook}\n")
    assert text_of(wanted).startswith("// wanted\n")
    assert not (tmp_path / "ran").exists()


def test_attributes_and_filters_change_nothing(wanted, home):
    (home / ".config/git").mkdir(parents=True)
    (home / ".config/git/attributes").write_text(
        "*.cu filter=mine\nfattn-common.cuh export-ignore\n*.h text eol=crlf\n"
    )
    (home / ".gitconfig").write_text('[filter "mine"]\n\tsmudge = sed s/wanted/other/\n[core]\n\tautocrlf = true\n')
    plain = resolve(str(wanted))
    assert text_of(wanted).startswith("// wanted\n")
    assert resolve(f"git+file://{wanted}@b4242").digest == plain.digest


def test_within_a_hook_of_another_repository(wanted, tmp_path, monkeypatch):
    """git sets GIT_DIR for its hooks and aliases."""
    other = tagged(tmp_path / "other", "// other", "b7")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    assert text_of(wanted).startswith("// wanted\n")
    assert not (other / ".git/FETCH_HEAD").exists()
    assert resolve(str(wanted)).build_number == "4242"


CONFIG = r"""
[http]
    proxy = http://proxy:8080
[http "https://host/a.b \"c\\"]
    extraHeader = "Authorization: \"x\\y\"	z"
[credential]
    helper =
    helper = !mine
[safe]
    directory = *
[include]
    path = more
[alias]
    x = y
[core]
    editor = vi
"""


def test_how_a_repository_is_reached_is_the_users(home, monkeypatch):
    (home / ".gitconfig").write_text(CONFIG)
    (home / "more").write_text("[http]\n\tsslCAInfo = /ca.pem\n\tsslVerify\n")
    monkeypatch.setenv("GIT_SSL_CERT", "/cert.pem")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "http.userAgent")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "me")
    with git.environment() as env:
        listing = run(["git", "-C", "/", "config", "--list", "-z"], env=env).stdout
        said = run(["sh", "-c", "env"], env=env).stdout
    assert set(listing.strip("\0").split("\0")) == {
        f"core.hookspath\n{os.devnull}",
        f"core.attributesfile\n{os.devnull}",
        "http.proxy\nhttp://proxy:8080",
        'http.https://host/a.b "c\\.extraheader\nAuthorization: "x\\y"\tz',
        "credential.helper\n",
        "credential.helper\n!mine",
        "safe.directory\n*",
        "http.sslcainfo\n/ca.pem",
        "http.sslverify\ntrue",
        "http.useragent\nme",
    }
    assert "GIT_SSL_CERT=/cert.pem" in said.splitlines()
    assert not Path(env["GIT_CONFIG_GLOBAL"] or "").exists(), "it may have a password"
