"""JupySQL and marimo work with a dpsql connection as they are: contracts with the real packages."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

pytestmark = [pytest.mark.surfaces, pytest.mark.filterwarnings("default")]  # the peers' own warnings are theirs

BY_COLOUR = "SELECT colour, COUNT(*) AS n FROM toys GROUP BY colour"


@pytest.fixture
def sql(ask, place):
    """``ask``, with JupySQL loaded and connected."""
    if importlib.util.find_spec("pyspark") and not importlib.util.find_spec("grpc"):
        pytest.skip("JupySQL cannot be imported beside PySpark without grpcio")
    ask("import dpsql; con = dpsql.connect('toys.duckdb', policy='toys.toml', epsilon_per_release=0.25)")
    for line in ("%load_ext sql", "%config SqlMagic.displaycon = False", "%config SqlMagic.feedback = 0", "%sql con"):
        done = ask(line)
        assert done.error is None, done.printed
    yield ask
    ask("%sql --close Connection")


def test_jupysql_asks_and_shows(sql):
    done = sql(f"%sql {BY_COLOUR}")
    assert done.error is None, done.printed
    assert "colour" in done.text
    assert sql("con.budget.spent").value == 0.25
    frame = sql(f"found = %sql {BY_COLOUR}\nfound.DataFrame()").value  # the same again: free
    assert list(frame.columns) == ["colour", "n"]
    assert frame["colour"].tolist() == ["red", "blue", "<b>green</b>"]
    assert sql("con.budget.spent").value == 0.25


def test_jupysql_cells_variables_and_snippets(sql):
    sql("least = 50")
    assert sql("%%sql kept <<\nSELECT COUNT(*) AS n FROM toys WHERE price >= {{least}}").error is None
    assert sql("len(kept.DataFrame())").value == 1
    sql("%%sql --save cheapish --no-execute\nSELECT colour FROM toys WHERE price < 20")
    done = sql("%sql --with cheapish SELECT colour, COUNT(*) AS n FROM cheapish GROUP BY colour")
    assert done.error is None, done.printed
    assert sql("con.budget.spent").value == 0.5


def test_jupysql_lists_tables_and_reads_releases(sql):
    sql(f"con.run('CREATE VIEW by_colour AS {BY_COLOUR}', 0.5)")
    frame = sql("%sql SHOW TABLES").value.DataFrame()
    assert set(frame["name"]) == {"by_colour", "toys", "cheap"}
    assert len(sql("%sql SELECT * FROM by_colour").value.DataFrame()) == 3
    assert sql("con.budget.spent").value == 0.5


def test_jupysql_shows_our_message(sql):
    done = sql("%sql SELECT COUNT(*) FROM toys WHERE pryce > 3")
    assert type(done.error).__name__ == "SQLError"
    assert "did you mean price?" in str(done.error)
    assert sql("con.budget.spent").value == 0


MARIMO = """
    import dpsql, marimo

    app = marimo.App()

    @app.cell
    def _():
        import dpsql, marimo as mo
        con = dpsql.connect("toys.duckdb", policy="toys.toml", epsilon_per_release=0.25)
        return con, mo

    @app.cell
    def _(con, mo):
        by_colour = mo.sql("SELECT colour, COUNT(*) AS n FROM toys GROUP BY colour", engine=con)
        again = mo.sql("SELECT colour, COUNT(*) AS n FROM toys GROUP BY colour;", engine=con, output=False)
        spent = con.budget.spent
        listed = mo.sql("SHOW TABLES", engine=con, output=False)
        released = mo.sql("SELECT * FROM q1 ORDER BY n", engine=con, output=False)
        return again, by_colour, listed, released, spent

    @app.cell
    def _(con, mo):
        message = ""
        try:
            mo.sql("SELECT COUNT(*) FROM toys WHERE pryce > 3", engine=con)
        except Exception as error:
            message = str(error)
        return (message,)

    outputs, found = app.run()
    assert list(found["by_colour"].columns) == ["colour", "n"], found["by_colour"]
    assert list(found["by_colour"]["n"]) == list(found["again"]["n"])  # a frame of polars or of pandas
    assert found["spent"] == 0.25
    assert set(found["listed"]["name"]) == {"q1", "toys", "cheap"}
    assert len(found["released"]) == 3
    assert "did you mean price?" in found["message"]

    from marimo._sql.get_engines import get_engines_from_variables
    ((name, engine),) = get_engines_from_variables([("con", found["con"])])
    assert (name, engine.source) == ("con", "dbapi")
    assert found["con"].budget.spent == 0.25
    print("all of it")
"""


def test_marimo_asks_with_our_connection_as_its_engine(place):
    """In a process of its own: marimo changes the interpreter that it runs in."""
    (place / "app.py").write_text(textwrap.dedent(MARIMO))
    done = subprocess.run([sys.executable, "app.py"], cwd=place, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all of it\n")
