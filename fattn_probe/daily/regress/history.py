"""The history: a database of runs, their results, and the accepted baselines."""

import itertools
import json
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fattn_probe.base.digest import hexdigest
from fattn_probe.base.documents import Document
from fattn_probe.base.errors import InputError
from fattn_probe.base.fingerprint import FINGERPRINT, fingerprint_in
from fattn_probe.daily.regress.records import (
    ALL,
    CASE,
    RESULT,
    WHOLE,
    Cell,
    Identity,
    PackedMap,
    Result,
    Run,
    RunPart,
    Settings,
    Shard,
    StoredCase,
)
from fattn_probe.daily.regress.schema import opened, transaction, translated
from fattn_probe.verdict.judge.checks import Checks

IDENTITY = tuple(name for name in Identity.__dataclass_fields__ if name != "fingerprint")
COLUMNS = (
    "name, results.digest AS digest, status, reason, metrics, output, seconds, failure, details,"
    " launches.text AS launches"
)
DETAILS = (
    *("warning", "missing", "sampled", "checks", "finding", "known", "diagnosis", "unlike_base", "fingerprint"),
    "reused",
)
FIELDS = tuple(name for name in Result.__dataclass_fields__ if name not in ("error_map", *DETAILS))
PACKED = tuple(PackedMap.__dataclass_fields__)
RUN = "SELECT runs.*, (SELECT sum(planned) FROM parts WHERE parts.run = runs.id) AS planned FROM runs"
UNKNOWN = Settings()
CHECKS = Document("the checks of a run", Checks)
NIGHTS = 60
"""Number of past runs of a line and suite that pages show and from which levels of run time are computed."""


