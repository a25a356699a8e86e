"""Where a fork's checkout left its upstream, and the attention files that changed since; and the hook before a push."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fattn_probe.base.errors import InputError
from fattn_probe.cases.shipped import find
from fattn_probe.cli import app, hook
from fattn_probe.llama.source.git import changed_files, commit_source, merge_base, upstream_commit
from tests.llama.source.fake_index import git

CUDA = "ggml/src/ggml-cuda"
FILES = {
    "fattn.cu": '#include "fattn-vec.cuh"\n',
    "fattn-vec.cuh": '#include "common.cuh"\n',
    "common.cuh": '#include "ggml.h"\n',
    "softmax.cu": '#include "common.cuh"\n',
    "template-instances/fattn-vec-instance-f16-f16.cu": '#include "../fattn-vec.cuh"\n',
}


def write(folder, name, text):
    (folder / CUDA / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / CUDA / name).write_text(text)


def commit(folder, name="softmax.cu", text="// another\n"):
    write(folder, name, text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def fork(tmp_path):
    """A clone, on a branch of its own, of a repository with a few files."""
    upstream, folder = tmp_path / "upstream", tmp_path / "a fork @ home"
    for name, text in FILES.items():
        write(upstream, name, text)
    git(tmp_path, "init", "--quiet", upstream)
    commit(upstream)
    git(tmp_path, "clone", "--quiet", upstream, folder)
    git(folder, "switch", "--quiet", "--create=own")
    return folder


def test_attention_files_are_those_of_the_kernels_and_what_they_include(fork):
    base = merge_base(fork, "origin/master")
    assert changed_files(fork, base) == []
    for name in ("softmax.cu", "common.cuh", "fattn-new.cuh"):
        write(fork, name, "// changed\n")
    (fork / CUDA / "template-instances/fattn-vec-instance-f16-f16.cu").unlink()
    expected = ["common.cuh", "fattn-new.cuh", "template-instances/fattn-vec-instance-f16-f16.cu"]
    assert changed_files(fork, base) == expected, "in the working tree, with new files and deleted ones"
    assert changed_files(fork, base, commit(fork)) == expected
    commit(fork, "softmax.cu", "// more\n")
    assert changed_files(fork, git(fork, "rev-parse", "HEAD~1"), "HEAD") == []


def test_upstreams_own_commits_are_no_changes_of_a_fork(fork, tmp_path):
    base = git(fork, "rev-parse", "HEAD")
    assert upstream_commit(fork) == base, "the branch follows none: origin's"
    commit(tmp_path / "upstream", "fattn-vec.cuh", "// upstream\n")
    commit(fork, "fattn.cu", "// own\n")
    git(fork, "fetch", "--quiet")
    assert merge_base(fork, "origin/master") == upstream_commit(fork) == base
    assert changed_files(fork, base) == ["fattn.cu"]
    git(fork, "branch", "--set-upstream-to=origin/master", "--quiet")
    assert upstream_commit(fork) == base
    git(fork, "remote", "remove", "origin")
    assert upstream_commit(fork) is None and upstream_commit(tmp_path) is None


def test_a_commit_is_a_source_whatever_the_folder_is_called(fork):
    head = git(fork, "rev-parse", "HEAD")
    source = commit_source(fork / CUDA, head)
    assert source.startswith("git+file:///") and "%40" in source and source.endswith(f"@{head}")
    url = source.removeprefix("git+").removesuffix(f"@{head}")
    assert head in subprocess.run(["git", "ls-remote", url], check=True, capture_output=True, text=True).stdout


def test_what_is_missing_is_said(fork, tmp_path):
    with pytest.raises(InputError, match=r"has no branch or commit 'origin/main'; name one \(e.g. origin/master\)"):
        merge_base(fork, "origin/main")
    with pytest.raises(InputError, match=r"is not a git checkout with a commit HEAD"):
        merge_base(tmp_path, "origin/master")
    git(fork, "switch", "--quiet", "--orphan", "alone")
    commit(fork)
    with pytest.raises(InputError, match=r"no common ancestor in this checkout; .* fetch-depth: 0"):
        merge_base(fork, "origin/master")


@pytest.fixture
def ran(monkeypatch):
    """The command lines of the suites that the hook runs, each of which fails."""
    found = []

    def fails(words):
        found.append(words[2:])
        return 6, 0.0

    monkeypatch.setattr(hook, "run_attached", fails)
    return found


def push(monkeypatch, folder, *lines, **env):
    monkeypatch.chdir(folder / CUDA)
    return CliRunner().invoke(
        app, ["hook", "run", "quick", "origin"], input="".join(f"{line}\n" for line in lines), env=env
    )


def test_a_push_runs_the_suite_on_the_pushed_commit_if_it_changes_attention(fork, monkeypatch, ran):
    base, new = git(fork, "rev-parse", "HEAD"), "0" * 40
    other = commit(fork, "softmax.cu", "// own\n")
    for old in (base, new):
        assert push(monkeypatch, fork, f"refs/heads/own {other} refs/heads/own {old}").exit_code == 0
    assert push(monkeypatch, fork, f"(delete) {new} refs/heads/gone {other}").exit_code == 0
    assert ran == []
    own = commit(fork, "fattn-vec.cuh", "// own\n")
    commit(fork, "fattn.cu", "// not pushed\n")
    words = ["fattn_probe", "regress", str(find("suite", "quick")), "--exitfirst", "--source", commit_source(fork, own)]
    for old in (base, new):
        done = push(monkeypatch, fork, f"refs/heads/own {own} refs/heads/own {old}")
        assert done.exit_code == 6, "the push is refused"
        assert f"{own[:9]} changes attention files: fattn-vec.cuh" in done.stderr
    assert push(monkeypatch, fork, **{"PRE_COMMIT_FROM_REF": base, "PRE_COMMIT_TO_REF": own}).exit_code == 6
    assert ran == [words] * 3
    git(fork, "remote", "remove", "origin")
    assert "all, since no upstream is known" in push(monkeypatch, fork, f"x {own} x {new}").stderr


def test_one_command_installs_the_hook_and_no_other_is_replaced(fork, monkeypatch):
    monkeypatch.chdir(fork / CUDA)
    path = fork / ".git/hooks/pre-push"
    for _ in range(2):
        assert CliRunner().invoke(app, ["hook", "install"]).exit_code == 0
    assert f'exec "{sys.executable}" -m fattn_probe hook run quick "$@"' in path.read_text()
    assert path.stat().st_mode & 0o111
    path.write_text("#!/bin/sh\nexit 0\n")
    done = CliRunner().invoke(app, ["hook", "install"])
    assert isinstance(done.exception, InputError) and "add this line to it: exec" in str(done.exception)
    assert path.read_text() == "#!/bin/sh\nexit 0\n"
    monkeypatch.chdir(fork.parent)
    assert "not in a llama.cpp checkout" in str(CliRunner().invoke(app, ["hook", "install"]).exception)
