"""`--html` and `--svg`: inspections as files."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from fattn_probe.base.errors import InputError
from fattn_probe.base.files import write_text
from fattn_probe.daily.inspect.command import pair
from fattn_probe.daily.inspect.examine import Examined
from fattn_probe.daily.inspect.trace.picture import trace_picture
from fattn_probe.daily.inspect.trace.reference import JudgedTrace
from fattn_probe.daily.inspect.trace.show import followed, stage_table
from fattn_probe.daily.inspect.view.page import Section, environment, page, side_by_side_page
from fattn_probe.daily.inspect.view.side_by_side import side_by_side
from fattn_probe.daily.inspect.view.work_picture import svg_of


def write_page(done: Sequence[Examined], path: Path) -> None:
    """Write one inspection, or two side by side, as an HTML page."""
    both = pair(done)
    if both is None and len(done) != 1:
        raise InputError(f"--html shows one inspection, or two side by side; there are {len(done)}")
    (first, *_) = done
    if both is not None:
        write_text(path, side_by_side_page(side_by_side(*both)))
    elif first.facts is not None:
        sections = [Section("trace", "Trace", trace_section(first.trace))] if first.trace else []
        write_text(path, page(first.facts, first.inspection.reasons, sections))


def trace_section(trace: JudgedTrace) -> Markup:
    """The pictures of a trace, and a table of its stages; `view` shows it step by step."""
    body = Markup(trace_picture(trace))
    if trace.stages:
        table = environment().get_template("parts.html.j2").make_module().table  # type: ignore[attr-defined]
        body += Markup("<p>{}</p>").format(followed(trace)) + table("stages", stage_table(trace))
    return body


def write_map(done: Sequence[Examined], path: Path) -> None:
    """Write the map of one inspection's work as SVG."""
    facts = [item.facts for item in done if item.facts is not None]
    if len(facts) != 1 or not facts[0].blocks:
        raise InputError(f"--svg shows the blocks of one inspection; there are {len(facts)}")
    write_text(path, svg_of(facts[0]))
