"""The kernel works in a copy of the package that has no extension, and says what is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dpsql
from dpsql import registry

PACKAGE = Path(dpsql.__file__).parent
TESTS = Path(__file__).parent
KERNEL = """
import sys, duckdb, dpsql
LEDGER = sys.argv[1]
from dpsql import bounds, strategy, workload
from dpsql.errors import Error
from dpsql.surfaces.cli import main

assert dpsql.installed() == {}
base = duckdb.connect()
base.execute("CREATE TABLE t AS SELECT range % 5 AS a FROM range(100)")
lines = ['dataset = "p"', "[budget]", "epsilon = 2", "[tables.t]", 'unit = "row"', "[tables.t.columns]"]
policy = dpsql.Policy.parse("\\n".join([*lines, "a = { lower = 0, upper = 4, nulls = false }"]))
with dpsql.connect(base, policy=policy, ledger=LEDGER) as con:
    plan = con.plan("CREATE VIEW v AS SELECT a, COUNT(*) AS n FROM t GROUP BY a", epsilon=0.5)
    con.run(plan)
    assert len(con.sql("SELECT * FROM v").fetchall()) == 5
    assert "q1" in str(con.plan("SELECT COUNT(*) FROM t", epsilon=0.1))
    for missing in (
        lambda: con.plan("SELECT COUNT(*) FROM t", epsilon=0.1, method="sparse"),
        lambda: con.plan("SELECT COUNT(*) FROM t", epsilon=0.1, method="mwem"),
        lambda: con.run("SELECT COUNT(*) FROM t", epsilon=0.1, estimates="auto"),
        lambda: con.run(plan)["v"] and con.run(plan).synthetic_rows(3),
        lambda: bounds.range_window_bound(4, 1, 2),
        lambda: workload.wrange(4, 4, 1),
    ):
        try:
            missing()
        except Error as error:
            print(error)
    assert not hasattr(con, "discover")
known = ("optimal", "identity", "workload", "p-identity", "row-mixing", "union-of-parts", "norm-blocks")
assert strategy.CATALOGUE == known
try:
    main(["discover", "t.a"])
except SystemExit as wrong:
    assert wrong.code == 2
assert main(["budget", "--policy", "nothing.toml"]) == 1
"""

FIRST = """
import sys, duckdb, dpsql
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from first_version import DAY, ENTRIES, MADE, VIEWS, first_version
policy = first_version(Path(sys.argv[1]))
with dpsql.connect(policy.with_name("first.duckdb"), policy=policy, today=DAY) as con:
    before = {view: sorted(con.sql(f"FROM {view}").fetchall(), key=repr) for view in VIEWS}
    assert {view: len(rows) for view, rows in before.items()} == VIEWS
    assert con.rebuild() == ENTRIES == len(con.budget.charges)
    assert before == {view: sorted(con.sql(f"FROM {view}").fetchall(), key=repr) for view in VIEWS}
    assert con.run(MADE["BY_WARD"], **MADE["BOTH"]).cost == con.run(MADE["BY_WORD"], **MADE["BOTH"]).cost == 0
    release = con.run("CREATE VIEW later AS SELECT word, COUNT(*) AS n FROM visits GROUP BY word", epsilon=0.5)
    assert release["later"].fetchall()[0][0] == "w0"
    for missing in (
        lambda: con.run(MADE["MADE_UP"], epsilon=1, method="mwem", rounds=2),
        lambda: con.run(MADE["CHOSEN"], **MADE["BOTH"], method="adaptive", rounds=2),
        lambda: con.run(MADE["SHOWN"], **MADE["BOTH"], method="sparse"),
        lambda: con.plan(MADE["BY_AGE"], epsilon=1, method="haar"),
        lambda: con.sql("SELECT MAX(n) AS n FROM trend", errors=True),
        lambda: con.schedules,
        lambda: con.synthetic("survey_synthetic"),
        lambda: con.discover("visits.word", epsilon=2),
        lambda: con.plan(MADE["BY_AGE"], epsilon=1).curve(),
    ):
        try:
            missing()
        except (dpsql.Error, AttributeError) as error:
            print(error)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a copy of the package without extensions."""
    folder = tmp_path_factory.mktemp("kernel")
    shutil.copytree(PACKAGE, folder / "dpsql", ignore=shutil.ignore_patterns("extensions"), symlinks=True)
    # An editable install finds modules of the checkout, too; this copy is to be all that there is.
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [one for one in sys.meta_path if 'editable' not in repr(one).lower()]\n"
    )
    return folder


def run(alone, *command):
    settings = {**os.environ, "PYTHONPATH": str(alone)}
    place = {"cwd": TESTS.parent, "env": settings}  # -P: what lies there is not imported
    return subprocess.run([sys.executable, "-P", *command], capture_output=True, text=True, timeout=900, **place)


def test_it_plans_runs_and_says_what_is_missing(alone):
    done = run(alone, "-c", KERNEL, str(alone / "ledger"))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    owners = ("discovery", "papers", "advice", "synthetic", "papers", "papers")
    assert len(said) == len(owners)
    assert "the extension 'discovery' has the command discover, and it is not installed" in done.stderr
    for line, owner in zip(said, owners, strict=True):
        assert line.startswith(f"the extension {owner!r} ")
        assert line.endswith(f"it is not installed: it is a part of dpsql, in the folder dpsql/extensions/{owner}")


def test_a_ledger_of_the_first_version_is_read_and_says_what_is_missing(alone, tmp_path):
    done = run(alone, "-c", FIRST, str(tmp_path), str(TESTS / "shared"))
    assert done.returncode == 0, done.stderr
    owners = ("papers", "adaptive", "discovery", "papers", "periods", "periods", "local", "discovery", "advice")
    for line, owner in zip(done.stdout.splitlines(), owners, strict=True):
        assert line.startswith(f"the extension {owner!r} ")
        assert line.endswith(f"it is not installed: it is a part of dpsql, in the folder dpsql/extensions/{owner}")


def test_every_method_of_an_extension_is_known_where_it_is_missing():
    for extension in registry.extensions():
        added = [registry.resolve(name) for name in (extension.connection, extension.plan) if name]
        methods = {name for one in added for name in vars(one) if not name.startswith("_")}
        methods |= {*extension.methods, *extension.strategies}
        assert methods <= set(registry.SHIPPED.get(extension.name, ())), extension.name


@pytest.mark.long
def test_tests_of_the_kernel_pass(alone):
    folders = ("sql/test_golden.py", "sql/test_statements.py", "measure/test_scan.py", "measure/test_shield.py")
    folders = (
        *folders,
        "driver/test_connection.py",
        "release/test_store.py",
        "privacy/test_ledger.py",
        "planning/test_plan_explain.py",
    )
    done = run(
        alone, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(TESTS / folder) for folder in folders)
    )
    assert done.returncode == 0, done.stdout[-3000:]
