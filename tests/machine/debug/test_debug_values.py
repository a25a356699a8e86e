import math
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fattn_probe.machine.debug.procedure import OverMI
from fattn_probe.machine.debug.session import DebugSession
from fattn_probe.machine.debug.values import CutText, Pointer, Symbol, Unavailable, ValueSyntaxError, parse_value

TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"
NAN = float("nan")
OPTIMIZED_OUT = Unavailable("optimized out")
HALF2 = {"x": {"bits": 0}, "y": {"bits": 0}}


def at(symbol=None, text=None):
    """A pointer to any address."""
    return Pointer(1, symbol, None, text)


NULL = Pointer(0)
EXPECTED = {
    "zero": 0,
    "minus": -12,
    "big": 4294967295,
    "wide": -9223372036854775807,
    "yes": True,
    "eighth": 0.125,
    "small": 9.99999975e-06,
    "whole": 3,
    "minus_zero": -0.0,
    "infinite": math.inf,
    "nan_plus": NAN,
    "nan_minus": NAN,
    "ones": 4294967295,
    "third": 1 / 3,
    "huge": 1e300,
    "letter": 65,
    "nul": 0,
    "quote": 39,
    "backslash": 92,
    "newline": 10,
    "high": -1,
    "quants": "\1\2\3\udcff\0\0\0",
    "byte": 200,
    "wide_char": 119,
    "char16": 120,
    "name": "dst" + 60 * "\0",
    "full": "abcd",
    "runs": "ab" + 30 * "x" + 'end "quoted" \\ \t\n' + 14 * "\0",
    "names": ["one\0\0\0\0", "two\0\0\0\0", "three\0\0"],
    "many": ["q" + 62 * "\0", "k" + 62 * "\0", *10 * [63 * "\0"]],
    "long_text": CutText(20 * "0123456789"),
    "text": at(text='hello 中, "world"'),
    "bad_text": at(),
    "null_text": NULL,
    "wide_text": at(text="wide"),
    "texts": [at(text="a, b"), at(text="}"), NULL],
    "block": {"x": 1, "y": 1, "z": 1},
    "pair": {"x": {"bits": 15360}, "y": {"bits": 48128}},
    "cuda": {"__x": 15360},
    "fragment": {"x": [{"x": {"bits": 1}, "y": {"bits": 2}}, {"x": {"bits": 3}, "y": {"bits": 4}}]},
    "ne": [64, 14, 7, 1],
    "op_params": [1040187392, 0, 0, 10, *12 * [0]],
    "floats": [1.5, 0, -3, 9.99999975e-06, math.inf, NAN],
    "counts": [*range(200), ...],
    "matrix": [[1, 2, 3], [4, 5, 6]],
    "blocks": 12 * [{"x": 1, "y": 1, "z": 1}],
    "pointers": [NULL, at(), at("main(int, char**)")],
    "empties": [{}, {}],
    "bools": [True, False, True],
    "derived": {"<Base>": {"a": 7}, "count": 3, "b": 8, "i": 1, "f": 1.40129846e-45, "left": 5, "right": 6},
    "outer": {"<Base>": {"a": 7}, "<tile<2, 3>>": {"x": [HALF2, HALF2]}, "own": 2.5},
    "virt": {"_vptr.Virtual": at("vtable for Virtual+16"), "n": 4},
    "empty": {},
    "either": {"i": 1, "f": 1.40129846e-45},
    "k": Symbol("KIND_B"),
    "odd": Symbol("KIND_B | KIND_C | unknown: 0x60"),
    "f0": 0,
    "f1": Symbol("FLAG_2"),
    "f12": Symbol("FLAG_1 | FLAG_2"),
    "f9": Symbol("FLAG_1 | unknown: 0x8"),
    "f16": Symbol("unknown: 0x10"),
    "wait": Symbol("simt::Wait::warp"),
    "hid": Symbol("(anonymous namespace)::HIDDEN_B"),
    "in": Symbol("Scope<int>::INNER_B"),
    "kinds": [Symbol("KIND_A"), Symbol("KIND_B"), *12 * [Symbol("KIND_A")]],
    "fn": at("kernel<64, 8>(char const*, int)"),
    "method": at("Method::get() const"),
    "member": Symbol("&Method::value"),
    "less": at("operator<(Method const&, Method const&)"),
    "reference": -12,
    "block_reference": {"x": 1, "y": 1, "z": 1},
    "virtual_pointer": at(),
    "pointer": at(),
    "indirect": at(),
    "any": -20,
}


