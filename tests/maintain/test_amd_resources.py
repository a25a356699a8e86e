"""Reading the resources of AMD kernels from what the script keeps of clang's assembly."""

import csv
from pathlib import Path

import pytest

from fattn_probe.base.errors import InputError
from fattn_probe.base.process import run
from fattn_probe.cases.device import Resources, figures_of
from maintain.amd_resources import EXTRACT, TABLE, merge_amd, read_assembly
from maintain.rocm import isa_version

ASSEMBLY = Path(__file__).with_name("two_kernels.s").read_text()
FOUND = {"_Z4fullv": "100/32/46/2304/112/5", "_Z5emptyv": "-"}


def test_figures_and_the_extract_has_all_that_is_read(tmp_path):
    assert dict(read_assembly(ASSEMBLY)) == FOUND
    (tmp_path / "whole.s").write_text(ASSEMBLY)
    extract = run(["sed", "-n", EXTRACT, tmp_path / "whole.s"]).stdout
    assert len(extract.splitlines()) < len(ASSEMBLY.splitlines())
    assert dict(read_assembly(extract)) == FOUND


def test_an_empty_file_is_an_error():
    with pytest.raises(InputError, match="no kernel"):
        list(read_assembly("clang: error\n"))


@pytest.mark.parametrize(
    ("gfx", "number"), [("gfx906", 9006), ("gfx90a", 9010), ("gfx1151", 11501), ("gfx1201", 12001)]
)
def test_the_device_library_s_number(gfx, number):
    assert isa_version(gfx) == number


def test_a_column_of_amd_s_table_is_added_and_replaced(tmp_path):
    table, full = tmp_path / "amd.csv", "100/0/46/2304/0/12"
    table.write_text(merge_amd(11549, "gfx1100", {"a<1,2>": full, "b": "-"}, table))
    table.write_text(merge_amd(11549, "gfx90a", {"b": full}, table))
    assert table.read_text().splitlines() == [
        "kernel,11549/gfx1100,11549/gfx90a",
        '"a<1,2>",100/0/46/2304/0/12,',
        "b,-,100/0/46/2304/0/12",
    ]
    table.write_text(merge_amd(11549, "gfx1100", {"b": full}, table))
    assert table.read_text().splitlines()[1:] == ['"a<1,2>",,', f"b,{full},{full}"]


def test_vector_registers_limit_the_waves_of_amds_attention_kernels_and_scalar_registers_do_not():
    """A SIMD of GCN and CDNA has 800 scalar registers, and gives a wave 16 at a time; RDNA has enough for all waves."""
    rows = list(csv.DictReader(TABLE.read_text().splitlines()))
    for gfx, registers, unit in (("gfx906", 256, 4), ("gfx908", 256, 4), ("gfx90a", 512, 8), ("gfx942", 512, 8)):
        cells = {row["kernel"]: row[f"11549/{gfx}"] for row in rows if "mask_to" not in row["kernel"]}
        kernels = {name: list(map(int, cell.split("/"))) for name, cell in cells.items() if cell.strip("-")}
        used = figures_of(gfx, "11549")
        assert len(kernels) > 1_000
        for name, (vgprs, _, sgprs, shared, local, _) in kernels.items():
            assert 800 // (-(-sgprs // 16) * 16) >= min(8, registers // (-(-vgprs // unit) * unit))
            assert used[name].resources == Resources(vgprs, shared, local)
