from collections import Counter

import pytest

from fattn_probe.device import Resources, measured_resources
from fattn_probe.device.resources import Compiled, merge, read_table
from fattn_probe.errors import InputError

KERNEL = "flash_attn_ext_f16<64,64,8,8,false,false,false>"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "resources.csv"
    path.write_text("kernel\n")
    return path


def test_merge_then_read(table):
    table.write_text(merge([Compiled(11549, "90", KERNEL, Resources(168, 512, 16))], table))
    table.write_text(
        merge(
            [
                Compiled(11549, "90", KERNEL, Resources(170, 512, 0)),
                Compiled(11549, "89", KERNEL, Resources(128)),
            ],
            table,
        )
    )
    assert measured_resources("90", "11549", table) == {KERNEL: Resources(170, 512, 0)}
    assert measured_resources("89", "11549", table) == {KERNEL: Resources(128)}
    assert measured_resources("75", "11549", table) == {}


def test_the_nearest_build_stands_in(table):
    table.write_text("kernel,100/90,200/90\na,1/0/0,2/0/0\nb,1/8/4,\n")
    older, newer, other = Resources(1), Resources(2), Resources(1, 8, 4)
    assert measured_resources("90", "120", table) == {"a": older, "b": other}
    assert measured_resources("90", "190", table) == {"a": newer, "b": other}
    assert measured_resources("90", "?", table) == {"a": newer, "b": other}


def test_merge_rejects_impossible_register_counts(table):
    with pytest.raises(InputError, match="256 registers"):
        merge([Compiled(11549, "90", KERNEL, Resources(256))], table)


def test_merge_preserves_the_shipped_table(table):
    added = Compiled(1, "90", "added", Resources(40))
    table.write_text(merge([added]))
    assert sorted(map(str, read_table(table))) == sorted(map(str, [added, *read_table()]))


@pytest.mark.parametrize(("arch", "count"), [("80", 168), ("86", 166), ("89", 166), ("90", 168)])
def test_the_shipped_counts_are_those_of_ptxas(arch, count):
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    assert measured_resources(arch, "11549")[kernel].registers == count


@pytest.mark.parametrize("arch", ["75", "80", "86", "89"])
def test_resources_of_a_full_build_cover_all_families(arch):
    full = (item for item in read_table() if (item.build_number, item.arch) == (11549, arch))
    counts = Counter(item.kernel.partition("<")[0] for item in full)
    families = ("flash_attn_ext_f16", "flash_attn_ext_vec", "flash_attn_tile")
    assert [counts[name] for name in families] == [256, 48, 310]


def test_static_shared_memory_depends_on_the_release_but_from_turing_on_not_on_the_architecture():
    sizes: dict[tuple[int, str], set[int]] = {}
    for item in (item for item in read_table() if int(item.arch) >= 75):
        sizes.setdefault((item.build_number, item.kernel), set()).add(item.resources.shared)
    assert max(map(len, sizes.values())) == 1
    kernel = "flash_attn_tile<72,72,1,4,false>"
    assert [sizes[build, kernel] for build in (7551, 11549)] == [{11552}, {22304}]


def test_a_gpu_without_fast_f16_needs_more_static_shared_memory():
    kernel = "flash_attn_tile<128,128,8,1,false>"
    pascal, volta, turing = (measured_resources(arch, "11549")[kernel].shared for arch in ("61", "70", "75"))
    assert pascal > volta == turing
