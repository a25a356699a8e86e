"""A digest of the code that a run executes: sections of a build's objects, with symbols resolved as by the linker.

As long as this digest is the same, a case's output cannot change, whatever was edited. The relocations of each section
are followed, in the same object or to the first linked object that defines the symbol, because copies of an inline
function differ if their objects were compiled with different flags. Debug information is left out; a line number
matters only if a call passes it, as `__syncthreads()` does.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from fattn_probe.base.digest import short
from fattn_probe.base.process import run
from fattn_probe.llama.build import RUNNER
from fattn_probe.llama.build.plan import BASE, CASE_PREFIX, CUDA_LIBRARY
from fattn_probe.llama.build.sources import BODY_PREFIX, LAUNCHES_PREFIX
from fattn_probe.llama.build.stubs import KERNEL_CASE
from fattn_probe.llama.build.symbols import body_of, case_of
from fattn_probe.llama.cxx.functions import BODIES
from fattn_probe.llama.launch.families import BY_KERNEL, instance_of
from fattn_probe.llama.launch.record import LaunchRecord
from fattn_probe.llama.source import KernelCase, Tree, ggml_types
from fattn_probe.machine.run.prepare import known_cases

BODY = f"_ZN{len(BODIES)}{BODIES}"
"""Prefix of the symbols of kernel bodies."""
GENERATED = "obj/generated/"
"""The folder of the stubs, whose code does not matter, because a run that calls a stub ends."""
HEADER, SYMBOL, RELOCATION = (struct.Struct(words) for words in ("<IIQQQQIIQQ", "<IBBHQQ", "<QQq"))
SYMBOLS, RELOCATIONS, NO_BITS, AT_LOAD = 2, 4, 8, (14, 16)
"""Types of sections."""
ALLOCATED, MERGED, STRINGS = 0x2, 0x10, 0x20
"""Flags of sections: loaded into memory; literals, which the linker merges if they are identical; strings."""
LOCAL, GLOBAL = 0, 1
UNDEFINED, RESERVED = 0, 0xFF00
UNWINDING = (".eh_frame", ".note")
HANDLERS = ".gcc_except_table"


@dataclass(frozen=True)
class Section:
    """A section of an object: a digest of its bytes and relocations, and the relocations' targets.

    A target is a symbol's name, or the number of a section in the same object.
    """

    digest: str
    targets: tuple[str | int, ...]


@dataclass(frozen=True)
class ObjectCode:
    """An object: its loaded sections by number, and for each symbol its section and whether it is weak.

    `at_load` means that some of its code runs when it is loaded.
    """

    sections: Mapping[int, Section]
    symbols: Mapping[str, tuple[int, bool]]
    at_load: bool


class ObjectReader:
    """Reads an object file: 64-bit little-endian ELF."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit ELF file")
        self.data = data
        (start,), (number, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 60)
        first = HEADER.unpack_from(data, start)  # it holds counts that are too large for the file's header
        number, names = number or first[5], first[6] if names == 0xFFFF else names
        self.headers = [HEADER.unpack_from(data, start + index * HEADER.size) for index in range(number)]
        self.names = [self.text(self.headers[names][4] + header[0]) for header in self.headers]

    @cached_property
    def symbols(self) -> list[tuple[str, int, int, int]]:
        """The name, binding, section and value of each symbol; StopIteration if symbols were stripped."""
        table = next(header for header in self.headers if header[1] == SYMBOLS)
        return [
            (self.text(self.headers[table[6]][4] + name), info >> 4, section, value)
            for name, info, _, section, value, _ in SYMBOL.iter_unpack(self.contents(table))
        ]

    def text(self, start: int) -> str:
        """The null-terminated string at an offset."""
        return self.data[start : self.data.index(b"\0", start)].decode()

    def contents(self, header: tuple[int, ...]) -> bytes:
        """The bytes of a section, or only its size if it is all zeros (bss)."""
        return str(header[5]).encode() if header[1] == NO_BITS else self.data[header[4] : header[4] + header[5]]

    def code(self) -> ObjectCode:
        """The loaded sections, and the symbols that they define."""
        relocations = defaultdict[int, list[bytes]](list)
        for header in self.headers:
            if header[1] == RELOCATIONS and self.headers[header[7]][2] & ALLOCATED:
                relocations[header[7]].append(self.contents(header))
        numbers, sections = {name: number for number, name in enumerate(self.names)}, dict[int, Section]()
        for number, (header, name) in enumerate(zip(self.headers, self.names, strict=True)):
            if header[2] & ALLOCATED and not name.startswith(UNWINDING):
                words, targets = self.described(RELOCATION.iter_unpack(b"".join(relocations[number])))
                handlers = numbers.get(name.replace(".text", HANDLERS, 1), number)
                more = [handlers] if handlers != number else []
                sections[number] = Section(short([self.contents(header), "".join(words)]), (*targets, *more))
        defined = [symbol for symbol in self.symbols if symbol[1] != LOCAL and symbol[2] in sections]
        symbols = {name: (section, binding != GLOBAL) for name, binding, section, _ in defined}
        return ObjectCode(sections, symbols, any(header[1] in AT_LOAD for header in self.headers))

    def described(self, relocations: Iterable[tuple[int, ...]]) -> tuple[list[str], dict[str | int, None]]:
        """Relocations as strings that are identical for identical code, and their targets in order."""
        words, targets = list[str](), dict[str | int, None]()
        for offset, info, addend in relocations:
            name, binding, section, value = self.symbols[info >> 32]
            said = name
            if binding == LOCAL and UNDEFINED < section < RESERVED:
                header = self.headers[section]
                start, size, strings = header[4] + value, header[9], header[2] & STRINGS
                if header[2] & MERGED and name and not (strings and size > 1):  # by content, not by location
                    size = self.data.index(b"\0", start) + 1 - start if strings else size
                    said = self.data[start : start + size].hex()
                else:
                    said = f"+{value}"
                    targets[section] = None
            elif name:
                targets[name] = None
            words.append(f"\0{offset} {info & 0xFFFFFFFF} {addend} {said}")
        return words, targets


