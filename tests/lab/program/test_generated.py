"""Programs that fattn-probe writes, in the cache."""

from fattn_probe.lab.program.build import written

TEXT = "int main() {}\n"


def test_equal_texts_have_one_file_which_is_always_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("FATTN_PROBE_CACHE", str(tmp_path))
    path = written(TEXT, "tiled", ".cu")
    assert path.name.startswith("tiled-") and path.suffix == ".cu"
    path.write_text(TEXT[:5])  # as a process that was ended left it
    assert written(TEXT, "tiled", ".cu") == path
    assert path.read_text() == TEXT
    assert written(TEXT + "\n", "tiled", ".cu") != path
