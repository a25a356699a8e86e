"""The history: runs, their results, and which of them is the baseline."""

import hashlib
import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fattn_probe.errors import InputError
from fattn_probe.regress.records import Identity, Result, Run
from fattn_probe.regress.schema import opened, transaction, translated

IDENTITY = tuple(Identity.__dataclass_fields__)
RESULT = "name, results.digest AS digest, status, reason, metrics, output, seconds, failure"


def now() -> str:
    """The time, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class History:
    """An open database; every method that writes is one transaction."""

    connection: sqlite3.Connection
    path: Path

    def begin(self, identity: Identity, suite: str) -> Run:
        """A new run, without results yet."""
        run = Run(0, uuid.uuid4().hex, identity, suite, now(), None)
        with self._writing():
            return self._run_of(self._insert_run(run))

    def add(self, run: Run, result: Result) -> None:
        """A result; one of the same case takes its place."""
        with self._writing():
            self._insert_result(run.id, result, now())

    def end(self, run: Run) -> None:
        """The run has seen all of its cases."""
        with self._writing():
            self.connection.execute("UPDATE runs SET ended = ? WHERE id = ?", (now(), run.id))

    def accept(self, run: Run, who: str, why: str) -> None:
        """Make a run what later ones of its line are compared with."""
        with self._writing():
            self.connection.execute(
                "INSERT OR REPLACE INTO accepted (run, at, who, why) VALUES (?, ?, ?, ?)", (run.id, now(), who, why)
            )

    def baseline(self, line: str, suite: str) -> Run | None:
        """The last run of a line and suite that was accepted."""
        row = self.connection.execute(
            "SELECT runs.id FROM accepted JOIN runs ON runs.id = accepted.run"
            " WHERE runs.line = ? AND runs.suite = ? ORDER BY accepted.id DESC LIMIT 1",
            (line, suite),
        ).fetchone()
        return self._run_of(row["id"]) if row else None

    def runs(self, line: str = "", suite: str = "") -> list[Run]:
        """Runs, the oldest first; of one line or suite if given."""
        rows = self.connection.execute(
            "SELECT id FROM runs WHERE (? = '' OR line = ?) AND (? = '' OR suite = ?) ORDER BY started, id",
            (line, line, suite, suite),
        )
        return [self._run_of(row["id"]) for row in rows.fetchall()]

    def run(self, uid: str) -> Run:
        """The run whose uid begins with `uid`; InputError if there is none, or more than one."""
        rows = self.connection.execute("SELECT id FROM runs WHERE uid LIKE ? || '%'", (uid,)).fetchall()
        if len(rows) != 1:
            raise InputError(f"history {self.path}: {len(rows) or 'no'} runs begin with {uid!r}")
        return self._run_of(rows[0]["id"])

    def results(self, run: Run) -> dict[str, Result]:
        """All results of a run, by case."""
        rows = self.connection.execute(
            f"SELECT {RESULT}, launches.text AS launches FROM results"
            " LEFT JOIN launches ON launches.id = results.launches WHERE run = ? ORDER BY results.id",
            (run.id,),
        )
        return {row["name"]: _result(row) for row in rows}

    def series(self, line: str, name: str) -> list[tuple[Run, Result]]:
        """One case through all runs of a line, the oldest first."""
        rows = self.connection.execute(
            f"SELECT runs.id AS run_id, {RESULT}, launches.text AS launches FROM results"
            " JOIN runs ON runs.id = results.run LEFT JOIN launches ON launches.id = results.launches"
            " WHERE runs.line = ? AND name = ? ORDER BY runs.started, runs.id",
            (line, name),
        ).fetchall()
        return [(self._run_of(row["run_id"]), _result(row)) for row in rows]

    def merge(self, other: "History") -> int:
        """Take over the other's runs that this one has not, with their results; how many there were."""
        known = {run.uid for run in self.runs()}
        missing = [run for run in other.runs() if run.uid not in known]
        for run in missing:
            with self._writing():
                number = self._insert_run(run)
                for result in other.results(run).values():
                    self._insert_result(number, result, run.started)
        return len(missing)

    def prune(self, before: str) -> int:
        """Forget the runs that started before a time, but for those that are accepted; how many there were."""
        with self._writing():
            cursor = self.connection.execute(
                "DELETE FROM runs WHERE started < ? AND id NOT IN (SELECT run FROM accepted)", (before,)
            )
            self.connection.execute(
                "DELETE FROM launches WHERE id NOT IN (SELECT launches FROM results WHERE launches IS NOT NULL)"
            )
        return cursor.rowcount

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with translated(self.path), transaction(self.connection):
            yield

    def _insert_run(self, run: Run) -> int:
        fields = asdict(run.identity) | {"uid": run.uid, "line": run.identity.line, "suite": run.suite}
        fields |= {"started": run.started, "ended": run.ended}
        return _insert(self.connection, "runs", fields)

    def _insert_result(self, run: int, result: Result, at: str) -> None:
        fields: dict[str, Any] = asdict(result) | {"run": run, "at": at, "launches": self._launches(result.launches)}
        fields |= {"metrics": json.dumps(dict(result.metrics)), "seconds": json.dumps(result.seconds)}
        _insert(self.connection, "results", fields, "OR REPLACE")

    def _launches(self, text: str) -> int | None:
        """The row of these launch records: most nights launch what the night before did."""
        if not text:
            return None
        digest = hashlib.sha256(text.encode()).hexdigest()
        row = self.connection.execute("SELECT id FROM launches WHERE digest = ?", (digest,)).fetchone()
        return int(row["id"]) if row else _insert(self.connection, "launches", {"digest": digest, "text": text})

    def _run_of(self, number: int) -> Run:
        row = self.connection.execute("SELECT * FROM runs WHERE id = ?", (number,)).fetchone()
        identity = Identity(**{name: row[name] for name in IDENTITY})
        return Run(row["id"], row["uid"], identity, row["suite"], row["started"], row["ended"])


@contextmanager
def open_history(path: Path) -> Iterator[History]:
    """The history at `path`, made if there is none."""
    with opened(path) as connection:
        yield History(connection, path)


def _insert(connection: sqlite3.Connection, table: str, fields: Mapping[str, Any], how: str = "") -> int:
    names, marks = ", ".join(fields), ", ".join("?" * len(fields))
    cursor = connection.execute(f"INSERT {how} INTO {table} ({names}) VALUES ({marks})", tuple(fields.values()))
    return int(cursor.lastrowid or 0)


def _result(row: sqlite3.Row) -> Result:
    return Result(
        name=row["name"],
        digest=row["digest"],
        status=row["status"],
        reason=row["reason"],
        metrics=json.loads(row["metrics"]),
        output=row["output"],
        launches=row["launches"] or "",
        seconds=tuple(json.loads(row["seconds"])),
        failure=row["failure"],
    )
