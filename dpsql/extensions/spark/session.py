"""A Spark session of dpsql's own beside the user's: its settings, its silence, and what a failure may say.

``newSession`` shares the cluster, the catalogs and their tables, and nothing else: no setting, temporary view or
function of the user's session reaches it, and none of its own reaches back. Settings that change what SQL means go
back to Spark's defaults, and a few are fixed; those of catalogs, file systems, partitions and adaptive execution
are the user's. A session lives for one scan and the check before it, so that files written since the last one are
found.

Nothing that Spark says of a failure gets out: work runs in a thread whose exceptions die there, a job group lets it be
stopped, and the log of the driver is off meanwhile. Logs of executors are their own; no expression of a scan can fail
on a value (``functions``), so that they have none to print.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from dpsql.common.extras import install_command
from dpsql.engines.limits import Outcome
from dpsql.errors import Error, InterfaceError, OperationalError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")

# Settings of the user's session that a scan keeps; every other one of SQL has Spark's default.
_KEPT = (
    *("spark.sql.catalog.", "spark.sql.adaptive.", "spark.sql.shuffle.partitions", "spark.sql.files.max"),
    *("spark.sql.autoBroadcastJoinThreshold", "spark.sql.broadcastTimeout", "spark.sql.hive.", "fs."),
    *("spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.warehouse.dir", "spark.sql.sources.parallel"),
)
FIXED = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.sources.validatePartitionColumns": "false",
    # Rules that work constants out while a statement is optimised, at the ends of the calendar too, where that fails.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in ("UnwrapCastInBinaryComparison", "PushFoldableIntoBranches")
    ),
    # Else each session has a class loader of its own, and Spark and the JVM compile the same scan again for each run.
    "spark.sql.artifact.isolation.enabled": "false",
    # From 8,000 bytes on the JVM interprets a method; Spark then goes row by row through compiled parts.
    "spark.sql.codegen.hugeMethodLimit": "8000",
}
_PY4J = ("py4j", "py4j.clientserver", "py4j.java_gateway")
_LOG4J = "org.apache.logging.log4j"
_PYSPARK = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_AGAIN = 0.2  # seconds between two cancellations: a job of the group may begin after the first
_PATIENCE = 1.0


def check_session(session: SparkSession) -> None:
    """Refuse a version that was not tested, Spark Connect, and a session that is stopped. InterfaceError."""
    try:
        import pyspark
    except ImportError:
        pyspark = None
    if pyspark is None:
        raise InterfaceError(f"Spark needs pyspark and Java 17; install pyspark with: {install_command('spark')}")
    if pyspark.__version__.split(".")[0] != "4":
        raise InterfaceError(f"PySpark {pyspark.__version__} is not supported; install one from 4 up to, not with, 5")
    if type(session).__module__.startswith("pyspark.sql.connect"):
        raise InterfaceError(
            "this is a Spark Connect session, which hides the driver's logs and settings; "
            "run dpsql where the driver runs and pass its session"
        )
    check_open(session)


def check_open(session: SparkSession) -> None:
    """Refuse a session that is stopped, or whose Java process is gone. InterfaceError; nothing was charged."""
    _, outcome = inside(session, lambda: check_alive(session), None, quiet=False)
    if outcome == "interrupted":
        raise KeyboardInterrupt


def check_alive(session: SparkSession) -> None:
    """``check_open``, in the thread that asks Spark."""
    context = session._sc
    stopped = getattr(context, "_jsc", None) is None
    reached = stopped
    if not stopped:
        with contextlib.suppress(Exception):
            stopped = bool(context._jsc.sc().isStopped())
            reached = True
    if not reached:
        raise InterfaceError(
            "the Java process of the Spark session cannot be reached; make a new session, which needs Java 17 on PATH "
            "or in JAVA_HOME, and connect again (nothing was charged)"
        )
    if stopped:
        raise InterfaceError("the Spark session is stopped; make a new one and connect again (nothing was charged)")


def private_session(session: SparkSession) -> SparkSession:
    """A session for one scan beside ``session``; see the module."""
    made = session.newSession()
    own, theirs = _settings(made, session)
    for key in own:
        if key.startswith("spark.sql.") and not key.startswith(_KEPT) and made.conf.isModifiable(key):
            made.conf.unset(key)
    for key, value in theirs.items():
        if key.startswith(_KEPT) and own.get(key) != value and (made.conf.isModifiable(key) or key.startswith("fs.")):
            made.conf.set(key, value)
    for key, value in FIXED.items():
        made.conf.set(key, value)
    return made


def _settings(*sessions: SparkSession) -> list[dict[str, str]]:
    """All settings of each session, as one text: a call of Java for each of them takes longer than planning a scan."""
    java = sessions[0]._jvm
    as_java = getattr(java, "scala.jdk.javaapi.CollectionConverters").asJava
    held = [as_java(session._jsparkSession.conf().getAll()) for session in sessions]
    text = getattr(java, "com.fasterxml.jackson.databind.ObjectMapper")().writeValueAsString(held)
    return list(json.loads(text))


def inside(
    session: SparkSession,
    work: Callable[[], T],
    seconds: float | None,
    *,
    quiet: bool = True,
    first: Callable[[], None] = lambda: None,
) -> tuple[T | None, Outcome]:
    """What ``work`` returns, or how it ended without; errors of dpsql itself are raised again here.

    It runs in a thread, under a job group of its own, while this one waits: a deadline or Ctrl-C cancels the group.
    ``first`` is done there before the log is off.
    Whatever Spark raises is dropped there, for its text and its frames may hold private values.
    """
    found: list[T] = []
    said: list[tuple[type[Error], str]] = []
    ended, stopped = threading.Event(), threading.Event()
    group = f"dpsql-{uuid.uuid4().hex}"
    context = session._sc

    def run() -> None:
        # All of it here: a Ctrl-C is raised in the main thread alone, so that none leaves the log as it should not be.
        with contextlib.suppress(BaseException):
            try:
                first()
                with silence(context) if quiet else contextlib.nullcontext():
                    if quiet:
                        context.setJobGroup(group, "dpsql", interruptOnCancel=True)
                    if not stopped.is_set():
                        found.append(work())
            except Error as error:
                said.append((type(error), str(error)))
        ended.set()

    worker = threading.Thread(target=run, name="dpsql-spark", daemon=True)
    start, outcome, begun = time.monotonic(), "done", False
    while not ended.is_set():
        try:
            while not ended.is_set():
                if outcome == "done":
                    if not begun:
                        begun = True
                        worker.start()
                    left = math.inf if seconds is None else seconds - (time.monotonic() - start)
                    ended.wait(max(0.0, min(left, _PATIENCE)))
                    outcome = "late" if left <= 0.0 else outcome
                elif worker.ident is None:
                    ended.set()  # interrupted before it ran
                else:
                    stopped.set()
                    with contextlib.suppress(Exception):
                        context.cancelJobGroup(group)
                    ended.wait(_AGAIN)
        except KeyboardInterrupt:
            outcome = "interrupted"
            stopped.set()
    if outcome == "interrupted":
        return None, "interrupted"
    if said:
        kind, text = said[0]
        raise kind(text)
    if found:
        return found[0], "done"
    return None, "late" if outcome == "late" else "failed"


_quiet = threading.Lock()
_held: list[contextlib.ExitStack] = []
"""What puts the log back."""
_depth = 0


@contextlib.contextmanager
def silence(context: SparkContext) -> Iterator[None]:
    """The driver's log off: all of Log4j, and Python's of py4j, put back when the last scan has ended.

    Raises OperationalError where it cannot be, as Spark logs the values that an error names.
    """
    global _depth
    done = False
    with _quiet, contextlib.suppress(Exception):
        if not _depth:
            _held.append(_switched_off(context))
        _depth += 1
        done = True
    if not done:
        raise OperationalError(
            "the log of Spark's driver cannot be switched off, and it may print private values; "
            "let Spark log through its own Log4j 2"
        )
    try:
        yield
    finally:
        with _quiet, contextlib.suppress(Exception):
            _depth -= 1
            if not _depth:
                _held.pop().close()


def _switched_off(context: SparkContext) -> contextlib.ExitStack:
    """Switches every logger off; closing what comes back puts them back. None is off where one of them cannot be.

    A filter of the whole configuration, the first of all, denies what any logger would print, whatever its level
    becomes meanwhile. Loggers one by one would be a hundred calls of Java.
    """
    from pyspark.logger import PySparkLogger

    with contextlib.ExitStack() as back:
        # At DEBUG these print what Java answers, stack traces and paths among it; PySpark's print errors of statements.
        for one in [logging.getLogger(name) for name in _PY4J] + [PySparkLogger.getLogger(name) for name in _PYSPARK]:
            back.callback(one.setLevel, one.level)
            one.setLevel(logging.CRITICAL + 1)
        configuration = getattr(context._jvm, f"{_LOG4J}.LogManager").getContext(False).getConfiguration()
        nothing = getattr(context._jvm, f"{_LOG4J}.core.filter.DenyAllFilter").newBuilder().build()
        others = configuration.getFilter()
        back.callback(configuration.removeFilter, nothing)
        configuration.addFilter(nothing)
        if others is not None:  # one of them may accept what this one denies
            configuration.removeFilter(others)
            configuration.addFilter(others)
        return back.pop_all()
