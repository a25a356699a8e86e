import json
from dataclasses import replace
from pathlib import Path

import pytest

from fattn_probe.base.digest import seal
from fattn_probe.base.errors import InputError, MachineError
from fattn_probe.base.fingerprint import Fingerprint
from fattn_probe.llama.build.ensure import export, is_complete, open_build
from fattn_probe.llama.build.key import MANIFESTS, Build, BuildRequest, Contents, Manifest, folder_of, key_of
from fattn_probe.llama.build.toolchain import Toolchain, version_of
from tests.llama.build.tree import LIBLLAMA, make_tree
from tests.llama.source.fake_index import write_tree

GXX = Toolchain("gcc", "g++", ("g++ 12",), "x86_64", Path("/include"))
CONTENTS = Contents(("mma 64,64,8,8", "tile 64,64"), (), ("fattn-runner",))
COMPILED = Fingerprint(
    tree="0" * 64, patches=(("seed", "1" * 64),), engine="sim", flavour="release", arch="90", compilers=("g++ 12",)
)
MANIFEST = Manifest("path:small", "11549", COMPILED, CONTENTS, "2026-10-01T00:00:00+00:00")
FIRST_VERSION = {
    **{
        name: getattr(COMPILED, name)
        for name in ("tree", "engine", "flavour", "arch", "sanitize", "quants", "compilers")
    },
    **{"source": "path:small", "build_number": "11549", "patches": ["seed"], "stamp": "", "date": MANIFEST.date},
    "contents": {"kernels": ["mma 64,64,8,8", "tile 64,64"], "programs": ["fattn-runner"]},
}


@pytest.mark.parametrize(("more", "text"), [({"patch_digests": ["1" * 64]}, "1" * 64), ({}, "")])
def test_a_manifest_of_version_1_is_read(more, text):
    expected = replace(MANIFEST, fingerprint=replace(COMPILED, patches=(("seed", text),)))
    assert MANIFESTS.parse(json.dumps(FIRST_VERSION | more), "here") == expected
    for damaged in (FIRST_VERSION | {"patches": 7}, {"version": 1}):
        with pytest.raises(InputError, match="here: not a build's manifest"):
            MANIFESTS.parse(json.dumps(damaged), "here")


@pytest.mark.parametrize(
    ("source", "patches", "released"),
    [
        ("pypi:xllamacpp==2026.10.11549", (), True),
        ("pypi:xllamacpp==0.2.8", (), True),
        ("git:b11549", (), True),
        ("pypi:xllamacpp==2026.10.11549", ("seed",), False),
        ("pypi:llama-cpp-python==0.3.30", (), False),  # its build number is not known
        ("git:master", (), False),
        ("git+https://host/fork@b11549", (), False),
        ("/home/me/llama.cpp", (), False),
    ],
)
def test_only_a_release_without_patches_has_the_kernels_of_its_build_number(source, patches, released):
    compiled = replace(COMPILED, patches=tuple((name, "") for name in patches))
    assert replace(MANIFEST, source=source, fingerprint=compiled).released is released


def folder(request, compilers=GXX.versions):
    return folder_of(request, key_of(request, compilers))


@pytest.mark.parametrize(
    "other",
    [{"engine": "cuda"}, {"flavour": "debug"}, {"arch": "89"}, {"sanitize": ("address",)}, {"quants": ("f16-q8_0",)}],
)
def test_every_field_of_the_key_changes_the_folder(tmp_path, other):
    request = BuildRequest(make_tree(tmp_path))
    assert folder(request) != folder(replace(request, **other))


def test_compilers_and_checkouts_that_share_a_cache_have_folders_of_their_own(tmp_path, monkeypatch):
    request = BuildRequest(make_tree(tmp_path))
    ours = folder(request)
    assert ours != folder(request, ("g++ 13",))
    monkeypatch.setattr("fattn_probe.llama.build.key.own_stamp", lambda: "other")
    theirs = folder(request)
    assert ours != theirs
    assert ours.name.rpartition("-")[0] == theirs.name.rpartition("-")[0]


def test_the_folder_can_be_read(tmp_path):
    request = BuildRequest(make_tree(tmp_path), "cuda", "debug", "120a")
    assert folder(request).name.startswith("b11549-cuda-sm120a-debug-")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sanitize": ("thread",)}, "sanitizer 'thread'"),
        ({"arch": "sm_90"}, "arch 'sm_90'"),
        ({"engine": "cuda", "sanitize": ("address",)}, "--sanitize is for the sim engine"),
        ({"engine": "cuda", "flavour": "check"}, "the check flavour needs the sim engine"),
        ({"flavour": "check", "sanitize": ("address",)}, "the check flavour cannot be combined with the address"),
    ],
)
def test_wrong_requests_are_refused(tmp_path, fields, message):
    with pytest.raises(InputError, match=message):
        BuildRequest(make_tree(tmp_path), **fields)


