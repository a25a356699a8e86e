"""The cases in scenario files, recordings and folders; each case is one fully resolved op."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fattn_probe.base.digest import short
from fattn_probe.base.errors import InputError
from fattn_probe.base.files import is_folder
from fattn_probe.cases import shipped
from fattn_probe.cases.op import Op, Params, Root, TensorView
from fattn_probe.cases.op.op import PREC, default_scale, float32
from fattn_probe.cases.scenario.check import checked, load
from fattn_probe.cases.scenario.data import AnyData, Data
from fattn_probe.cases.scenario.layout import Layout, ViewOfK, place, place_mask, repeating, view_of_K
from fattn_probe.cases.scenario.mask import AnyMask, MaskShape, NoMask
from fattn_probe.cases.scenario.schema import Inspect, Scenario, Tolerance, case_names

INPUTS_VERSION = 1  # part of every digest; increase it when the bytes of a case change


@dataclass(frozen=True)
class Recipe:
    """The rules that generate a case's inputs."""

    mask: AnyMask
    layout: Layout
    data: Data
    seed: int

    def data_of(self, name: str) -> tuple[AnyData, int]:
        """A tensor's distribution and seed."""
        data: AnyData = getattr(self.data, name)
        return data, self.seed if data.seed is None else data.seed


@dataclass(frozen=True)
class Recording:
    """The case file or capture that contains a case's inputs; `digest` is the digest in the file."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Case:
    """One fully resolved FLASH_ATTN_EXT op; field names are those of ggml and the kernels.

    `source` says where the inputs come from: a scenario's recipe, or a file.
    """

    name: str
    scenario: str
    about: str
    op: Op
    source: Recipe | Recording
    tolerance: Tolerance
    inspect: Inspect
    expect: dict[str, Any]
    device: str | None

    @property
    def recipe(self) -> Recipe:
        """The rules that generate the inputs; InputError for a recorded case."""
        if isinstance(self.source, Recipe):
            return self.source
        raise InputError(f"{self.source.path}: a recorded case contains its inputs, not the rules that generate them")

    @property
    def recorded(self) -> bool:
        """Whether the inputs are in a file."""
        return isinstance(self.source, Recording)

    @property
    def seed(self) -> int:
        """The seed of the recipe; 0 for a recorded case."""
        return 0 if isinstance(self.source, Recording) else self.source.seed

    @property
    def mask_kind(self) -> str:
        """The kind of the mask in the scenario, such as `causal`; `recorded` or `none` for a recorded case."""
        if isinstance(self.source, Recipe):
            return self.source.mask.kind
        return "recorded" if self.op.has_mask else "none"

    @cached_property
    def digest(self) -> str:
        """16 hex digits that depend only on the op and the input bytes."""
        if isinstance(self.source, Recording):
            return self.source.digest
        op = self.op
        told: dict[str, Any] = {"type_K": op.type_K, "type_V": op.type_V, "sinks": op.has_sinks}
        told |= asdict(op.sizes) | asdict(op.params)  # a renamed field must keep its old key here
        told |= {key: getattr(self.source, key).model_dump(mode="json") for key in ("mask", "layout", "data")}
        periods = {name: root.period for name, root in op.roots.items() if root.period}
        told |= {"periods": periods} if periods else {}
        text = json.dumps(told | {"seed": self.source.seed, "inputs_version": INPUTS_VERSION}, sort_keys=True)
        return short(text)

    @property
    def mask_shape(self) -> MaskShape:
        """The sizes and the seed on which the mask depends."""
        sizes, sequences = self.op.sizes, self.op.tensors["mask"].ne[3] if self.op.has_mask else 1
        return MaskShape(sizes.n_kv, sizes.n_q, sequences, self.recipe.seed, self.op.params.n_kv_max)


def expand(scenario: Scenario) -> list[Case]:
    """The cases of a scenario, in the order of its matrix; InputError if ggml or the op would reject one.

    Scenarios from `load` and `from_ops` are already checked.
    """
    if not scenario.cases:
        scenario = checked(scenario.model_dump(mode="json", exclude_unset=True), scenario.name, scenario.name)
    names = case_names(scenario.name, [variation for variation, _ in scenario.cases])
    return [resolve(case, name, scenario.name) for (_, case), name in zip(scenario.cases, names, strict=True)]


def resolve(scenario: Scenario, name: str, file: str) -> Case:
    """The case of a checked scenario, without its matrix."""
    recipe = Recipe(scenario.mask, scenario.layout, scenario.data, scenario.seed)
    same = {key: getattr(scenario, key) for key in ("about", "tolerance", "inspect", "expect", "device")}
    return Case(name=name, scenario=file, op=op_of(scenario), source=recipe, **same)


def op_of(scenario: Scenario) -> Op:
    """The op of a scenario, without its matrix."""
    params = Params(
        scale=default_scale(scenario.hsk) if scenario.scale is None else float32(scenario.scale),
        max_bias=scenario.max_bias,
        logit_softcap=scenario.logit_softcap,
        prec=PREC[scenario.prec],
        n_kv_max=scenario.n_kv_max,
    )
    hsv, heads_kv, type_V = (
        scenario.hsv or scenario.hsk,
        scenario.n_head_kv or scenario.n_head,
        scenario.type_V or scenario.type_K,
    )
    layout = scenario.layout
    placed = [
        place("Q", "f32", (scenario.hsk, scenario.n_q, scenario.n_head, scenario.n_seq), layout.Q),
        place("K", scenario.type_K, (scenario.hsk, scenario.n_kv, heads_kv, scenario.n_seq), layout.K),
    ]
    if isinstance(layout.V, ViewOfK):
        placed.append((placed[1][0], view_of_K(placed[1][1], hsv, layout.V)))
    else:
        placed.append(place("V", type_V, (hsv, scenario.n_kv, heads_kv, scenario.n_seq), layout.V))
    if not isinstance(scenario.mask, NoMask):
        placed.append(place_mask(scenario.n_kv, scenario.n_q, scenario.n_seq, layout.mask))
    if scenario.sinks:
        root = Root("sinks", "f32", (scenario.n_head, 1, 1, 1))
        placed.append((root, TensorView("sinks", "f32", "sinks", root.ne, root.nb, 0)))
    roots, tensors = {root.name: repeating(root) for root, _ in placed}, {view.name: view for _, view in placed}
    return Op(params, tensors, roots)


RECORDED = ".gguf"
"""The suffix of case files and captures."""


def read_cases(file: Path) -> list[Case]:
    """The cases of a scenario, or the recorded case of a `.gguf` file; for `FILE/CASE`, only that case."""
    if file.parent.is_file():
        return [one_case(file.parent, file.name)]
    return [recorded_case(file)] if file.suffix == RECORDED else expand(load(file))


def cases_like(path: Path) -> dict[str, Path]:
    """Candidates by name, as `FILE/CASE`: all cases of FILE for `FILE/NAME`, otherwise similar shipped cases."""
    if path.parent.is_file():
        return {f"{path.parent}/{case.name}": path.parent / case.name for case in read_cases(path.parent)}
    files = (*shipped.files("scenario"), *sorted(shipped.folder("suite").glob("*/*.yaml")))
    like = [file for file in files if f"{path}-".startswith(f"{file.stem}-")]
    return {case.name: file / case.name for file in like for case in read_cases(file)}


def recorded_case(path: Path) -> Case:
    """The case in a case file or a capture, named after the file; its inputs are not read until they are needed."""
    from fattn_probe.cases.op.case_file import read_case  # imports gguf, which listing scenarios does not need

    file = read_case(path)
    return Case(
        name=path.stem,
        scenario=path.stem,
        about=f"recorded as {file.name}",
        op=file.op,
        source=Recording(path.resolve(), file.digest),
        tolerance=Tolerance(),
        inspect=Inspect(),
        expect={},
        device=None,
    )


def cases_of(paths: Sequence[Path]) -> list[Case]:
    """The cases of scenario files, recorded cases and folders; one InputError reports the mistakes of all files."""
    files = list[Path]()
    for path in paths:
        inside = (*path.glob("*.yaml"), *path.glob(f"*{RECORDED}")) if is_folder(path) else (path,)
        files += sorted(inside)
    cases, problems = list[Case](), []
    for file in files:
        try:
            cases += read_cases(file)
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("\n".join(problems))
    if not cases:
        raise InputError(f"no scenario in {', '.join(map(str, paths))}" if paths else "no scenario was given")
    return told_apart(cases)


def told_apart(cases: Sequence[Case]) -> list[Case]:
    """The cases; recordings with the same file name, such as those from two models, get their folder as a prefix."""
    files = {case.source.path for case in cases if isinstance(case.source, Recording)}
    times = Counter(path.stem for path in files)
    return [
        replace(case, name=f"{case.source.path.parent.name}-{case.name}")
        if isinstance(case.source, Recording) and times[case.name] > 1
        else case
        for case in cases
    ]


def one_case(path: Path, name: str) -> Case:
    """The case named `name`, or the only case if `name` is empty; InputError if there is no such case."""
    cases = cases_of([path])
    found = [case for case in cases if case.name == name or not name]
    if len(found) != 1:
        raise InputError(f"{path} has these cases; choose one with --case: {', '.join(case.name for case in cases)}")
    return found[0]