def plain(value):
    """A value with its kinds visible and without addresses, so that `==` compares all that matters."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Pointer):
        return "pointer", value != 0, value.symbol, value.text
    if isinstance(value, bool | Symbol | CutText):
        return type(value).__name__, value
    if isinstance(value, float) and (math.isnan(value) or value == 0):
        return "nan" if math.isnan(value) else (0, math.copysign(1, value))
    return (0, 1) if value == 0 and isinstance(value, int) else value


def recorded(name):
    return [line for line in (TRANSCRIPTS / name).read_text().splitlines() if not line.startswith("#")]


def parsed(lines):
    """Lines of `info locals` as values by name."""
    return {name: parse_value(text) for name, _, text in (line.partition(" = ") for line in lines)}


def test_every_kind_of_value_as_gdb_printed_it():
    found = parsed(recorded("gdb-13-values.txt"))
    assert list(found) == list(EXPECTED)
    assert {name: plain(value) for name, value in found.items()} == plain(EXPECTED)


@pytest.mark.gdb
def test_every_kind_of_value_as_this_machines_gdb_prints_it(gdb, values_program):
    with DebugSession(gdb, values_program) as session:
        debugger = OverMI(session)
        debugger.insert("values.cpp:" + str(line_of(Path(__file__).with_name("values.cpp"), "stop here")))
        debugger.resume("run")
        over_mi = dict(zip(EXPECTED, debugger.evaluate(list(EXPECTED)), strict=True))
        session.execute("set print static-members on")
        session.execute("set print elements 200")
        found = parsed(session.execute("info locals").splitlines())
        session.execute("set print pretty on")
        pretty = parse_value(session.execute("print outer"))
    assert {name: plain(value) for name, value in found.items()} == plain(EXPECTED)
    assert plain(pretty) == plain(EXPECTED["outer"])
    whole = EXPECTED | {"counts": list(range(300)), "long_text": (30 * "0123456789")[:299]}
    del whole["derived"]["count"]
    assert {name: plain(parse_value(text)) for name, text in over_mi.items()} == plain(whole)


def line_of(path, mark):
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if mark in line)


KERNEL = "flash_attn_ext_f16<64, 64, 8, 8, false, false, false>(char const*, char const*"


def test_a_kernel_on_an_h200():
    """-G code: dead values are optimised out, a null pointer has a symbol's name, halves are decimal numbers."""
    found = parsed(recorded("cuda-gdb-13-values.txt"))
    assert (found["kbc"], found["kbc_stop"], found["is_fixup"]) == (5, 6, True)
    assert found["k_VKQ_0"] == OPTIMIZED_OUT
    assert found["KV_max"] == 0
    assert found["KV_max"].symbol.endswith("::cudaTriggerProgrammaticLaunchCompletion()")
    assert found["threadIdx"] == {"x": 0, "y": 2, "z": 0}
    assert found["*KQ_max@2"] == [-1.70141173e38, -1.70141173e38]
    assert len(found["KQ_C"]) == 4
    assert found["KQ_C"][0]["x"][:2] == [0.422432125, -0.426973134]
    assert found["VKQ_C[3].x[2]"] == {"x": 0, "y": 0}


