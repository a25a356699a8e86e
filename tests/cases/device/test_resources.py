from collections import Counter

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.cases.device import Origin, Resources, figures_of
from fattn_probe.cases.device.origin import MEASURED, Compiled, Figures, Method, merge, read_table

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
            [Compiled(11549, "90", KERNEL, Resources(170, 512, 0)), Compiled(11549, "89", KERNEL, Resources(128))],
            table,
        )
    )
    assert figures_of("90", "11549", table) == {KERNEL: Figures(Resources(170, 512, 0), MEASURED)}
    assert figures_of("89", "11549", table) == {KERNEL: Figures(Resources(128), MEASURED)}
    assert figures_of("75", "11549", table) == {}


def origins(arch, build_number, table, **how):
    """The registers of each kernel, and where they are from."""
    found = figures_of(arch, build_number, table, **how)
    return {kernel: (figures.resources.registers, str(figures.origin)) for kernel, figures in found.items()}


def test_the_nearest_build_stands_in_and_is_named(table):
    table.write_text("kernel,100/90,200/90\na,1/0/0,2/0/0\nb,1/8/4,\n")
    assert origins("90", "120", table) == {"a": (1, "measured b100"), "b": (1, "measured b100")}
    assert origins("90", "190", table) == {"a": (2, "measured b200"), "b": (1, "measured b100")}
    assert origins("90", "200", table) == {"a": (2, "measured"), "b": (1, "measured b100")}
    assert figures_of("90", "120", table)["b"].resources == Resources(1, 8, 4)


@pytest.mark.parametrize("build_number", ["?", "", "200"])
def test_a_tree_that_is_no_release_has_figures_of_another_one(table, build_number):
    """A shallow clone, a program, a folder or a patch on b200: their kernels may have been changed."""
    table.write_text("kernel,100/90,200/90\na,1/0/0,2/0/0\nb,1/8/4,\n")
    expected = {"a": (2, "measured b200"), "b": (1, "measured b100")}
    assert origins("90", build_number, table, released=False) == expected


@pytest.mark.parametrize("arch", ["61", "70"])
def test_figures_of_gpus_that_nvcc_has_dropped_are_estimates(table, arch):
    table.write_text(f"kernel,200/{arch}\na,2/0/0\n")
    assert origins(arch, "200", table) == {"a": (2, "estimated")}
    assert origins(arch, "120", table) == {"a": (2, "estimated b200")}
    assert figures_of(arch, "120", table)["a"].origin == Origin(Method.ESTIMATED, 200)


def test_merge_rejects_impossible_register_counts_and_preserves_the_shipped_table(table):
    with pytest.raises(InputError, match="256 registers"):
        merge([Compiled(11549, "90", KERNEL, Resources(256))], table)
    added = Compiled(1, "90", "added", Resources(40))
    table.write_text(merge([added]))
    assert sorted(map(str, read_table(table))) == sorted(map(str, [added, *read_table()]))


@pytest.mark.parametrize(("arch", "count"), [("80", 168), ("86", 166), ("89", 166), ("90", 168)])
def test_the_shipped_counts_are_those_of_ptxas(arch, count):
    kernel = "flash_attn_ext_vec<128,1,GGML_TYPE_F16,GGML_TYPE_F16,false>"
    assert figures_of(arch, "11549")[kernel].resources.registers == count


@pytest.mark.parametrize("arch", ["75", "80", "86", "89", "90", "100", "120", "121"])
def test_every_kernel_of_the_default_release_has_its_figures(arch):
    """A kernel without them gets those of its launch bounds: other blocks on an SM, other grids and other bits."""
    full = [item.kernel for item in read_table() if (item.build_number, item.arch) == (11549, arch)]
    every = {item.kernel for item in read_table() if item.build_number == 11549 and int(item.arch) >= 75}
    assert len(full) == 1011
    assert set(full) == every
    counts = Counter(kernel.partition("<")[0] for kernel in full)
    families = ("flash_attn_ext_f16", "flash_attn_ext_vec", "flash_attn_tile")
    assert [counts[name] for name in families] == [256, 48, 310]


def test_static_shared_memory_depends_on_the_release_and_before_turing_on_the_architecture():
    sizes: dict[tuple[int, str], set[int]] = {}
    for item in (item for item in read_table() if int(item.arch) >= 75):
        sizes.setdefault((item.build_number, item.kernel), set()).add(item.resources.shared)
    assert max(map(len, sizes.values())) == 1
    kernel = "flash_attn_tile<72,72,1,4,false>"
    assert [sizes[build, kernel] for build in (7551, 11549)] == [{11552}, {22304}]
    kernel = "flash_attn_tile<128,128,8,1,false>"
    pascal, volta, turing = (figures_of(arch, "11549")[kernel].resources.shared for arch in ("61", "70", "75"))
    assert pascal > volta == turing


def test_amd_s_figures_are_estimated():
    tile = figures_of("gfx942", "11549")["flash_attn_tile<64,64,8,1,false>"]
    assert tile.origin == Origin(Method.ESTIMATED)  # ROCm's clang may use other registers
