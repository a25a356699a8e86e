"""The history's database: its tables, its migrations, and how it is opened."""

import json
import os
import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fattn_probe.base.errors import InputError, LostError, MachineError
from fattn_probe.daily.regress.records import whole_op

APPLICATION_ID = 0x66617474
"""The bytes `fatt`, which mark a database as one of fattn-probe's histories."""
FIRST_TABLES = frozenset({"runs", "launches", "results", "accepted"})
"""The tables of version 1, which had no application id."""
BUSY_SECONDS = 60.0  # another run on the same database holds the lock for milliseconds
MIGRATIONS = (
    """
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        uid TEXT NOT NULL UNIQUE,      -- the same run in every database that it was merged into
        line TEXT NOT NULL,            -- runs with the same line are compared with each other
        suite TEXT NOT NULL,
        started TEXT NOT NULL,         -- UTC, ISO 8601
        ended TEXT,                    -- null during the run, or if it was killed
        machine TEXT NOT NULL,
        device TEXT NOT NULL,
        cc TEXT NOT NULL,
        driver TEXT NOT NULL,
        engine TEXT NOT NULL,
        flavour TEXT NOT NULL,
        source TEXT NOT NULL,
        build_number TEXT NOT NULL,
        patches TEXT NOT NULL,
        version TEXT NOT NULL          -- of fattn-probe
    );
    CREATE INDEX runs_by_line ON runs (line, suite, started);
    CREATE TABLE launches (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,   -- sha256 of the text
        text TEXT NOT NULL             -- JSON lines, as in a capture
    );
    CREATE TABLE results (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        name TEXT NOT NULL,            -- of the case
        digest TEXT NOT NULL,          -- of the op and its inputs
        at TEXT NOT NULL,
        status TEXT NOT NULL,          -- pass, fail, unsupported, lost
        reason TEXT NOT NULL,
        metrics TEXT NOT NULL,         -- JSON
        output TEXT,                   -- sha256 of dst's bytes
        launches INTEGER REFERENCES launches (id),
        seconds TEXT NOT NULL,         -- JSON: the time of each repeat; empty if times are meaningless
        failure TEXT NOT NULL,
        UNIQUE (run, name)
    );
    CREATE INDEX results_by_case ON results (name, run);
    CREATE INDEX results_by_status ON results (run, status);
    CREATE TABLE accepted (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL UNIQUE REFERENCES runs (id) ON DELETE CASCADE,
        at TEXT NOT NULL,
        who TEXT NOT NULL,
        why TEXT NOT NULL
    );
    """,
    """
    -- ratio: the largest error as a share of its bound, null if no bound is known; time: the median of the repeats
    ALTER TABLE results ADD COLUMN ratio REAL;
    ALTER TABLE results ADD COLUMN nmse REAL;
    ALTER TABLE results ADD COLUMN time REAL;
    UPDATE results SET nmse = json_extract(metrics, '$.nmse'), time = median(seconds);
    CREATE INDEX results_by_night ON results (run, name, digest, status, ratio, nmse, time);
    CREATE TABLE shades (
        result INTEGER PRIMARY KEY REFERENCES results (id) ON DELETE CASCADE,
        heads INTEGER NOT NULL,
        queries INTEGER NOT NULL,
        rows INTEGER NOT NULL,         -- of the map; at most 64 rows and 64 columns
        columns INTEGER NOT NULL,
        packed BLOB NOT NULL           -- zlib, one byte for each place
    );
    CREATE TABLE parts (
        run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,       -- of the shard; part 1 of 1 is a complete run
        of INTEGER NOT NULL,
        planned INTEGER NOT NULL,      -- cases; 0 if unknown
        started TEXT NOT NULL,
        ended TEXT,
        PRIMARY KEY (run, number, of)
    );
    INSERT INTO parts (run, number, of, planned, started, ended) SELECT id, 1, 1, 0, started, ended FROM runs;
    CREATE TABLE cases (
        name TEXT NOT NULL,
        digest TEXT NOT NULL,
        op TEXT NOT NULL,              -- JSON
        PRIMARY KEY (name, digest)
    );
    CREATE TABLE sources (
        source TEXT NOT NULL,
        build_number TEXT NOT NULL,
        patches TEXT NOT NULL,
        kernels TEXT NOT NULL,         -- JSON: the names of all kernel cases of its template-instances
        PRIMARY KEY (source, build_number, patches)
    );
    """,
    "UPDATE cases SET op = whole_op(op);",
    """
    ALTER TABLE shades RENAME TO error_maps;
    -- details: JSON with warning, missing, sampled, checks, finding; later also known, diagnosis and unlike_base
    ALTER TABLE results ADD COLUMN details TEXT NOT NULL DEFAULT '{}';
    -- checks: JSON, how cases were judged, null if unknown; only: the run's name filter
    ALTER TABLE runs ADD COLUMN checks TEXT;
    ALTER TABLE runs ADD COLUMN only TEXT NOT NULL DEFAULT '';
    """
    f"PRAGMA application_id = {APPLICATION_ID};\n",
    """
    -- fingerprint: JSON, digests of what was run, empty if not stored; night: the call that the run belongs to
    ALTER TABLE runs ADD COLUMN fingerprint TEXT NOT NULL DEFAULT '';
    ALTER TABLE runs ADD COLUMN night TEXT NOT NULL DEFAULT '';
    CREATE INDEX runs_by_night ON runs (night);
    CREATE TABLE calls (
        night TEXT PRIMARY KEY,
        suite TEXT NOT NULL,
        source TEXT NOT NULL,
        only TEXT NOT NULL,
        targets TEXT NOT NULL,         -- JSON
        started TEXT NOT NULL,
        ended TEXT                     -- null while the call runs, and if it was stopped
    );
    """,
)
VERSION = len(MIGRATIONS)


