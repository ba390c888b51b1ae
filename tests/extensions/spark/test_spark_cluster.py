"""Executors in processes of their own that are killed in the middle of a scan: the same counts, or a clean error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="executors are found in /proc"),
]

CLUSTER = """
import contextlib, os, signal, threading, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from helpers import counts_of, policy_of
from pyspark.sql import SparkSession
import dpsql
from dpsql.extensions.spark.engine import SparkEngine
from dpsql.measure import TableSource
folder = {folder!r}
settings = {{
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.warehouse.dir": folder + "/w",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g",
    "spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "2",
    "spark.sql.files.maxPartitionBytes": "1k",  # a task for each file
    "spark.task.maxFailures": "{failures}",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}}
builder = SparkSession.builder.master("local-cluster[2,1,1024]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.range(0, 60000, 1, 240).selectExpr("CAST(id % 50 AS INT) AS age", "'secret' AS name").write.saveAsTable("visits")

def executors():
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes()
        except OSError:
            continue
        java = text.split(b"\\0")[0].endswith(b"java") and b"CoarseGrainedExecutorBackend" in text
        if java and os.path.realpath(process / "cwd").startswith(os.path.realpath(folder)):
            found.append(int(process.name))
    return found

killed = []
def kill(most):
    tracker = spark.sparkContext.statusTracker()
    while len(killed) < most and not ended.is_set():
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(stage is not None and stage.numCompletedTasks > 1 and stage.numActiveTasks for stage in stages):
            for process in executors()[: most - len(killed)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                killed.append(process)
        time.sleep(0.02)

ended = threading.Event()
killer = threading.Thread(target=kill, args=({kills},))
"""
ONE = """
source = TableSource("visits")
killer.start()
found = SparkEngine(spark).scan(counts_of(source, "age"))
ended.set()
print(len(killed), sorted(found["a0"]) == list(range(50)), set(found["n"].tolist()))
spark.stop()
"""
ALL = """
policy = policy_of('[tables.visits]\\nunit = "row"\\n[tables.visits.columns]\\nage = { lower = 0, upper = 49 }\\n')
con = dpsql.connect(spark, policy=policy, ledger=folder + "/x.ledger")
plan = con.plan("SELECT age, COUNT(*) AS n FROM visits GROUP BY age", 1)
killer.start()
try:
    con.run(plan)
except dpsql.Error as error:
    print(type(error).__name__, error, error.__cause__, error.__context__)
ended.set()
print(bool(killed), con.budget.spent, [entry.released for entry in con.releases()])
os._exit(0)
"""


def _cluster(folder: Path, body: str, *, kills: int, failures: int) -> subprocess.CompletedProcess[str]:
    import pyspark

    here, home = Path(__file__).parent, folder / "home"
    home.mkdir()  # workers write into it
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1] / "shared")]),
        "SPARK_HOME": str(home),
        "PYTHONUNBUFFERED": "1",  # the second script ends without ending its Java
    }
    code = CLUSTER.format(folder=str(folder), kills=kills, failures=failures) + body
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=folder,
                          timeout=900)  # fmt: skip


def test_an_executor_that_dies_in_the_middle_changes_no_count(tmp_path: Path) -> None:
    done = _cluster(tmp_path, ONE, kills=1, failures=4)
    assert done.stdout.split("\n")[-2] == "1 True {1200}", done.stdout + done.stderr


def test_executors_that_all_die_leave_the_charge_and_a_clean_error(tmp_path: Path) -> None:
    done = _cluster(tmp_path, ALL, kills=40, failures=1)
    assert done.stdout.count("\n") >= 2, done.stdout + done.stderr[-3000:]
    said, state = done.stdout.splitlines()[-2:]
    assert said.startswith(
        "OperationalError the scan of visits failed inside Spark; its message may hold private values"
    )
    assert said.endswith(" None None")
    assert state == "True 1.0 [None]"
    assert "secret" not in done.stdout + done.stderr
