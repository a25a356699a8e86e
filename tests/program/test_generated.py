"""Programs that fattn-probe writes, beside those that their maker compiles."""

from fattn_probe.device import every_device, parse_targets
from fattn_probe.program.build import maker, written

TEXT = "int main() {}\n"


def test_equal_texts_have_one_file_which_is_always_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path))
    (target,) = parse_targets("sim:h200", every_device(None))
    making = maker(target, "release")
    path = written(TEXT, "tiled", making, ".cu")
    assert path.is_relative_to(making.folder) and path.name.startswith("tiled-") and path.suffix == ".cu"
    path.write_text(TEXT[:5])  # as a process that was ended left it
    assert written(TEXT, "tiled", making, ".cu") == path
    assert path.read_text() == TEXT
    assert written(TEXT + "\n", "tiled", making, ".cu") != path