@contextmanager
def opened(path: Path, *, reading: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the database at `path`; creates or migrates it if needed. With `reading`, opens a current one read-only.

    Raises InputError for a folder, a file that is not a database, another program's database, or a history from a newer
    fattn-probe. Raises MachineError for a full disk or an unwritable history, LostError for a held lock.
    """
    with translated(path):
        version = version_of(path)
        with closing(read_only(path) if reading and version == VERSION else _connect(path)) as connection:
            migrate(connection, path)
            yield connection


def version_of(path: Path) -> int:
    """The version of a history, 0 for a missing or empty file; raises InputError if the file is not a history."""
    if path.is_dir():
        raise InputError(f"history {path}: this is a folder; name a file")
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with closing(read_only(path)) as connection:
        tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        identifier, version = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
        )
    ours = identifier == APPLICATION_ID or (identifier == 0 and (not tables or tables >= FIRST_TABLES))
    if not ours:
        named = ", ".join(sorted(tables)[:4]) or "none"
        raise InputError(f"history {path}: another program's database (tables: {named}); name another file")
    return version


def read_only(path: Path) -> sqlite3.Connection:
    """Open a read-only connection."""
    writable = os.access(path.parent, os.W_OK, effective_ids=True)
    log = path.with_name(f"{path.name}-wal")
    how = "mode=ro" if writable or log.exists() else "immutable=1"  # WAL mode needs a second file, even for reading
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    return connection


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Translate SQLite's errors into the classes of `errors`."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        said = str(error)
        if "disk is full" in said or "disk I/O" in said:
            raise MachineError(f"history {path}: {said}; everything written so far is safe") from error
        if "locked" in said:
            raise LostError(f"history {path}: {said}; everything written so far is safe") from error
        if "readonly" in said or "unable to open" in said:
            raise MachineError(f"history {path}: {said}; check the permissions of this file and its folder") from error
        raise InputError(f"history {path}: {said}") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that locks out other writers from the start."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that the database lacks, in order."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise InputError(
            f"history {path} is of version {version}, made by a newer fattn-probe; this one knows {VERSION}"
        )
    while version < VERSION:
        with transaction(connection):
            (now,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have migrated it first
            if now == version:
                for statement in [statement for statement in MIGRATIONS[version].split(";\n") if statement.strip()]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")
        version += 1


def _median(seconds: str) -> float | None:
    values = json.loads(seconds)
    return statistics.median(values) if values else None


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.create_function("median", 1, _median, deterministic=True)
    connection.create_function("whole_op", 1, whole_op, deterministic=True)
    connection.execute("PRAGMA foreign_keys = ON")
    deadline = time.monotonic() + BUSY_SECONDS
    while True:  # SQLite does not wait for a lock here if two runs create the same database
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = NORMAL")  # only a power failure loses the last commits
    return connection
