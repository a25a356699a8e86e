"""The table of commands: its help is the commands' own, a command imports only its rooms, and shells complete words."""

import inspect
import json
import subprocess
import sys
from itertools import groupby

import pytest
import typer

from fattn_probe import cli
from fattn_probe.cases import shipped
from fattn_probe.cli import app, setup
from fattn_probe.cli.commands import LazyCommand, commands, wants_json
from fattn_probe.cli.compare import JudgeFlags
from tests.made import ROOT

HEAVY = {"gguf", "jinja2", "matplotlib", "multiprocessing", "numpy", "pexpect", "pygdbmi", "sqlite3", "urllib.request"}
LIST_MODULES = """\
import json, sys
from fattn_probe.cli import main
sys.argv = ["fattn-probe", *sys.argv[2:]]
try:
    main()
finally:
    with open(OUT, "w") as file:
        json.dump(sorted(sys.modules), file)
"""


def modules(words, out):
    """The modules that a command has imported when it ends."""
    code = LIST_MODULES.replace("OUT", repr(str(out)))
    subprocess.run([sys.executable, "-c", code, "--", *words], cwd=ROOT, capture_output=True, check=False)
    return json.loads(out.read_text())


def rooms(names):
    """The rooms of fattn_probe among some modules, but for those of `base` and `cli`."""
    places = [name.split(".")[1:3] for name in names if name.startswith("fattn_probe.")]
    return {place[1] for place in places if len(place) == 2 and place[0] not in {"base", "cli"}}


@pytest.fixture
def printed(monkeypatch, capsys):
    """What fattn-probe prints, in an environment with these variables."""

    def printing(*words, **variables):
        monkeypatch.setattr(sys, "argv", ["fattn-probe", *words])
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out

    return printing


@pytest.mark.parametrize("name", [name for _, name, *_ in commands()])
def test_the_help_in_the_table_is_the_commands_own(name):
    command = typer.main.get_group(app).commands[name]
    assert isinstance(command, LazyCommand)
    assert inspect.cleandoc(command.loaded.help) == command.help
    assert command.loaded.name in (name, "")


def test_help_has_every_command_in_one_group():
    """What is only measured or learnt with is in the last group, whose rooms are those of the district `lab`."""
    assert len({name for _, name, *_ in commands()}) == len(commands())
    groups = [group for group, *_ in commands()]
    assert len(list(groupby(groups))) == len(set(groups))
    for group, _, place, _ in commands():
        source = (ROOT / f"fattn_probe/cli/{place.partition(':')[0]}.py").read_text()
        assert ("\nfrom fattn_probe.lab" in source) == (group == "Learn and measure"), place


@pytest.mark.parametrize("width", [60, 80])
def test_a_commands_flags_stand_under_their_headings(width, printed):
    """A heading for each object, after the command's own options; no line is wider than the terminal."""
    text = printed("compare", "--help", COLUMNS=width)
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    shared = [setup.Where, JudgeFlags, setup.BuildFlags, setup.Simulate]
    assert headings == ["Arguments", "Options", *(kind.__doc__ for kind in shared)]
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--version"], {"run"}),
        (["--help"], set()),
        (["nonsense"], set()),
        (["scenario", "list"], {"scenario", "op", "shipped"}),
        (["scenario", "show", "gqa"], {"scenario", "op", "shipped"}),
        (["device", "list"], {"device", "shipped"}),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else " ".join(value),
)
def test_a_light_command_imports_only_what_it_uses(words, needed, tmp_path):
    found = modules(words, tmp_path / "modules.json")
    assert rooms(found) == needed
    assert not HEAVY & set(found)


@pytest.mark.parametrize(("words", "collects"), [(["device", "list"], True), (["--version"], False)])
def test_memory_is_collected_once_a_command_is_imported(words, collects):
    code = "import atexit, gc, fattn_probe.__main__ as f; atexit.register(lambda: print(gc.isenabled())); f.main()"
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"{collects}\n")


def test_the_pytest_plugin_imports_nothing_heavy():
    code = "import sys, pytest; a = set(sys.modules); import fattn_probe.pytest_plugin; print(*set(sys.modules) - a)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"fattn_probe", "fattn_probe.pytest_plugin"}


def test_commands_options_and_values_are_completed(printed):
    def completed(*words):
        """The words that bash offers for the last of `words`, which may be empty."""
        line = {"COMP_WORDS": " ".join(["fattn-probe", *words]), "COMP_CWORD": len(words)}
        return printed(_FATTN_PROBE_COMPLETE="complete_bash", **line).split()

    assert completed("d") == ["demo", "doctor", "debug", "diff", "device"]
    assert completed("scenario", "") == ["list", "show", "check", "new", "from-ops", "from-capture"]
    assert {"--on", "--repeat"} <= set(completed("compare", "--"))
    assert completed("run", "gqa", "--on", "sim:h") == ["sim:h100", "sim:h200"]
    assert "fault-stream-k-seam" in completed("inspect", "gqa", "--patch", "fault-")
    assert {name for name in completed("run", "gqa", "--patch", "") if name.startswith("faults/")} == {"faults/"}
    assert completed("run", "gqa", "--patch", "faults/") == shipped.names("fault")
    assert completed("run", "q8-") == [name for name in shipped.names("scenario") if name.startswith("q8-")]
    assert "quick" in completed("regress", "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("device list --json", True),
        ("--json", True),
        ("program x.cu -- --json", False),
        ("program x.cu --json -- --json", True),
        ("program x.cu --", False),
    ],
)
def test_json_behind_two_dashes_is_the_programs(words, wanted):
    assert wants_json(words.split()) is wanted


def test_an_interrupted_command_says_so(monkeypatch, capsys):
    """Typer turns the interrupt of a command into an exit code."""
    interrupted = typer.Typer()

    @interrupted.command()
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["fattn-probe"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == cli.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
