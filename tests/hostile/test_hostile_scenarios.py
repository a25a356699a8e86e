"""Scenario files that are wrong in every way that a file can be."""

import pytest


def yaml_of(**settings):
    """A file with these settings in place of a good one's; None leaves one out."""
    merged = {"version": "1", "about": "x", "hsk": "64", "n_head": "1", "n_q": "1", "n_kv": "256"} | settings
    return "".join(f"{key}: {value}\n" for key, value in merged.items() if value is not None)


def nested(opening, closing, depth, inside=""):
    return opening * depth + inside + closing * depth


ALIASES = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 20)
)

DEEP_ALIASES = "a0: &a0 {kind: causal}\n" + "".join(
    f"a{n}: &a{n} {{kind: sum, of: [*a{n - 1}]}}\n" for n in range(1, 60)
)
TEXTS = {
    "empty": ("", "op.yaml:1: the file: found nothing, allowed: keys such as `version: 1`"),
    "blank": ("\n\n  \n", "nothing"),
    "comment": ("# nothing\n", "nothing"),
    "scalar": ("hello", "found 'hello'"),
    "number": ("42", "found 42"),
    "list": ("- 1\n", "op.yaml:1: the file: found [1], allowed: keys such as `version: 1`"),
    "two documents": ("a: 1\n---\nb: 2\n", "op.yaml:2: not YAML: but found another document"),
    "tab": ("version: 1\n\tabout: x\n", "not YAML"),
    "open bracket": ("version: [1", "op.yaml:1: not YAML: "),
    "open quote": ("about: 'x\n", "not YAML"),
    "control character": ("about: \x01\n", "not YAML"),
    "null byte": ("about: \x00\n", "not YAML"),
    "python tag": ("a: 1\nb: !!python/object/apply:os.system ['true']\n", "op.yaml:1: about: missing"),
    "python name": ("a: !!python/name:os.system x\n", "op.yaml:1: not YAML: could not determine a constructor"),
    "no number": ("n_q: 0x", "op.yaml:1: "),
    "no date": ("a: 2026-99-99", "op.yaml:1: "),
    "unknown tag": ("about: !secret x\n", "not YAML"),
    "unknown alias": ("about: *nowhere\n", "not YAML"),
    "alias of itself": ("about: &a [*a]\n", "op.yaml:1: not YAML: "),
    "aliases": (ALIASES, "too many"),
    "merge key": ("a: &a {b: 1}\n<<: *a\n", "op.yaml:2: <<: merge keys are not supported"),
    "merge key in expect": (yaml_of(expect="{<<: {ntiles_x: 1}}"), "op.yaml:7: expect.<<: merge keys are not"),
    "octal": (yaml_of(n_kv="0400"), "op.yaml:6: n_kv: found 0400, which YAML 1.1 and 1.2 read differently"),
    "octal in a list": (yaml_of(matrix="{n_kv: [64, 0400]}"), "op.yaml:7: matrix.n_kv.1: found 0400, which YAML 1.1"),
    "minutes": (yaml_of(n_kv="4:16"), "op.yaml:6: n_kv: found 4:16, which YAML 1.1"),
    "key twice": (yaml_of() + "n_q: 2\n", "given twice"),
    "mapping as key": ("? {a: 1}\n: 2\n", "op.yaml:1: not YAML: a list or a mapping as a key"),
    "list as key": (yaml_of() + "? [a, b]\n: 2\n", "op.yaml:7: not YAML: a list or a mapping as a key"),
    "mask without kind": (yaml_of(mask="causal"), "mask: found 'causal', allowed: a mapping such as {kind: causal}"),
    "mask as list": (yaml_of(mask="[1]"), "mask: found [1], allowed: a mapping such as {kind: "),
    "null key": ("~: 2\n", "op.yaml"),
    "deep aliases": (DEEP_ALIASES, "too deeply nested"),
    "deep lists": (nested("[", "]", 3000), "op.yaml:1: not YAML: too many or too deeply nested values"),
    "deep mappings": (nested("{a: ", "}", 3000, "1"), "too deeply nested"),
    "deep block": ("".join("  " * n + "a:\n" for n in range(600)), "too deeply nested"),
    "deep masks": (
        yaml_of(mask=nested("{kind: sum, of: [", "]}", 3000, "{kind: causal}")),
        "op.yaml:7: not YAML: too many or too deeply nested values",
    ),
    "200000 values": (f"about: [{'1, ' * 200_000}1]\n", "too many"),
    "long line": (yaml_of(about="x" * 100_000), "about"),
    "huge integer": (yaml_of(n_kv="9" * 5000), "op.yaml"),
    "hexadecimal": (yaml_of(n_kv="0x" + "f" * 5000), "op.yaml"),
    "base 60": (yaml_of(n_kv="1" + ":59" * 2000), "op.yaml"),
    "bad binary": (yaml_of(about="!!binary '*'"), "op.yaml"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name, probe, op):
    text, said = TEXTS[name]
    op.write_text(text)
    probe("scenario", "show", op).refused(2, "op.yaml", said)


@pytest.mark.parametrize(
    "data", [b"\x80\x81\x82", b"\xff\xfe" + "about: x".encode("utf-16-le"), b"\x7fELF\x02\x01\x01" + bytes(100)]
)
def test_bytes_that_are_no_text(data, probe, op):
    op.write_bytes(data)
    probe("scenario", "show", op).refused(2, "op.yaml")


SETTINGS: dict = {
    "another version": ({"version": "2"}, "version"),
    "version as text": ({"version": "'1'"}, "version"),
    "no about": ({"about": None}, "about"),
    "about of two lines": ({"about": '"a\\nb"'}, "about"),
    "hsk of zero": ({"hsk": "0"}, "hsk"),
    "negative": ({"n_kv": "-1"}, "n_kv"),
    "fraction": ({"n_kv": "256.5"}, "n_kv"),
    "nan": ({"n_kv": ".nan"}, "n_kv"),
    "infinity": ({"n_kv": ".inf"}, "n_kv"),
    "above an int": ({"n_kv": "2147483648"}, "n_kv"),
    "above a float": ({"n_kv": "1.0e+400"}, "n_kv"),
    "hsk of 63": ({"hsk": "63", "type_K": "q8_0"}, "hsk"),
    "heads that have many divisors": ({"n_head": "2147483646", "n_head_kv": "4"}, "n_head_kv"),
    "rows of an allocation": ({"layout": "{K: {kind: view, rows: 1000000000000}}"}, "layout.K"),
    "heads of an allocation": ({"layout": "{V: {kind: view, heads: 1000000000000}}"}, "layout.V"),
    "pad of rows": ({"layout": "{Q: {kind: view, pad: 1000000000000}}"}, "layout.Q"),
    "pad of the mask": ({"mask": "{kind: causal}", "layout": "{mask: {pad: 1000000000000}}"}, "layout.mask"),
    "scale nan": ({"scale": ".nan"}, "scale"),
    "scale infinite": ({"scale": ".inf"}, "scale"),
    "scale negative": ({"scale": "-1"}, "scale"),
    "scale too large": ({"scale": "1.0e+60"}, "scale"),
    "softcap negative": ({"logit_softcap": "-1"}, "logit_softcap"),
    "softcap nan": ({"logit_softcap": ".nan"}, "logit_softcap"),
    "precision": ({"prec": "f64"}, "prec"),
    "sinks": ({"sinks": "[1, 2]"}, "sinks"),
    "seed huge": ({"seed": "1" + "0" * 40}, "seed"),
    "device with a command": ({"device": "'sim:h200; true'"}, "device"),
    "data kind": ({"data": "{K: {kind: magic}}"}, "data.K"),
    "data scale nan": ({"data": "{K: {kind: normal, scale: .nan}}"}, "data.K"),
    "data of nothing": ({"data": "{X: {kind: normal}}"}, "data.X"),
    "data text": ({"data": "normal"}, "data"),
    "offset negative": ({"layout": "{K: {kind: view, offset: -1}}"}, "layout.K"),
    "layout kind": ({"layout": "{K: {kind: magic}}"}, "layout.K"),
    "tolerance nan": ({"tolerance": "{nmse: .nan}"}, "tolerance.nmse"),
    "tolerance text": ({"tolerance": "{nmse: small}"}, "tolerance.nmse"),
    "expect a command": ({"expect": '{"system(1)": 1}'}, "expect"),
    "matrix empty list": ({"matrix": "{n_kv: []}"}, "matrix"),
    "matrix unknown key": ({"matrix": "{n_kvs: [1, 2]}"}, "n_kvs"),
    "matrix of a matrix": ({"matrix": "{matrix: [1]}"}, "matrix"),
    "matrix too large": (
        {"matrix": f"{{n_kv: {list(range(1, 200))}, n_q: {list(range(1, 200))}, seed: {list(range(200))}}}"},
        "matrix",
    ),
    "matrix wrong value": ({"matrix": "{n_kv: [256, -1]}"}, "n_kv"),
    "include nothing": ({"matrix": "{include: [{}]}"}, "matrix"),
    "op of a petabyte": ({"n_kv": "2147483647", "n_head": "2147483647", "n_q": "2147483647"}, "op.yaml"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(name, probe, op):
    settings, said = SETTINGS[name]
    op.write_text(yaml_of(**settings))
    probe("scenario", "show", op).refused(2, "op.yaml", said)


def folder_with_a_fifo(path, fifo):
    path.mkdir()
    (path / "a.yaml").symlink_to(fifo)
    return path


def loop(path):
    path.symlink_to(path)
    return path


PATHS = {
    "nowhere": (lambda tmp, fifo: tmp / "nowhere.yaml", "nowhere.yaml"),
    "case of a file": (lambda tmp, fifo: tmp / "op.yaml/x.yaml", "op.yaml:1: the file: found 'nothing'"),
    "fifo": (lambda tmp, fifo: fifo, "a fifo, not a file"),
    "folder with a fifo": (lambda tmp, fifo: folder_with_a_fifo(tmp / "folder", fifo), "a fifo, not a file"),
    "endless device": (lambda tmp, fifo: "/dev/zero", "a device, not a file"),
    "random device": (lambda tmp, fifo: "/dev/urandom", "a device, not a file"),
    "memory": (lambda tmp, fifo: "/proc/self/mem", "/proc/self/mem"),
    "loop of links": (lambda tmp, fifo: loop(tmp / "loop.yaml"), "loop.yaml"),
    "folder without files": (lambda tmp, fifo: tmp, "op.yaml"),
    "name too long": (lambda tmp, fifo: tmp / ("x" * 300), "File name too long"),
}


@pytest.mark.parametrize("command", ["run", "plan", "compare", "inspect", "study"])
@pytest.mark.parametrize("name", PATHS)
def test_path(name, command, probe, op, *, fifo, tmp_path):
    op.write_text("nothing")
    make, said = PATHS[name]
    probe(command, make(tmp_path, fifo)).refused(2, said)


def test_a_file_of_a_gigabyte(probe, op):
    with op.open("wb") as file:
        file.truncate(1 << 30)
    probe("scenario", "check", op).refused(2)
    probe("run", op).refused(2, "larger than 1 MiB")


def test_all_mistakes_of_a_file_are_one_message(probe, op):
    op.write_text(yaml_of(hsk="0", n_q="-1", mask="{kind: nothing}"))
    probe("run", op).refused(2, "op.yaml:3", "op.yaml:5", "op.yaml:7")


def test_the_machine_has_too_little_memory_for_the_op(probe, op):
    op.write_text(yaml_of(n_kv="1048576", n_head="256", n_q="16", device="sim:h200"))
    probe("study", op).refused(3, "memory")