def test_contents_only_grow_and_a_build_is_complete_if_it_has_all():
    union = CONTENTS.union(Contents(("mma 64,64,8,8", "vec 64,F,F"), ("scale.cu",), (), True, dry=True))
    assert union == Contents(("mma 64,64,8,8", "tile 64,64", "vec 64,F,F"), ("scale.cu",), ("fattn-runner",), True)
    assert is_complete(MANIFEST, Contents(("tile 64,64",), (), ("fattn-runner",)))
    assert not is_complete(MANIFEST, Contents(("tile 80,80",)))
    assert not is_complete(MANIFEST, Contents((), ("scale.cu",)))
    assert not is_complete(MANIFEST, Contents((), (), ("test-backend-ops",)))
    assert not is_complete(MANIFEST, Contents(full=True))
    assert is_complete(MANIFEST, Contents(dry=True))
    assert not is_complete(replace(MANIFEST, contents=replace(CONTENTS, dry=True)), CONTENTS)
    assert is_complete(replace(MANIFEST, contents=replace(CONTENTS, full=True)), Contents(("tile 80,80",)))


@pytest.fixture
def exported(tmp_path):
    """A build that was exported to tmp_path / "copy"."""
    for name in ("bin/fattn-runner", "lib/libggml-base.so", "obj/x.o", "overlay/x.cu"):
        (tmp_path / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "build" / name).write_text("some bytes")
    (tmp_path / "build/manifest.json").write_text(MANIFESTS.text(MANIFEST))
    seal(tmp_path / "build")
    return export(Build(tmp_path / "build", MANIFEST), tmp_path / "copy").folder


@pytest.mark.usefixtures("exported")
def test_an_exported_build_is_opened_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy = open_build(Path("copy"))
    assert copy.manifest == MANIFEST
    assert copy.runner == tmp_path / "copy/bin/fattn-runner"
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "bin", "lib", "manifest.json", "overlay", "seal.json", "seen.json",
    ]  # fmt: skip
    with pytest.raises(InputError, match="already exists; choose a new folder"):
        export(copy, tmp_path / "copy")
    with pytest.raises(InputError, match="has no test-backend-ops"):
        copy.program("test-backend-ops")


@pytest.mark.parametrize("name", ["bin/fattn-runner", "lib/libggml-base.so", "overlay/x.cu"])
def test_a_damaged_export_is_not_run(exported, name):
    (exported / name).write_text("same bytes")
    with pytest.raises(InputError, match=rf"is damaged \({name}\): build and export it again"):
        open_build(exported)
    (exported / "seal.json").unlink()
    with pytest.raises(InputError, match="has no record of its contents"):
        open_build(exported)


def test_a_build_that_changes_while_it_is_exported_is_not_recorded_as_it_is(exported, tmp_path):
    (tmp_path / "build/bin/fattn-runner").write_text("same bytes")
    with pytest.raises(MachineError, match=r"the build changed while it was copied \(bin/fattn-runner\): run this"):
        export(Build(tmp_path / "build", MANIFEST), tmp_path / "another")
    assert not (tmp_path / "another").exists()


def test_a_folder_without_a_manifest_is_not_a_build(tmp_path):
    with pytest.raises(InputError, match="not a fattn-probe build"):
        open_build(tmp_path)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.88\n", "nvcc V13.0.88"),
        ("g++ (Debian 12.2.0-14) 12.2.0\nCopyright\n", "g++ (Debian 12.2.0-14) 12.2.0"),
    ],
)
def test_compiler_versions(text, version, monkeypatch):
    monkeypatch.setattr("fattn_probe.llama.build.toolchain.run", lambda words: type("Ran", (), {"stdout": text}))
    assert version_of(text) == version


def test_a_build_has_the_libllama_of_its_tree(tmp_path):
    tree = make_tree(tmp_path)
    wanted = Contents(programs=("fattn-runner", "fattn-capture"), architectures=("qwen2.cpp",))
    assert wanted.for_tree(tree) == Contents(programs=("fattn-runner",))
    write_tree(tmp_path, LIBLLAMA)
    first = wanted.for_tree(tree)
    assert (first.programs, first.architectures) == (wanted.programs, wanted.architectures)
    (tmp_path / "src/llama.cpp").write_text("int other;\n")
    second = wanted.for_tree(tree)
    assert len({"", first.libllama, second.libllama}) == 3
    made = replace(MANIFEST, contents=first)
    assert is_complete(made, first)
    assert is_complete(made, Contents(programs=("fattn-runner",)))
    assert not is_complete(made, second)
    assert not is_complete(made, replace(first, architectures=("llama.cpp",)))
    assert first.union(second).libllama == second.libllama
    assert Contents(programs=("fattn-runner",)).for_tree(tree).libllama == ""
