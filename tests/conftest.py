"""What all tests share. Modules of the folder ``shared`` can be imported everywhere: ``from helpers import ...``.

Strategies are kept in a temporary folder here, never in the user's: workers and subprocesses inherit it. Text is
wrapped at one width, whatever terminal the tests run in. Temporary files lie in memory where there is room for them,
unless TMPDIR says otherwise: no test asks whether a disk kept what it was told to. Each process computes in one thread.
What collection made stays for good, so the garbage collector passes over it, and looks at the rest less often.

Of a test marked ``few`` the normal suite runs some cases, ``make test-long`` the others: the cases of these ids,
``@pytest.mark.few("rows", "units")``, or each so-many-th of them, ``@pytest.mark.few(every=5)``.

``assurance("races run", 8)`` in a test adds to a figure of docs/assurance.md. `make assurance` names the file that
such notes and the outcome of every test go to; without it they go nowhere.
"""

import collections
import contextlib
import gc
import importlib
import json
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent / "shared"))

NOTES = "DPSQL_ASSURANCE_NOTES"
MEMORY, ROOM = "/dev/shm", 4 << 30

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported, which is later


def _memory_has_room():
    try:
        found = os.statvfs(MEMORY)
    except (AttributeError, OSError):
        return False
    free = found.f_bavail * found.f_frsize
    return free >= ROOM and not found.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK | os.X_OK)


if "TMPDIR" not in os.environ and _memory_has_room():
    os.environ["TMPDIR"] = MEMORY
    tempfile.tempdir = None  # asked for anew


def pytest_configure(config):
    os.environ["COLUMNS"] = "120"
    gc.disable()  # until all is collected
    if hasattr(config, "workerinput"):
        return  # a worker shares the folder of the process that started it
    folder = tempfile.mkdtemp(prefix="dpsql-strategies-")
    os.environ["DPSQL_CACHE"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection(session):
    # Workers collect alike. Every other one imports from the end first: each writes half of what Python compiles.
    number = os.environ.get("PYTEST_XDIST_WORKER", "")[2:]
    if not number.isdecimal() or int(number) % 2 == 0 or session.config.args != session.config.getini("testpaths"):
        return
    for path in sorted(pathlib.Path(__file__).parent.rglob("test_*.py"), reverse=True):
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collection says what is wrong
            importlib.import_module(path.stem)


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by their marks
def pytest_collection_modifyitems(config, items):
    families = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") is not None:
            families[item.nodeid.partition("[")[0]].append(item)
    whole = not any("::" in argument for argument in config.args)
    for name, cases in families.items():
        mark = cases[0].get_closest_marker("few")
        unknown = set(mark.args) - {case.callspec.id for case in cases}
        if whole and unknown:
            raise pytest.UsageError(f"{name}: few names {unknown}, which are no cases of it")
        kept = cases[:: mark.kwargs["every"]] if mark.kwargs else [c for c in cases if c.callspec.id in mark.args]
        for case in set(cases).difference(kept):
            case.add_marker(pytest.mark.long)


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    gc.enable()


def pytest_unconfigure():
    gc.unfreeze()  # extensions of C++ would call what is left at the end leaked


def _note(**entry):
    path = os.environ.get(NOTES)
    if path:
        with open(path, "a", encoding="utf-8") as notes:
            notes.write(json.dumps(entry) + "\n")


@pytest.fixture
def assurance(request):
    """A function of a figure's name, an amount that adds to it, and details to keep beside it."""

    def add(figure, amount=1, **details):
        _note(figure=figure, amount=amount, test=request.node.nodeid, **details)

    return add


@pytest.fixture
def short_searches(monkeypatch):
    """Pure strategies of all kinds after the fewest steps: for tests of what plans are held to, not of how good they
    are.
    """
    from dpsql.strategies import selection
    from dpsql.strategies.pure import norm_blocks

    monkeypatch.setattr(selection, "WORK", selection.WORK / 100)
    monkeypatch.setattr(norm_blocks, "_FEWEST", 3)
    monkeypatch.setattr(norm_blocks, "_MOST_STEPS", 4)
    monkeypatch.setattr(norm_blocks, "_POLISHED", 1)
    monkeypatch.setattr(norm_blocks, "_JOINED", 10)


def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return  # the process that collects the reports of all notes them
    if report.when == "call" or report.outcome != "passed":
        _note(ran=report.nodeid, outcome=report.outcome, seconds=round(report.duration, 3))