def test_a_kernel_of_the_simulator():
    lines = dict(line.split(" = ", 1) for line in recorded("gdb-13-kernel.txt"))
    found = {name: parse_value(text) for name, text in lines.items()}
    dst = found["$2"]
    assert (dst["ne"], dst["op"], dst["name"].rstrip("\0"), dst["op_params"][:4]) == (
        [64, 14, 7, 1],
        "GGML_OP_FLASH_ATTN_EXT",
        "dst",
        [1040187392, 0, 0, 10],
    )
    assert len(dst["name"]) == 63
    kernel = found["$3"]
    assert kernel.type == "fattn_kernel_t"
    assert kernel == 0x7FFFF7CA9871
    assert kernel.symbol.startswith(KERNEL)
    assert found["pool"] == Unavailable("error reading variable: Cannot access memory at address 0x0")
    assert found["$15"]["wait"] == Symbol("simt::Wait::none")
    assert found["Q_ptr"].text.encode(errors="surrogateescape").startswith(b"\xa2Cs?\xf0o ?\xe4{\xcf\xbe\x82")
    assert found["__PRETTY_FUNCTION__"].startswith("void flash_attn_ext_f16(")
    assert isinstance(found["__PRETTY_FUNCTION__"], CutText)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # gdb 13.1, `print` in tests/machine/debug/values.cpp
        ("$1 = (dim3 &) @0x7fffffffdfc4: {x = 1, y = 1, z = 1}", {"x": 1, "y": 1, "z": 1}),
        ("$2 = (kernel_t) 0x401ac1 <kernel<64, 8>(char const*, int)>", at("kernel<64, 8>(char const*, int)")),
        ("$3 = {void (const char *, int)} 0x401ac1 <kernel<64, 8>(char const*, int)>", EXPECTED["fn"]),
        ("$5 = (int (*)(int, char **)) 0x401165 <main(int, char**)>", at("main(int, char**)")),
        ("$7 = (char (*)[64]) 0x7fffffffe490", at()),
        ("$9 = void", Symbol("void")),
        ("$10 = {0x40, 0xe, 0x7, 0x1}", [Pointer(64), Pointer(14), Pointer(7), Pointer(1)]),
        ("$14 = (int &) @0x7fffffffe4ec: -12", -12),
        ("$16 = 65 'A'", 65),
        ("$20 = {<Base> = {...}, <tile<2, 3>> = {...}, own = 2.5}", {"<Base>": ..., "<tile<2, 3>>": ..., "own": 2.5}),
        ("$21 = {{...} <repeats 12 times>}", 12 * [...]),
        ("$25 = {1040187392, 0, 0, 10...}", [1040187392, 0, 0, 10, ...]),
        ('$27 = "0123"...', CutText("0123")),
        (
            '$29 = {"one", \'\\000\' <repeats 4 times>, "two", \'\\000\' <repeats 4 times>, "three"...}',
            ["one\0\0\0\0", "two\0\0\0\0", CutText("three")],
        ),
        ("$34 = {char *(const char *)} 0x7ffff7a5d0b0 <__GI_getenv>", at("__GI_getenv")),
        ("{<text variable, no debug info>} 0x7ffff7a5d0b0 <getenv>", at("getenv")),
        ("@0x7fffffffe48c", at()),  # MI, of a reference
        # cuda-gdb 13.0 on an H200: a template's constant in a -G build
        ("<optimized out>", OPTIMIZED_OUT),
        # cuda-gdb, NVIDIA's manual, "Memory and Variables"
        ("$1 = (@shared int (*)[0]) 0x20", at()),
        ("$2 = {0, 128, 64, 192}", [0, 128, 64, 192]),
        # the forms of cuda-gdb that gdb does not have: device code lies at 0, and kernels are named without parameters
        (
            "{0x0 <_INTERNAL_1_7_norm_cu_2::min(unsigned int, int)>,\n    0x20}",
            [Pointer(0, "_INTERNAL_1_7_norm_cu_2::min(unsigned int, int)"), at()],
        ),
        ("(fattn_kernel_t) 0x7fff <f<64, 64, 8, 1, false, false>>", at("f<64, 64, 8, 1, false, false>")),
        ("(const float * @generic) 0x7fff", at()),
        ("{x = {__x = 15360}, y = {__x = 0}}", {"x": {"__x": 15360}, "y": {"__x": 0}}),
    ],
)
def test_literal(text, value):
    assert plain(parse_value(text)) == plain(value)


def test_pointers_keep_address_and_type():
    pointer = parse_value('(const char *) 0x1f "a\\"b"')
    assert (pointer, pointer.type, pointer.text, pointer.symbol) == (31, "const char *", 'a"b', None)
    assert repr(pointer) == "Pointer(0x1f, type='const char *', text='a\"b')"


@pytest.mark.parametrize(
    "text", ["", "{1, 2", "{1 2}", '"open', "0x", "{x = }", "1 2", "(int *", "<no end", "{1, , 2}", "'", "}", "@0xf: "]
)
def test_text_that_is_not_a_value_is_refused(text):
    with pytest.raises(ValueSyntaxError, match="not a value as gdb prints it, at character"):
        parse_value(text)


def leaves(value):
    if isinstance(value, list | dict):
        return sum(leaves(item) for item in (value.values() if isinstance(value, dict) else value))
    return 1


