"""The architectures of a tree and of a model's file."""

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.op.gguf_file import u32, write_gguf
from fattn_probe.daily.models.architectures import architecture_of, architectures, check_architecture, files_of
from fattn_probe.llama.build.sources import ARCHITECTURES
from fattn_probe.llama.source import DEFAULT_SOURCE, resolve
from tests.daily.models.make import MODELS, make_model


@pytest.fixture(scope="module")
def tree():
    return resolve(DEFAULT_SOURCE, models=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(MODELS["jamba"], tmp_path_factory.mktemp("models") / "jamba.gguf")


def test_the_file_says_its_architecture(model):
    assert architecture_of(model) == "jamba"


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.5, 0.999])
def test_a_file_that_is_cut_is_refused(model, share, tmp_path):
    data = model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"cut\.gguf: truncated, or not a GGUF file"):
        architecture_of(cut)


def test_a_model_of_the_same_seed_is_the_same(model, tmp_path):
    assert make_model(MODELS["jamba"], tmp_path / "again.gguf").read_bytes() == model.read_bytes()
    assert make_model(MODELS["jamba"], tmp_path / "other.gguf", seed=2).read_bytes() != model.read_bytes()


@pytest.mark.parametrize(
    ("architecture", "file"),
    [
        ("llama", "llama.cpp"),
        ("qwen2", "qwen2.cpp"),
        ("gpt-oss", "openai-moe.cpp"),
        ("deepseek2", "deepseek2.cpp"),
        ("jamba", "jamba.cpp"),
    ],
)
def test_the_file_of_an_architecture(tree, architecture, file):
    assert files_of(tree, architecture) == (file,)


def test_nearly_all_architectures_have_a_file(tree):
    known = {name: files_of(tree, name) for name in architectures(tree)}
    assert len(known) > 100
    assert sum(not files for files in known.values()) <= 3
    assert all((tree.root / ARCHITECTURES / file).is_file() for files in known.values() for file in files)


def test_an_architecture_that_the_source_does_not_know(tree, model):
    check_architecture(tree, model, "jamba")
    with pytest.raises(InputError, match=r"knows \d+ architectures, but not 'qwen22'; the nearest: qwen2"):
        check_architecture(tree, model, "qwen22")


def test_a_recorded_op_is_no_model(tmp_path):
    """It was a model of an architecture `fattn-probe`, which no llama.cpp knows."""
    path = tmp_path / "op.gguf"
    write_gguf(path, {"fattn.version": u32(1)}, {})
    with pytest.raises(InputError, match=r"op.gguf: not a model, but a recorded op of fattn-probe, which `compare`"):
        architecture_of(path)
