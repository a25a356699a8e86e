import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.llama.launch.architecture import arch_number, copy_bytes, cuda_arch, fast_f16, generation_of, nvcc_arch


@pytest.mark.parametrize(("text", "number"), [("90", 90), ("9.0", 90), ("120a", 120), ("12.1", 121), (" 8.9\n", 89)])
def test_every_spelling_has_one_number(text, number):
    assert (arch_number(text), cuda_arch(text)) == (number, 10 * number)


@pytest.mark.parametrize("text", ["", "sm_90", "9", "[N/A]", "1200"])
def test_other_text_is_no_architecture(text):
    with pytest.raises(InputError, match="not a compute capability"):
        arch_number(text)


def test_compute_capabilities_in_nvccs_form():
    assert [nvcc_arch(text) for text in ("9.0\n", "8.9", "12.0", "12.1")] == ["90", "89", "120a", "121a"]


def test_generations():
    found = [generation_of(arch) for arch in (70, 75, 80, 89, 90, 100, 120)]
    assert [g.k_half for g in found] == [4, 8, 16, 16, 16, 16, 16]
    assert [g.columns for g in found] == [32, 16, 16, 16, 16, 16, 16]
    assert [fast_f16(arch) for arch in (52, 60, 61, 62, 70)] == [False, True, False, True, True]
    assert [copy_bytes(arch) for arch in (61, 70)] == [8, 16]
