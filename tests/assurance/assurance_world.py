"""A small world to break: a private table, its policy, a plan; and the invariants that must outlive every fault.

Run as a program it is the driver of the tests that kill: it imports dpsql once and forks a child for each
fault, so that a death costs milliseconds. The parent itself opens no database, for threads do not survive a fork.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dpsql
from dpsql.driver.connection import Connection
from dpsql.engines import duckdb as engine
from dpsql.planning.plan import Plan
from dpsql.privacy.ledger import Ledger
from dpsql.release.release import Release

HERE = Path(__file__).parent
PACKAGE = Path(dpsql.__file__).parent
POLICY = """
dataset = "faults-1"
[budget]
epsilon = 1000
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
"""
BATCH = "SELECT k, count(*) AS n FROM t GROUP BY k; SELECT count(*) AS n FROM t"
EPSILON = 0.25
UNITS = 250_000_000_000

# The ways of a release after planning: the rooms whose functions count as steps.
STEPS = (
    "driver/connection.py",
    "release/books.py",
    "measure/__init__.py",
    "measure/job.py",
    "measure/cells.py",
    "measure/checks.py",
    "privacy/ledger",
    "privacy/chain.py",
    "privacy/entries.py",
    "engines/duckdb.py",
    "release/store.py",
    "release/reading.py",
    "release/writing.py",
    "release/lock.py",
)
CALLS = ("execute", "fetchnumpy", "urandom", "link", "fsync", "close", "connect", "copy")


def make(folder: Path, policy: str = POLICY) -> Path:
    """The world's files in ``folder``; the path of its policy."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "t.csv").write_text("k\n" + "".join(f"{i % 10}\n" for i in range(50)))
    path = folder / "p.toml"
    path.write_text(policy)
    return path


def connect(folder: Path, **options: Any) -> Connection:
    """A connection to the world in ``folder``."""
    return dpsql.connect(policy=folder / "p.toml", **options)


def release(con: Connection, epsilon: float = EPSILON) -> Release:
    """One more release, never an earlier one again."""
    return con.run(BATCH, epsilon, fresh=True)


class Step:
    """A profile function that counts the steps of a release and acts at the chosen one, from 1; at 0 at each."""

    def __init__(self, at: int, act: Callable[[], object]) -> None:
        self.at = at
        self.act = act
        self.count = 0
        self.where = ""

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Called by Python at every call and return."""
        name = getattr(argument, "__name__", "") if event.startswith("c_") else frame.f_code.co_name
        path = frame.f_code.co_filename
        if not path.startswith(str(PACKAGE)) or not path[len(str(PACKAGE)) + 1 :].startswith(STEPS):
            return
        if name.startswith("<") or (event.startswith("c_") and name not in CALLS):
            return
        self.count += 1
        if self.at == 0:
            self.act()
        elif self.count == self.at:
            self.where = f"{event} {name}"
            sys.setprofile(None)
            self.act()


def steps_of(work: Callable[[], object]) -> int:
    """How many steps ``work`` has."""
    counter = Step(-1, lambda: None)
    sys.setprofile(counter)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counter.count


def spread(last: int, most: int) -> list[int]:
    """At most ``most`` of the numbers 1, ..., ``last``, evenly, with both ends."""
    if last <= most:
        return list(range(1, last + 1))
    return sorted({1 + (last - 1) * i // (most - 1) for i in range(most)})


def fault_of(folder: Path, *, charges: int = 0, releases: int = 0, again: bool = True) -> str:
    """What is wrong with a world after a fault, "" if nothing is.

    Nothing released uncharged, spent = sum of charges, the chain whole, no acknowledged charge or release lost;
    with ``again`` also: the next release works, is charged once and shows itself, and no file is left behind.
    """
    con = connect(folder)
    if con.ledger_path.exists():
        ledger = con._books.ledger()
        ledger.verify()
        state = ledger.state()
        released = list(ledger.releases())
        if sum(entry.charge.units for entry in state.charges) != sum(account.spent_units for account in state.accounts):
            return "spent is not the sum of the charges"
        if len(state.charges) < charges or len(released) < releases:
            return f"acknowledged and lost: {len(state.charges)} charges, {len(released)} releases"
        if len(state.unreleased) + len(released) != len(state.charges):
            return "the budget does not say what was lost"
    elif charges:
        return "the ledger is gone"
    if not again:
        return ""
    before = con.budget.spent
    found = release(con)
    if abs(con.budget.spent - before - EPSILON) > 1e-9:
        return "the next release is not charged as it should be"
    if con.sql(f"SELECT * FROM r{found.id}.q2").fetchall() != found["q2"].fetchall():
        return "the next release does not show"
    ids = {row[0] for row in con.sql("SELECT release_id FROM releases").fetchall()}
    if ids != {entry.id for entry in con.releases() if entry.released is not None}:
        return "the releases file is not the ledger's"
    left = [name for name in os.listdir(folder) if name.endswith((".tmp", ".new", "-journal", ".wal"))]
    return f"left behind: {left}" if left else ""


def in_child(work: Callable[[], str]) -> tuple[int, str]:
    """``work`` in a forked child: its signal (0 if it ended by itself) and the text that it returned."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = work()
        except BaseException:  # noqa: BLE001 - the parent must see it, whatever it is
            text = "raised: " + traceback.format_exc()
        os.write(writer, text.encode()[-60000:])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0), text


