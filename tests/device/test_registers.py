import json
from collections import Counter

import pytest

from fattn_probe.device import measured_registers, merge
from fattn_probe.device.registers import Registers
from fattn_probe.errors import InputError

KERNEL = "flash_attn_ext_f16<64, 64, 8, 8, false, false, false>"


def test_merge_then_read(tmp_path):
    path = tmp_path / "registers.json"
    path.write_text("{}")
    path.write_text(merge([Registers(11549, "90", KERNEL, 168)], path))
    path.write_text(merge([Registers(11549, "90", KERNEL, 170), Registers(11549, "89", KERNEL, 128)], path))
    assert measured_registers("90", "11549", path) == {KERNEL: 170}
    assert measured_registers("89", "11549", path) == {KERNEL: 128}
    assert measured_registers("75", "11549", path) == {}


def test_the_nearest_build_stands_in(tmp_path):
    path = tmp_path / "registers.json"
    path.write_text(json.dumps({"100": {"90": {"a": 1, "b": 1}}, "200": {"90": {"a": 2}}}))
    assert measured_registers("90", "120", path) == {"a": 1, "b": 1}
    assert measured_registers("90", "190", path) == {"a": 2, "b": 1}
    assert measured_registers("90", "?", path) == {"a": 2, "b": 1}


def test_merge_rejects_impossible_register_counts(tmp_path):
    path = tmp_path / "registers.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="256 registers"):
        merge([Registers(11549, "90", KERNEL, 256)], path)


def test_merge_preserves_the_shipped_counts():
    added = json.loads(merge([Registers(1, "90", KERNEL, 40)]))
    assert added.pop("1") == {"90": {KERNEL: 40}}
    assert added == json.loads(merge([]))


@pytest.mark.parametrize(("arch", "count"), [("80", 168), ("86", 166), ("89", 166), ("90", 168)])
def test_the_shipped_counts_are_those_of_ptxas(arch, count):
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    assert measured_registers(arch, "11549")[kernel] == count


@pytest.mark.parametrize("arch", ["80", "86", "89"])
def test_counts_of_a_full_build_cover_all_families(arch):
    counts = Counter(kernel.partition("<")[0] for kernel in measured_registers(arch, "11549"))
    families = ("flash_attn_ext_f16", "flash_attn_ext_vec", "flash_attn_tile")
    assert [counts[name] for name in families] == [256, 48, 310]
