import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.session import DebugSession
from fattn_probe.machine.debug.values import c_text, numbers

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
EXPECTED = {
    "minus": [-12],
    "big": [4294967295],
    "wide": [-9223372036854775807],
    "eighth": [0.125],
    "small": [9.99999975e-06],
    "infinite": [math.inf],
    "nan_minus": [math.nan],
    "huge": [1e300],
    "block": [1, 1, 1],
    "pair": [15360, 48128],
    "cuda": [15360],
    "fragment": [1, 2, 3, 4],
    "ne": [64, 14, 7, 1],
    "op_params": [1040187392, 0, 0, 10, *12 * [0]],
    "floats": [1.5, 0, -3, 9.99999975e-06, math.inf, math.nan],
    "matrix": [1, 2, 3, 4, 5, 6],
}
TEXTS = {
    "name": "dst",
    "full": "abcd",
    "quants": "\1\2\3\udcff",
    "runs": "ab" + 30 * "x" + 'end "quoted" \\ \t\n',
    "text": 'hello 中, "world"',
}


def recorded(name):
    lines = [line for line in (TRANSCRIPTS / name).read_text().splitlines() if not line.startswith("#")]
    return {name: text for name, _, text in (line.partition(" = ") for line in lines)}


def check(printed):
    assert str({name: numbers(printed[name]) for name in EXPECTED}) == str(EXPECTED)  # a NaN is not equal to itself
    assert {name: c_text(printed[name]) for name in TEXTS} == TEXTS


def test_numbers_and_strings_as_gdb_printed_them():
    check(recorded("gdb-13-values.txt"))
    printed = recorded("gdb-13-kernel.txt")
    assert (numbers(printed["$5"])[:4], c_text(printed["$7"])) == ([1040187392, 0, 0, 10], "dst")


@pytest.mark.gdb
def test_numbers_and_strings_as_this_machines_gdb_prints_them(gdb, values_program):
    with DebugSession(gdb, values_program) as session:
        debugger = OverMI(session)
        lines = Path(__file__).with_name("values.cpp").read_text().partition("stop here")[0].splitlines()
        debugger.insert(f"values.cpp:{len(lines)}")
        debugger.resume("run")
        names = [*EXPECTED, *TEXTS]
        check(dict(zip(names, debugger.evaluate(names), strict=True)))


def test_a_kernel_on_an_h200():
    """-G code: halves are decimal numbers."""
    found = {name: numbers(text) for name, text in recorded("cuda-gdb-13-values.txt").items()}
    assert found["*KQ_max@2"] == [-1.70141173e38, -1.70141173e38]
    assert found["threadIdx"] == [0, 2, 0]
    assert (len(found["KQ_C"]), found["KQ_C"][:2]) == (32, [0.422432125, -0.426973134])
    assert found["VKQ_C[0].x"][:3] == [0.32031, 0.302, 0.3877]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{{x = {{x = {bits = 65535}, y = {bits = 1}}, {x = {bits = 0}, y = {bits = 2}}}}}", [65535, 1, 0, 2]),
        ("{{x = {0.125017703, -1.70141173e+38, 0, 1e-45}}}", [0.125017703, -1.70141173e38, 0, 1e-45]),
        ("{1.5 <repeats 3 times>, 2}", [1.5, 1.5, 1.5, 2]),
        ("{{x = {bits = 7}, y = {bits = 8}}}", [7, 8]),
        ("{-inf, inf}", [-math.inf, math.inf]),
        ("{static I = 16, x = {3}}", [16, 3]),
        ("{nan(0x400000), -nan(0x7fffff), nan, 1}", [math.nan, math.nan, math.nan, 1]),
    ],
)
def test_numbers_in_the_debuggers_spelling(text, values):
    assert str(numbers(text)) == str(values)  # a NaN is not equal to itself


# gdb's way to print, as its generic_printstr does, with `print repeats` 10
REPEATS = 10
ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\033"}


def runs(items):
    """[(item, how often in a row)]."""
    found: list = []
    for item in items:
        if found and found[-1][0] == item:
            found[-1][1] += 1
        else:
            found.append([item, 1])
    return found


def printed_byte(byte, quote):
    if byte in ESCAPES:
        return ESCAPES[byte]
    if chr(byte) in ("\\", quote):
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def printed_text(text):
    pieces, quoted = [], ""
    for byte, count in runs(list(text.encode(errors="surrogateescape"))):
        if count >= REPEATS:
            pieces += [f'"{quoted}"'] if quoted else []
            pieces.append(f"'{printed_byte(byte, chr(39))}' <repeats {count} times>")
            quoted = ""
        else:
            quoted += count * printed_byte(byte, '"')
    return ", ".join(pieces + ([f'"{quoted}"'] if quoted or not pieces else []))


@settings(max_examples=200)
@given(st.binary(max_size=40) | st.builds(lambda text, count: text + count * b"\0", st.binary(), st.integers(0, 70)))
def test_a_string_survives_a_round_trip_through_gdbs_syntax(stored):
    text = stored.decode(errors="surrogateescape")
    assert c_text(printed_text(text)) == text.partition("\0")[0]
