"""Write outcomes as JUnit XML, for CI systems."""

import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from fattn_probe.daily.regress.changes import Change, ChangeKind
from fattn_probe.daily.regress.records import Result
from fattn_probe.daily.regress.runner import Outcome

OF_IDENTITY = ("source", "build_number", "patches", "device", "driver", "engine", "flavour", "machine", "version")
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcomes: Sequence[Outcome]) -> str:
    """The XML document: one test suite per target, one test per case.

    A case that causes exit code 5 or 6 is a `failure`. A case that was lost, not judged or not run is an `error`, never
    a pass. Unsupported cases, known defects and failures that the accepted run also has are `skipped`, with the reason.
    """
    root = ET.Element("testsuites", name="fattn-probe regress")
    for outcome in outcomes:
        run = outcome.run
        name = f"{run.suite} on {run.identity.device}"
        suite = ET.SubElement(root, "testsuite", name=name, timestamp=run.started[:19])
        said = {name: getattr(run.identity, name) for name in OF_IDENTITY}
        _add_properties(suite, said | {"checks": str(run.settings.checks or "unknown"), "filter": run.settings.only})
        alarms: dict[str, list[Change]] = {}
        for change in outcome.alarms:
            alarms.setdefault(change.case, []).append(change)
        for result in outcome.results.values():
            suite.append(_test(outcome, result, alarms.get(result.name, ())))
        # The planned cases that were not run: by name if the baseline has them, otherwise as one test for all of them.
        names = [change.case for change in outcome.changes if change.kind is ChangeKind.NOT_RUN]
        others = outcome.counts["not run"] - len(names)
        for name in [*names, *([f"{others} cases"] if others > 0 else [])]:
            test = _named(outcome, name)
            ET.SubElement(test, "error", type="not run", message="not run: no verdict")
            suite.append(test)
        for attribute, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{kind}"))))
        suite.set("tests", str(len(suite.findall("testcase"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_properties(element: ET.Element, values: Mapping[str, str]) -> None:
    properties = ET.SubElement(element, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=_text(value))


def _named(outcome: Outcome, name: str) -> ET.Element:
    place = f"{outcome.run.suite}.{outcome.run.identity.device}".replace(" ", "_")
    return ET.Element("testcase", classname=_text(place), name=_text(name))


def _test(outcome: Outcome, result: Result, alarms: Sequence[Change]) -> ET.Element:
    test = _named(outcome, result.name)
    if result.time is not None:
        test.set("time", f"{result.time:.9f}")
    if result.reused:
        _add_properties(test, {"taken over": "from an earlier run"})
    finding, place = result.finding, ""
    defect = {"known": result.known} if result.known else {}
    if finding is not None:  # where a kernel was stopped by a fault
        indices = {"block": finding.block, "thread": finding.thread}
        places = {name: ",".join(map(str, index)) for name, index in indices.items() if index is not None}
        kernel = {"kernel": finding.kernel} if finding.kernel else {}
        _add_properties(test, {"finding": finding.kind, **kernel, **places, **defect})
        if finding.file:
            test.set("file", _text(finding.file))
            test.set("line", str(finding.line))
        place = f" in {finding.place}" if finding.place else ""
    elif defect:
        _add_properties(test, defect)
    if alarms:
        message = "; ".join(f"{change.kind}: {change.words}" for change in alarms) + place
        ET.SubElement(test, "failure", type=alarms[0].kind.value, message=_text(message)).text = _text(result.failure)
    elif result.status in ("lost", "unjudged"):
        ET.SubElement(test, "error", type=result.status, message=_text(result.reason)).text = _text(result.failure)
    elif result.status == "fail" and outcome.baseline is None and not result.known:
        ET.SubElement(test, "failure", type="fail", message=_text(result.explained + place)).text = _text(
            result.failure
        )
    elif result.status != "pass":
        known = "known failure" if result.status == "fail" else result.status
        ET.SubElement(test, "skipped", type=known, message=_text(f"{known}: {result.explained}{place}"))
    return test


def _text(text: str) -> str:
    """Replace characters that XML forbids, since a crash's output may contain any byte."""
    return NOT_XML.sub("?", text)