def drive(program: str, *arguments: object) -> Any:
    """What a function of this module's programs prints as JSON, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{HERE}", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", f"import assurance_world as w; w.{program}()", *map(str, arguments)],
        capture_output=True, text=True, env=environment,
        timeout=3600,  # ends what hangs; no program takes a tenth of it
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def planned(folder: Path) -> Plan:
    """The plan of the world's batch, made in a child so that this process opens no database."""

    def work() -> str:
        with (folder / "plan").open("wb") as file:
            pickle.dump(connect(folder).plan(BATCH, EPSILON), file)
        return ""

    assert in_child(work) == (0, "")
    plan: Plan = pickle.loads((folder / "plan").read_bytes())
    return plan


def content(folder: Path) -> str:
    """A hash of the names and the bytes of all files in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        held = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(folder)} {len(held)} ".encode() + held)
    return found.hexdigest()


def turns(states: Sequence[object]) -> list[int]:
    """The steps, from 1, at which the state is another than a step before, and those before them, with both ends."""
    last = len(states)
    others = [step for step in range(2, last + 1) if states[step - 1] != states[step - 2]]
    return sorted({1, last, *others, *(step - 1 for step in others)})


def kill_at_each_step() -> None:
    """Arguments: folder, steps at most, 0 for those around which the files change. Prints kills and what went wrong.

    What a kill leaves is what the files hold: a step after which they hold the same is the same kill.
    """
    world = Path(sys.argv[1]) / "world"
    most = int(sys.argv[2])
    make(world)
    plan = planned(world)

    def released() -> str:
        con = connect(world)
        for _ in range(2):
            con.run(plan, fresh=True)
        return ""

    def under(place: Path, profile: Step) -> None:
        con = connect(place)
        con.budget  # noqa: B018 - opens the ledger
        sys.setprofile(profile)
        con.run(plan, fresh=True)
        sys.setprofile(None)

    def counted(place: Path) -> str:
        states: list[str] = []
        under(place, Step(0, lambda: states.append(content(place))))
        return json.dumps([len(states), spread(len(states), most) if most else turns(states)])

    def killed(place: Path, step: int) -> str:
        under(place, Step(step, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        return "alive"

    def survived(place: Path) -> str:
        return json.dumps((len(connect(place).budget.unreleased), fault_of(place, charges=2, releases=2)))

    assert in_child(released) == (0, "")
    place = world.parent / "counted"
    shutil.copytree(world, place)
    last, chosen = json.loads(in_child(lambda: counted(place))[1])
    kills, charged_only, wrong = 0, 0, []
    # Before the charge most kills leave the very same bytes: what comes of them is looked at once.
    outcomes: dict[str, tuple[int, str]] = {}
    for step in chosen:
        # A world of its own: what a release does before its charge grows with the entries of the ledger.
        place = world.parent / str(step)
        shutil.copytree(world, place)
        number, text = in_child(lambda place=place, step=step: killed(place, step))  # type: ignore[misc]
        kills += number == signal.SIGKILL
        if number != signal.SIGKILL:
            wrong.append(f"step {step}: no kill, {text}")
        left = content(place)
        if left not in outcomes:
            number, text = in_child(lambda place=place: survived(place))  # type: ignore[misc]
            lost, fault = json.loads(text) if text.startswith("[") else (0, text)
            outcomes[left] = (lost, f"{number} {fault}" if number or fault else "")
        lost, fault = outcomes[left]
        charged_only += lost
        if fault:
            wrong.append(f"step {step}: {fault}")
        shutil.rmtree(place)
    found = {"steps": last, "chosen": len(chosen), "kills": kills, "charged_only": charged_only, "wrong": wrong}
    print(json.dumps(found))


def disk_full() -> None:
    """Arguments: folder, how many limits. A file size limit just above what is there: writes fail at ever later places.

    Prints the outcomes by kind and what went wrong.
    """
    folder, most = Path(sys.argv[1]), int(sys.argv[2])
    make(folder)
    plan = planned(folder)
    in_child(lambda: str(release(connect(folder)).id))

    def limited(room: int) -> str:
        con = connect(folder)
        con.budget  # noqa: B018 - opens the ledger
        # Writes beyond the limit fail with EFBIG; Python ignores the signal.
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        try:
            found = con.run(plan, fresh=True)
        except dpsql.LedgerError as error:
            return f"LedgerError {error}"
        except dpsql.OperationalError as error:
            return f"OperationalError {error}"
        return f"released {found.id}"

    outcomes: dict[str, int] = {}
    wrong, charges, releases = [], 1, 1
    for room in [512 * i * i for i in range(most)]:
        number, text = in_child(lambda room=room: limited(room))  # type: ignore[misc]
        kind = text.split()[0] if text else str(number)
        outcomes[kind] = outcomes.get(kind, 0) + 1
        if kind not in ("LedgerError", "OperationalError", "released") or "\n" in text:
            wrong.append(f"{room} bytes: {number} {text}")
        charges += kind == "released"
        releases += kind == "released"
        number, text = in_child(
            lambda charges=charges, releases=releases: fault_of(  # type: ignore[misc]
                folder, charges=charges, releases=releases, again=False
            )
        )
        if number or text:
            wrong.append(f"{room} bytes, afterwards: {number} {text}")
    number, text = in_child(lambda: fault_of(folder, charges=charges, releases=releases))
    if number or text:
        wrong.append(f"at the end: {number} {text}")
    print(json.dumps({"limits": most, "outcomes": outcomes, "wrong": wrong}))


def race() -> None:
    """Arguments: folder, then numbers of processes. Whole releases race for the last five of a budget."""
    folder = Path(sys.argv[1])
    grants = []
    for processes in map(int, sys.argv[2:]):
        place = folder / str(processes)
        make(place, POLICY.replace("epsilon = 1000", f"epsilon = {5 * EPSILON}"))
        plan = planned(place)
        start, go = os.pipe()

        def racer(place: Path = place, plan: Plan = plan, start: int = start) -> str:
            con = connect(place)
            os.read(start, 1)
            granted = 0
            for _ in range(5):
                try:
                    con.run(plan, fresh=True)
                    granted += 1
                except dpsql.BudgetError:
                    pass
            return str(granted)

        pipes = []
        for _ in range(processes):
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.write(writer, racer().encode())
                os._exit(0)
            os.close(writer)
            pipes.append(reader)
        os.write(go, b"x" * processes)
        counts = [int(os.read(reader, 10) or b"-1") for reader in pipes]
        for _ in range(processes):
            os.wait()
        _, state = in_child(lambda place=place: str(connect(place)._books.ledger().verify()))  # type: ignore[misc]
        grants.append({"processes": processes, "granted": sum(counts), "links": state})
    print(json.dumps(grants))


def read_only() -> None:
    """Argument: folder. A user without write access: nothing is charged, what is there can be read."""
    folder = Path(sys.argv[1])
    folder.chmod(0o755)
    make(folder / "warm")
    scratch = folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    # With the ledger, without one, and where the folder may be written and the ledger may not.
    for name, folder_mode, file_mode in (("held", 0o555, 0o444), ("new", 0o555, 0o444), ("file", 0o777, 0o444)):
        place = folder / name
        make(place)
        if name != "new":
            in_child(lambda place=place: str(release(connect(place)).id))  # type: ignore[misc]
        plan = planned(place)
        for path in place.iterdir():
            path.chmod(file_mode)
        place.chmod(folder_mode)

        def ask(place: Path = place, plan: Plan = plan) -> str:
            tempfile.tempdir = str(scratch)  # the system's own may be closed to the other user
            # Everything that Python and DuckDB load late is loaded now; the other user may not be let in there.
            con = connect(folder / "warm")
            con.run(plan, fresh=True)
            con.budget  # noqa: B018
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            con = connect(place)
            try:
                con.run(plan, fresh=True)
            except dpsql.LedgerError as error:
                return f"{con.budget.spent} {error}"
            return "released"

        print(json.dumps(in_child(ask)))
        place.chmod(0o755)
        for path in place.iterdir():
            path.chmod(0o644)
        print(json.dumps(in_child(lambda place=place: fault_of(place))))  # type: ignore[misc]


def endless(monkeypatch: Any) -> None:
    """Scans of the world's table never end."""
    rows = "(SELECT (range % 10)::INTEGER AS k FROM range(1000000000000000))"
    monkeypatch.setattr(engine, "_reference", lambda *_: rows)


def interrupted_scan() -> None:
    """Argument: folder. A real SIGINT in the middle of a scan that never ends."""
    folder = Path(sys.argv[1])
    make(folder)

    class Patch:
        setattr = staticmethod(setattr)

    con = connect(folder)
    plan = con.plan(BATCH, EPSILON)
    real = engine._reference
    endless(Patch)
    # A process that a shell put into the background ignores it from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    charge = Ledger.charge

    def charge_and_wait(*args: Any, **options: Any) -> int:
        number = charge(*args, **options)
        timer.start()
        return number

    Ledger.charge = charge_and_wait  # type: ignore[method-assign]
    outcome = "released"
    try:
        con.run(plan)
    except KeyboardInterrupt as error:
        outcome = f"interrupted {error.args} {error.__context__}"
    engine._reference, Ledger.charge = real, charge  # type: ignore[method-assign]
    state = con.budget
    print(json.dumps([outcome, state.spent, [e.id for e in state.unreleased], fault_of(folder, charges=1)]))