@pytest.mark.night  # beside other work a processor's time buys less
def test_at_least_twenty_thousand_facts_a_second(record_property):
    texts = [line.partition(" = ")[2] for line in recorded("gdb-13-kernel.txt")]
    facts, start = 0, time.process_time()
    while time.process_time() - start < 0.5:
        facts += sum(leaves(parse_value(text)) for text in texts)
    rate = facts / (time.process_time() - start)
    record_property("facts_per_second", round(rate))
    print(f"{rate:,.0f} facts a second")
    assert rate > 20_000


# gdb's way to print, as its generic_printstr and generic_val_print do, with `print repeats` 10
REPEATS = 10
ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 27: "\\033"}


def runs(items):
    """[(item, how often in a row)]."""
    found: list = []
    for item in items:
        if found and plain(found[-1][0]) == plain(item):
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


def printed_pointer(value):
    symbol = f" <{value.symbol}>" if value.symbol else ""
    text = " " + printed_text(value.text) if value.text is not None else ""
    return f"({value.type}) {int(value):#x}{symbol}{text}" if value.type else f"{int(value):#x}{symbol}{text}"


def printed(value):
    printers = {
        bool: lambda: str(value).lower(),
        Pointer: lambda: printed_pointer(value),
        Symbol: lambda: str(value),
        Unavailable: lambda: f"<{value.why}>",
        str: lambda: printed_text(value),
        float: lambda: "-nan(0x7fffff)" if math.isnan(value) else f"{value:.17g}",
        int: lambda: str(value),
        dict: lambda: "{" + ", ".join(f"{name} = {printed(item)}" for name, item in value.items()) + "}",
        list: lambda: "{" + ", ".join(printed(item) + repeats(count) for item, count in grouped(value)) + "}",
    }
    return printers[type(value)]()


def repeats(count):
    return f" <repeats {count} times>" if count >= REPEATS else ""


def grouped(items):
    """Runs that gdb abbreviates, and the other values one by one."""
    return [pair for item, n in runs(items) for pair in ([(item, n)] if n >= REPEATS else n * [(item, 1)])]


names = st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,8}", re.ASCII), fullmatch=True)
symbols = st.sampled_from(
    ["main(int, char**)", "f<64, 8>(char const*)+4", "operator<(A const&, A const&)", "ns::g<h<1> >()", "f<a<b>>"]
)
types = st.sampled_from(["ggml_tensor *", "void (*)(int, char *)", "f<1, (x)2> &", "const float * @generic"])
pointers = st.builds(
    Pointer, st.integers(0, 2**64 - 1), st.none() | symbols, st.none() | types, st.none() | st.text(max_size=30)
)
scalars = st.one_of(
    st.integers(-(2**63), 2**64),
    st.floats(),
    st.booleans(),
    pointers,
    st.sampled_from([Symbol("GGML_TYPE_F16"), Symbol("simt::Wait::none"), Symbol("a<1, 2>::B")]),
    st.sampled_from([OPTIMIZED_OUT, Unavailable("error: Cannot access memory at address 0x8")]),
)
texts = st.binary(max_size=40).map(lambda data: data.decode(errors="surrogateescape")) | st.builds(
    lambda text, count, end: text + count * "\0" + end, st.text(max_size=9), st.integers(0, 70), st.text(max_size=4)
)
short_texts = st.text(max_size=REPEATS - 1)


def arrays(items):
    return st.lists(items, min_size=1, max_size=6) | st.builds(
        lambda item, count, rest: [item] * count + rest, items, st.integers(1, 25), st.lists(items, max_size=3)
    )


values = st.recursive(
    scalars | texts,
    lambda inner: (
        st.dictionaries(names, inner, min_size=1, max_size=5)
        | arrays(st.dictionaries(names, inner, min_size=1, max_size=3))
        | arrays(scalars)
        | arrays(short_texts)
        | arrays(arrays(scalars))
    ),
    max_leaves=6,
)


@example([[9007199254740993, 1e17]])
@settings(max_examples=200)
@given(values)
def test_values_survive_a_round_trip_through_gdbs_syntax(value):
    assert plain(parse_value(printed(value))) == plain(value)
    assert plain(parse_value("$7 = " + printed(value))) == plain(value)


@given(st.text(alphabet="{}<>()\"',=.@0x1a \\-:", max_size=40))
def test_any_text_is_a_value_or_refused(text):
    try:
        parse_value(text)
    except ValueSyntaxError:
        return
