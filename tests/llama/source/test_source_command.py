"""What the `source` commands report."""

import io
import json

from rich.console import Console

from fattn_probe.llama.source import command, resolve
from fattn_probe.llama.source.spec import DEFAULT_SOURCE
from tests.made import shown


def test_list_has_pinned_and_cached_sources_the_default_first(index):
    index.publish("xllamacpp-2026.1.77.tar.gz")
    resolve("pypi:xllamacpp==2026.1.77")
    rows = command.list_sources()
    assert rows[0]["spec"] == DEFAULT_SOURCE and rows[0]["root"] is None and rows[0]["pinned"]
    cached = next(row for row in rows if row["spec"] == "pypi:xllamacpp==2026.1.77")
    assert (cached["build_number"], cached["pinned"], cached["default"]) == ("77", False, False)
    assert cached["root"] in shown(command.render_list(rows))


def test_show_names_build_features_and_kernels(index):
    index.publish("xllamacpp-2026.1.77.tar.gz")
    details = json.loads(json.dumps(command.details_of(resolve("pypi:xllamacpp==2026.1.77"))))
    assert details["features"]["era"] == "C"
    assert details["kernels"][0] == "mma 64,64,8,8" and details["patches"] == []
    text = shown(command.render_details(details))
    for word in ("build 77", "ntiles_dst", "576/512", "64 128", "DKQ, DV, V_is_K_view, T", "apply: none"):
        assert word in text


def test_download_bar_takes_progress(index):
    index.publish("xllamacpp-2026.1.77.tar.gz")
    console = Console(file=(out := io.StringIO()), force_terminal=True, width=120)
    with command.download_bar(console) as progress:
        resolve("pypi:xllamacpp==2026.1.77", progress)
    assert "xllamacpp-2026.1.77.tar.gz" in out.getvalue()