def now() -> str:
    """The current time in UTC, to the millisecond (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def after(at: str | None) -> str:
    """The current time, or a time just after `at` if the clock has not advanced or was set back."""
    current = now()
    if at is None or current > at:
        return current
    return (datetime.fromisoformat(at) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class History:
    """An open database; each method that writes does so in one transaction."""

    connection: sqlite3.Connection
    path: Path

    def begin(
        self, identity: Identity, suite: str, part: RunPart = WHOLE, planned: int = 0, *, settings: Settings = UNKNOWN
    ) -> Run:
        """Begin a run without results, or add a part to the existing run of the same name."""
        uid = part.uid(identity, suite, settings.only) or uuid.uuid4().hex
        run = Run(0, uid, identity, suite, now(), None, settings=settings, night=part.night)
        with self._writing():
            number = self._number_of(uid) or self._insert_run(run)
            self._insert_part(number, part.shard, planned, now(), None)
            return _run(self.connection.execute(f"{RUN} WHERE id = ?", (number,)).fetchone())

    def carry(self, old: Run, new: Run, names: Iterable[str]) -> None:
        """Copy the results for some cases from one run to another."""
        results, maps = self.results(old), self.error_maps(old)
        at = "SELECT name, at FROM results WHERE run = ?"
        with self._writing():
            times = {row["name"]: row["at"] for row in self.connection.execute(at, (old.id,))}
            for name in names:
                self._insert_result(new.id, replace(results[name], error_map=maps.get(name)), times[name])

    def add(self, run: Run, result: Result) -> None:
        """Store a result; it replaces an earlier result for the same case, even in a later `merge`."""
        at = "SELECT max(at) FROM results WHERE run = ? AND name = ?"
        with self._writing():
            replaced = self.connection.execute(at, (run.id, result.name)).fetchone()[0]
            self._insert_result(run.id, result, after(replaced))

    def end(self, run: Run, shard: Shard = ALL) -> None:
        """Mark a shard as finished; the run is finished when all of its shards are."""
        with self._writing():
            self.connection.execute(
                "UPDATE parts SET ended = ? WHERE run = ? AND number = ? AND of = ?",
                (now(), run.id, shard.number, shard.of),
            )
            self._close(run.id)

    def unfit(self, run: Run, shard: Shard = ALL) -> str:
        """Why a run, or only a shard of it, cannot be a baseline; empty if it can."""
        missing, named = self.unfinished(run), f"run {run.uid[:8]} ({run.place})"
        if missing and (shard == ALL or f"shard {shard}" in missing):
            return f"{named} did not finish"
        cases = self.connection.execute("SELECT count(*) FROM results WHERE run = ?", (run.id,)).fetchone()[0]
        return "" if cases else f"{named} has no cases"

    def accept(self, run: Run, who: str, why: str, shard: Shard = ALL) -> None:
        """Make a run the baseline for later runs of its line; raises InputError if the run, or its shard, is unfit."""
        if said := self.unfit(run, shard):
            raise InputError(f"{said}; accept a run that finished and has cases; `regress --resume` finishes a run")
        with self._writing():
            self.connection.execute(
                "INSERT OR REPLACE INTO accepted (run, at, who, why) VALUES (?, ?, ?, ?)", (run.id, now(), who, why)
            )

    def know(self, cases: Iterable[StoredCase], identity: Identity, kernels: Sequence[str]) -> None:
        """Store the cases and a source's kernels, so that a page can be generated from the database alone."""
        source = (identity.source, identity.build_number, identity.patches)
        with self._writing():
            self.connection.executemany(
                "INSERT OR IGNORE INTO cases (name, digest, op) VALUES (?, ?, ?)",
                ((case.name, case.digest, CASE.text(case)) for case in cases),
            )
            known = (*source, json.dumps(kernels))
            self.connection.execute("INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?)", known)

    def cases(self, run: Run) -> dict[str, StoredCase]:
        """The stored cases of a run, with their ops, by name."""
        rows = self.connection.execute(
            "SELECT op FROM results JOIN cases USING (name, digest) WHERE run = ?", (run.id,)
        ).fetchall()
        records = (CASE.parse(row["op"], f"history {self.path}") for row in rows)
        return {record.name: record for record in records}

    def kernels(self, identity: Identity) -> list[str]:
        """The names of all kernel cases of a source; empty if they were not stored."""
        row = self.connection.execute(
            "SELECT kernels FROM sources WHERE source = ? AND build_number = ? AND patches = ?",
            (identity.source, identity.build_number, identity.patches),
        ).fetchone()
        return list(json.loads(row["kernels"])) if row else []

    def baseline(self, line: str, suite: str) -> Run | None:
        """The last accepted run of a line and suite."""
        row = self.connection.execute(
            f"{RUN} JOIN accepted ON accepted.run = runs.id"
            " WHERE runs.line = ? AND runs.suite = ? ORDER BY accepted.at DESC, accepted.id DESC LIMIT 1",
            (line, suite),
        ).fetchone()
        return _run(row) if row else None

    def accepted(self, run: Run) -> str:
        """Who accepted a run and why; empty if it was not accepted."""
        row = self.connection.execute("SELECT who, why FROM accepted WHERE run = ?", (run.id,)).fetchone()
        return f"{row['who']}: {row['why']}" if row else ""

    def runs(self, line: str = "", suite: str = "") -> list[Run]:
        """The runs, oldest first; only of one line or suite if given."""
        rows = self.connection.execute(
            f"{RUN} WHERE (? = '' OR line = ?) AND (? = '' OR suite = ?) ORDER BY started, id",
            (line, line, suite, suite),
        )
        return [_run(row) for row in rows]

    def counts(self) -> dict[int, dict[str, int]]:
        """The number of results by status, for each run id."""
        found: dict[int, dict[str, int]] = {}
        for row in self.connection.execute("SELECT run, status, count(*) AS n FROM results GROUP BY run, status"):
            found.setdefault(row["run"], {})[row["status"]] = row["n"]
        return found

    def unfinished(self, run: Run) -> list[str]:
        """The shards of a run that are missing or did not finish, such as `shard 2/8`; without shards, the run."""
        rows = self.connection.execute("SELECT number, of, ended FROM parts WHERE run = ?", (run.id,)).fetchall()
        ended = {(row["number"], row["of"]) for row in rows if row["ended"]}
        wanted = sorted({(number, row["of"]) for row in rows for number in range(1, row["of"] + 1)})
        gone = [Shard(*one) for one in wanted if one not in ended]
        return [f"run {run.uid[:8]}" if shard == ALL else f"shard {shard}" for shard in gone]

    def run(self, uid: str) -> Run:
        """The run whose uid begins with `uid`; raises InputError if there is none, or more than one."""
        rows = self.connection.execute(f"{RUN} WHERE substr(uid, 1, ?) = ?", (len(uid), uid)).fetchall()
        if len(rows) != 1:
            raise InputError(f"history {self.path}: {len(rows) or 'no'} runs have names that begin with {uid!r}")
        return _run(rows[0])

    def last_runs(self, suite: str = "") -> list[Run]:
        """The last run of each line and suite; raises InputError if there is none (which is not a pass)."""
        runs = (run for run in self.runs(suite=suite) if not run.only_baseline)
        if last := {(run.identity.line, run.suite): run for run in runs}:
            return list(last.values())
        has = ", ".join(sorted({run.suite for run in self.runs()}))
        raise InputError(f"history {self.path}: it has no runs{f' of suite {suite!r}, only of {has}' if has else ''}")

    def nights(self, last: Run) -> list[Run]:
        """The last `NIGHTS` runs of the same line and suite, up to the run `last`, oldest first."""
        runs = self.runs(last.identity.line, last.suite)
        return runs[: [run.id for run in runs].index(last.id) + 1][-NIGHTS:]

    def results(self, run: Run) -> dict[str, Result]:
        """All results of a run, by case, without the error maps (`error_maps` reads those)."""
        rows = self.connection.execute(
            f"SELECT {COLUMNS} FROM results"
            " LEFT JOIN launches ON launches.id = results.launches WHERE run = ? ORDER BY results.id",
            (run.id,),
        )
        return {row["name"]: _result(row) for row in rows}

    def error_maps(self, run: Run) -> dict[str, PackedMap]:
        """The error maps of a run's wrong outputs, by case."""
        rows = self.connection.execute(
            f"SELECT name, {', '.join(PACKED)} FROM results JOIN error_maps ON error_maps.result = results.id"
            " WHERE run = ?",
            (run.id,),
        )
        return {row["name"]: PackedMap(*(row[field] for field in PACKED)) for row in rows}

    def launches(self, run: Run) -> list[tuple[str, int]]:
        """The distinct launch records of a run, as text, each with its number of cases."""
        rows = self.connection.execute(
            "SELECT launches.text, count(*) FROM results JOIN launches ON launches.id = results.launches"
            " WHERE run = ? GROUP BY launches.id",
            (run.id,),
        )
        return [(row[0], row[1]) for row in rows]

    def outputs(self, runs: Sequence[Run], name: str) -> dict[int, str]:
        """The hashes of one case's outputs, by run."""
        wanted = {run.id for run in runs}
        rows = self.connection.execute("SELECT run, output FROM results WHERE name = ? AND output NOT NULL", (name,))
        return {row["run"]: row["output"] for row in rows if row["run"] in wanted}

    def cells(self, runs: Sequence[Run]) -> list[Cell]:
        """The results of some runs, in the order of the runs, with only the fields that plots need."""
        cursor = self.connection.cursor()
        cursor.row_factory = None  # tuples, because there are hundreds of thousands of rows
        query = (
            "SELECT run, name, digest, status, ratio, nmse, time FROM results INDEXED BY results_by_night WHERE run = ?"
        )
        rows = itertools.chain.from_iterable(cursor.execute(query, (run.id,)) for run in runs)
        return list(map(Cell._make, rows))

    def merge(self, other: "History") -> tuple[int, int]:
        """Copy missing runs and results, and newer results, from the other history into this one; idempotent.

        Returns the numbers of new runs, and of new or newer results.
        """
        before, taken = {run.uid for run in self.runs()}, 0
        at = "SELECT name, at FROM results WHERE run = ?"
        for run in other.runs():
            with self._writing():
                number = self._number_of(run.uid) or self._insert_run(run)
                mine = {row["name"]: row["at"] for row in self.connection.execute(at, (number,))}
                theirs = {row["name"]: row["at"] for row in other.connection.execute(at, (run.id,))}
                newer = [name for name, when in theirs.items() if when > mine.get(name, "")]
                results, maps = (other.results(run), other.error_maps(run)) if newer else ({}, {})
                for name in newer:
                    self._insert_result(number, replace(results[name], error_map=maps.get(name)), theirs[name])
                for row in other.connection.execute("SELECT * FROM parts WHERE run = ?", (run.id,)):
                    shard = Shard(row["number"], row["of"])
                    self._insert_part(number, shard, row["planned"], row["started"], row["ended"])
                for row in other.connection.execute("SELECT at, who, why FROM accepted WHERE run = ?", (run.id,)):
                    self.connection.execute("INSERT OR IGNORE INTO accepted VALUES (NULL, ?, ?, ?, ?)", (number, *row))
                self._close(number)
            taken += len(newer)
        with self._writing():
            for table, marks in (("cases", "?, ?, ?"), ("sources", "?, ?, ?, ?")):
                rows = other.connection.execute(f"SELECT * FROM {table}").fetchall()
                self.connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", map(tuple, rows))
        return len({run.uid for run in other.runs()} - before), taken

    def prune(self, before: str) -> int:
        """Delete the runs that started before a date, except accepted ones; returns the number deleted."""
        with self._writing():
            cursor = self.connection.execute(
                "DELETE FROM runs WHERE started < ? AND id NOT IN (SELECT run FROM accepted)", (before,)
            )
            self.connection.execute(
                "DELETE FROM launches WHERE id NOT IN (SELECT launches FROM results WHERE launches IS NOT NULL)"
            )
            self.connection.execute("DELETE FROM cases WHERE (name, digest) NOT IN (SELECT name, digest FROM results)")
        return cursor.rowcount

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with translated(self.path), transaction(self.connection):
            yield

    def _close(self, number: int) -> None:
        """End a run if all of its shards have ended."""
        self.connection.execute(
            "UPDATE runs SET ended = (SELECT max(ended) FROM parts WHERE run = :run) WHERE id = :run AND ended IS NULL"
            " AND (SELECT count(ended) = max(of) AND count(*) = count(ended) FROM parts WHERE run = :run)",
            {"run": number},
        )

    def _number_of(self, uid: str) -> int | None:
        row = self.connection.execute("SELECT id FROM runs WHERE uid = ?", (uid,)).fetchone()
        return int(row["id"]) if row else None

    def _insert_run(self, run: Run) -> int:
        fingerprint = run.identity.fingerprint
        fields = {name: getattr(run.identity, name) for name in IDENTITY} | {"night": run.night}
        fields |= {"fingerprint": FINGERPRINT.text(fingerprint) if fingerprint else ""}
        fields |= {"uid": run.uid, "line": run.identity.line, "suite": run.suite}
        fields |= {"started": run.started, "ended": run.ended, "only": run.settings.only}
        fields |= {"checks": CHECKS.text(run.settings.checks) if run.settings.checks else None}
        return self._insert("runs", fields)

    def _insert_part(self, number: int, shard: Shard, planned: int, started: str, ended: str | None) -> None:
        """Add a part of a run, or update its end and its number of cases."""
        self.connection.execute(
            "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " planned = max(planned, excluded.planned), ended = coalesce(ended, excluded.ended)",
            (number, shard.number, shard.of, planned, started, ended),
        )

    def _insert_result(self, run: int, result: Result, at: str) -> None:
        plain = RESULT.plain(result)
        fields: dict[str, Any] = {name: plain[name] for name in FIELDS}
        metrics, launches, text = dict(result.metrics), None, result.launches
        if text:  # stored once, since most results share their launches with others
            row = self.connection.execute("SELECT id FROM launches WHERE digest = ?", (hexdigest(text),)).fetchone()
            launches = row["id"] if row else self._insert("launches", {"digest": hexdigest(text), "text": text})
        fields |= {"run": run, "at": at, "launches": launches, "time": result.time}
        fields |= {"metrics": json.dumps(metrics), "seconds": json.dumps(result.seconds)}
        fields |= {"details": json.dumps({name: plain[name] for name in DETAILS})}
        fields |= {"ratio": metrics.get("error_by_bound"), "nmse": metrics.get("nmse")}
        number = self._insert("results", fields, "OR REPLACE")
        if result.error_map is not None:
            self._insert("error_maps", vars(result.error_map) | {"result": number})

    def _insert(self, table: str, fields: Mapping[str, Any], how: str = "") -> int:
        names, marks = ", ".join(fields), ", ".join("?" * len(fields))
        query = f"INSERT {how} INTO {table} ({names}) VALUES ({marks})"
        return int(self.connection.execute(query, tuple(fields.values())).lastrowid or 0)


@contextmanager
def open_history(path: Path, *, reading: bool = False) -> Iterator[History]:
    """Open the history at `path`, and create it if it does not exist; with `reading`, open it read-only."""
    with opened(path, reading=reading) as connection:
        yield History(connection, path)


def _run(row: sqlite3.Row) -> Run:
    identity = Identity(**{name: row[name] for name in IDENTITY}, fingerprint=fingerprint_in(row["fingerprint"]))
    settings = Settings(CHECKS.parse(row["checks"], row["uid"]) if row["checks"] else None, row["only"])
    about = (row["id"], row["uid"], identity, row["suite"], row["started"], row["ended"], row["planned"] or 0)
    return Run(*about, settings, row["night"])


def _result(row: sqlite3.Row) -> Result:
    stored = {name: json.loads(row[name]) for name in ("metrics", "seconds")} | {"launches": row["launches"] or ""}
    return RESULT.of({name: row[name] for name in FIELDS} | stored | json.loads(row["details"]))