CODE_IN = lru_cache(maxsize=128)(lambda data: ObjectReader(data).code())
"""The code in an object's bytes, parsed once for all builds that share the object; most host objects are shared."""


def read_object(path: Path) -> ObjectCode:
    """The code in an object file; ValueError if it is damaged or not an object file."""
    try:
        return CODE_IN(path.read_bytes())
    except (struct.error, LookupError, StopIteration, OSError) as error:
        raise ValueError(f"{path}: not an object: {error}") from None


def is_added(path: str) -> bool:
    """Whether only some runs execute an object's code: kernel bodies, and functions that launch them."""
    return CASE_PREFIX in path


@dataclass(frozen=True)
class ExecutedCode:
    """The code of a build's runner and of its libraries.

    Every run executes the objects for which `is_added` is false, plus any others that its launches need.
    `launchers` has the symbols of host functions that launch kernels, by the name of the kernel case; `bodies` has the
    symbols of kernel bodies, by name and template arguments. `cases` are the tree's kernel cases.
    """

    libraries: Sequence[Mapping[str, ObjectCode]]
    launchers: Mapping[str, str]
    bodies: Mapping[tuple[str, tuple[str, ...]], str]
    cases: Mapping[str, KernelCase]
    _digests: dict[tuple[str, ...], str] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Path, tree: Tree, before: "ExecutedCode | None" = None) -> "ExecutedCode":
        """The code of a build as currently linked; ValueError if an object cannot be read.

        A build's objects do not change, so those that were read `before` are not read again.
        """
        links = {}
        try:
            for line in (folder / "build.ninja").read_text().splitlines():
                output, found, inputs = line.removeprefix("build ").partition(": link ")
                if found:
                    objects = (word for word in inputs.split() if word.endswith(".o"))
                    links[output] = [word for word in objects if not word.startswith(GENERATED)]
            linked = [links[output] for output in (CUDA_LIBRARY, BASE, f"bin/{RUNNER}")]
        except (OSError, KeyError) as error:
            raise ValueError(f"{folder}: {error}") from None
        if before is not None and [list(library) for library in before.libraries] == linked:
            return before
        old = {path: code for library in before.libraries for path, code in library.items()} if before else {}
        libraries = [{path: old.get(path) or read_object(folder / path) for path in paths} for paths in linked]
        symbols = dict.fromkeys(name for code in libraries[0].values() for name in code.symbols if is_boundary(name))
        cases, types = known_cases(tree), ggml_types(tree.root)
        launchers, bodies = dict[str, str](), dict[tuple[str, tuple[str, ...]], str]()
        demangled = run(["c++filt", *symbols]).stdout.splitlines() if symbols else []
        for symbol, name in zip(symbols, demangled, strict=True):
            if body := body_of(name, types):
                bodies[body] = symbol
            elif case := case_of(name, cases, types):
                launchers[case.name] = symbol
        return cls(libraries, launchers, bodies, cases)

    def digest(self, launches: Sequence[LaunchRecord]) -> str | None:
        """The digest of the code of a run with these launches; None if the code cannot be determined."""
        # the symbols of the launched kernels and of their host functions; None for a missing one
        wanted = list[str | None]()
        for launch in launches:
            if family := launch.family:
                case = instance_of(family, launch.values, self.cases)
                wanted.append(self.launchers.get(case.whole.name) if case else None)
            if family or any(launch.kernel == kernel for kernel, _ in self.bodies):  # else host objects hold its code
                wanted.append(self.bodies.get((launch.kernel, launch.values)))
        roots = () if None in wanted else tuple(sorted({name for name in wanted if name}))
        if roots and roots not in self._digests and self._is_told_apart:
            places = [self._places[0][name] for name in roots]
            self._digests[roots] = short("".join([self._host, *self._followed(places, roots)]))
        return self._digests.get(roots)

    def kernels(self, launches: Sequence[LaunchRecord]) -> set[str]:
        """The names of the launched kernels that belong to kernel cases."""
        known = ((BY_KERNEL.get(launch.kernel), launch.values) for launch in launches)
        found = (instance_of(family, values, self.cases) for family, values in known if family)
        return {kernel.name for kernel in found if kernel is not None}

    @cached_property
    def _objects(self) -> list[tuple[int, str, ObjectCode]]:
        """The number of each object's library, its path and its code."""
        return [(number, *item) for number, library in enumerate(self.libraries) for item in library.items()]

    @cached_property
    def _places(self) -> list[dict[str, tuple[int, int]]]:
        """For each library, the object and section of every symbol: its first strong or else first weak definition.

        A symbol that the library does not define resolves to the first library that defines it.
        """
        found = [dict[str, tuple[int, int]]() for _ in self.libraries]
        for wanted in (False, True):
            for number, (library, _, code) in enumerate(self._objects):
                for name, (at, weak) in code.symbols.items():
                    if weak == wanted:
                        found[library].setdefault(name, (number, at))
        others = {name: place for places in reversed(found) for name, place in places.items()}
        return [others | own for own in found]

    @cached_property
    def _is_told_apart(self) -> bool:
        """Whether kernels, their host functions and all other code are separate, as digests require.

        If so, a kernel takes inline functions only from the code that every run executes and from kernels linked before
        it, so its code does not change while the build grows; and only other code calls functions that launch kernels.
        """
        kernels, launching, called = set[str](), set[str](), set[str]()
        for _, path, code in self._objects:
            if is_added(path):
                if code.at_load or BODY_PREFIX in path:
                    return False
                targets = (target for section in code.sections.values() for target in section.targets)
                called.update(target for target in targets if isinstance(target, str) and KERNEL_CASE.match(target))
                (launching if LAUNCHES_PREFIX in path else kernels).update(code.symbols)
        return kernels.isdisjoint(launching) and not called

    @cached_property
    def _host(self) -> str:
        """The digest of the code that every run executes."""
        found = [(number, code) for number, (_, path, code) in enumerate(self._objects) if not is_added(path)]
        return short("".join(self._followed([(number, at) for number, code in found for at in code.sections], ())))

    def _followed(self, start: Iterable[tuple[int, int]], roots: Sequence[str]) -> Iterator[str]:
        """The digests of sections and of everything that they refer to, and the references between them.

        Code that every run executes is named, but not followed; kernels and functions that launch them are neither,
        except `roots`.
        """
        places = list(dict.fromkeys(start))
        numbers = {place: number for number, place in enumerate(places)}
        for number, at in places:  # `places` grows during the loop
            library, _, code = self._objects[number]
            yield f"{code.sections[at].digest}\n"
            for target in code.sections[at].targets:
                if isinstance(target, str) and is_boundary(target) and target not in roots:
                    continue
                place = (number, target) if isinstance(target, int) else self._places[library].get(target)
                if place is None:
                    continue
                if place not in numbers and not is_added(self._objects[place[0]][1]):
                    yield f"{self._objects[place[0]][2].sections[place[1]].digest} "
                    continue
                if place not in numbers:
                    numbers[place] = len(places)
                    places.append(place)
                yield f"{numbers[place]} "


@lru_cache(maxsize=1 << 16)
def is_boundary(symbol: str) -> bool:
    """Whether a symbol is a kernel's body, or a kernel case's host function, which launches kernels."""
    return symbol.startswith(BODY) or KERNEL_CASE.match(symbol) is not None
