"""`fattn-probe scenario list|show|check|new|from-ops`: the commands and their tables."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from fattn_probe.base.errors import InputError
from fattn_probe.base.figures import number_of
from fattn_probe.base.files import is_folder, make_folder, write_text
from fattn_probe.base.tables import Table
from fattn_probe.cases import shipped
from fattn_probe.cases.scenario.cases import Case, Recording, read_cases
from fattn_probe.cases.scenario.check import load
from fattn_probe.cases.scenario.from_ops import defaults_in, from_ops
from fattn_probe.cases.scenario.schema import Scenario

STARTER = Path(__file__).with_name("starter.yaml")
"""The file that `scenario new` writes."""


Row = dict[str, Any]


def list_scenarios(folder: Path | None = None) -> list[Row]:
    """The scenarios in a folder, by default the shipped ones: `name`, `path`, `about`, `cases`, `problem`.

    `cases` is the number of cases, `problem` the first mistake in the file, empty if there is none.
    """
    if folder is None:
        return [_listing(path) | {"name": shipped.name_of("scenario", path)} for path in shipped.files("scenario")]
    if not folder.is_dir():
        raise InputError(f"{folder}: no folder of scenarios, allowed: a folder with *.yaml files")
    return [_listing(path) for path in _files(folder)]


def check(paths: Sequence[Path]) -> list[Row]:
    """Check files, and all files in folders; returns the `path`, the case names (`cases`) and the `problems` for each.

    InputError if there are no files.
    """
    files = [file for path in paths for file in (_files(path) if is_folder(path) else [path])]
    if not files:
        raise InputError(f"no scenario in {', '.join(map(str, paths))}")
    checks: list[Row] = []
    for file in files:
        try:
            names, problems = [case.name for case in read_cases(file)], []
        except InputError as error:
            names, problems = [], str(error).splitlines()
        checks.append({"path": str(file), "cases": names, "problems": problems})
    return checks


def new(path: Path) -> Path:
    """Write a starter file with comments; InputError if the file exists, MachineError if it cannot be written."""
    if path.name in ("", ".."):
        raise InputError(f"{path}: is a folder, allowed: a new file")
    path = path if path.suffix in (".yaml", ".yml") else path.with_name(path.name + ".yaml")
    if os.path.lexists(path):
        raise InputError(f"{path}: exists, allowed: a new file")
    write_text(path, STARTER.read_text(encoding="utf-8"))
    return path


def from_ops_yaml(text: str) -> str:
    """A scenario file for a case of test-backend-ops; `load` reads it back as the same scenario.

    A comment lists the parameters that the case's name omits, with their defaults.
    """
    made = to_yaml(from_ops(text))
    filled = ", ".join(f"{key}={value}" for key, value in defaults_in(text).items())
    return f"# omitted, so with test-backend-ops' defaults: {filled}\n{made}" if filled else made


def write(made: Sequence[Scenario], folder: Path) -> list[Path]:
    """Write scenarios to files named after them; InputError, before any is written, if a file exists already."""
    paths = [folder / f"{scenario.name}.yaml" for scenario in made]
    taken = [path for path in paths if path.exists() or paths.count(path) > 1]
    if taken:
        raise InputError(f"{taken[0]}: exists, or two scenarios have this name; allowed: a new file for each")
    make_folder(folder, "--out")
    for scenario, path in zip(made, paths, strict=True):
        write_text(path, to_yaml(scenario))
    return paths


def to_yaml(scenario: Scenario) -> str:
    """The text of a scenario file, with only the keys that were set."""
    settings = scenario.model_dump(mode="json", exclude_unset=True)
    return yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def case_json(case: Case) -> Row:
    """A case as plain data for `--json`."""
    plain = {name: getattr(case, name) for name in ("name", "scenario", "about", "seed", "expect", "device")}
    plain |= {name: getattr(case, name).model_dump(mode="json") for name in ("tolerance", "inspect")}
    if isinstance(case.source, Recording):
        plain |= {"recording": str(case.source.path)}
    else:
        plain |= {name: getattr(case.source, name).model_dump(mode="json") for name in ("mask", "layout", "data")}
    op = case.op
    plain |= dataclasses.asdict(op.sizes) | {"type_K": op.type_K, "type_V": op.type_V, "sinks": op.has_sinks}
    return plain | dataclasses.asdict(op) | {"digest": case.digest, "flop": op.sizes.flop}


def render_list(listings: Sequence[Row]) -> RenderableType:
    """A table of scenarios."""
    rows = (
        (Text(one["name"], "bold"), str(one["cases"]), Text(one["problem"], "red") if one["problem"] else one["about"])
        for one in listings
    )
    return Table(("scenario", "cases", "about"), tuple(rows), frozenset({"cases"}), frozenset({"about"}))


def render_show(cases: Sequence[Case]) -> RenderableType:
    """The resolved cases of a scenario, with ne and nb in ggml's order."""
    parts: list[RenderableType] = []
    for case in cases:
        op, rows = case.op, []
        params = " ".join(f"{name}={value:g}" for name, value in dataclasses.asdict(op.params).items())
        device, gflop = case.device or "default", f"{op.sizes.flop / 1e9:.3g} GFLOP"
        about = f"{params} seed={case.seed} mask={case.mask_kind} device={device} digest={case.digest} {gflop}"
        for name, view in op.tensors.items():
            root = op.roots[view.root]
            data = "recorded" if case.recorded else str(getattr(case.recipe.data, view.root, case.recipe.mask).kind)
            ne, nb, root_ne = ("{" + ", ".join(map(str, sizes)) + "}" for sizes in (view.ne, view.nb, root.ne))
            place = "" if root.ne == view.ne else f"{root.name} {root_ne}"
            rows.append((name, view.type, ne, nb, str(view.offset), place, data))
        table = Table(("tensor", "type", "ne", "nb", "offset", "in", "data"), tuple(rows), frozenset({"offset"}))
        parts += [Text(case.name, "bold"), Text(f"  {case.about}"), Text(f"  {about}"), table, Text()]
    return Group(*parts[:-1])


def render_check(checks: Sequence[Row]) -> RenderableType:
    """One line for each valid file, and all mistakes in the invalid files."""
    lines = []
    for one in checks:
        good = Text(f"{one['path']}: good, {number_of(len(one['cases']), 'case')}", "green")
        lines += [Text(problem, "red") for problem in one["problems"]] or [good]
    return Group(*lines)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))


def _listing(path: Path) -> Row:
    found: Row = {"name": path.stem, "path": str(path), "about": "", "cases": 0, "problem": ""}
    try:
        scenario = load(path)
    except InputError as error:
        return found | {"problem": str(error).splitlines()[0]}
    return found | {"about": scenario.about, "cases": len(scenario.cases)}
