"""``%dpsql`` and ``%%dpsql`` in a real shell: what they answer, what they cost, what they say."""

import json

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.extensions.notebook.results import NotebookResult, Results
from dpsql.planning.plan import Plan
from dpsql.privacy.accountant import BudgetState

pytestmark = pytest.mark.surfaces

BY_COLOUR = "SELECT colour, COUNT(*) AS n FROM toys GROUP BY colour"
COUNT = "SELECT COUNT(*) AS n FROM toys WHERE price >= 50"


@pytest.fixture
def con(toys, shell):
    """The connection of the cells."""
    held = shell.run_line_magic("dpsql", "connections")
    assert [row[0] for row in held] == ["toys"]
    (magic,) = [c for c in shell.configurables if type(c).__name__ == "DPSqlMagic"]
    return magic.connections.choose("toys", {})


# -- one cell, one batch ---------------------------------------------------------------------------


def test_a_cell_is_one_batch_with_one_charge(toys, con):
    done = toys(
        f"%%dpsql --epsilon 0.5\nCREATE VIEW by_colour AS {BY_COLOUR};\n{COUNT};\nSELECT SUM(n) AS n FROM by_colour"
    )
    found = done.value
    assert isinstance(found, Results)
    assert found.names == ("by_colour", "q1", "q2")
    assert len(con.releases()) == 1
    assert found.cost == 0.5 == con.budget.spent
    assert [row[0] for row in found["by_colour"]] == ["red", "blue", "<b>green</b>"]
    assert sum(row[1] for row in found[0]) == pytest.approx(found["q2"].fetchall()[0][0])
    assert found.footer.startswith("Spent epsilon 0.5 (pure) · remaining epsilon 3.5 of 4 at delta 1e-9 · 95 % error ±")
    assert found.footer.endswith("release 1")
    assert found.footer in done.text
    assert found.footer in done.html


def test_the_same_batch_again_is_free_and_says_so(toys, con):
    first = toys(f"%%dpsql --epsilon 0.5\n{BY_COLOUR}").value
    for line in ("--epsilon 0.5", "", "--epsilon 0.25"):
        again = toys(f"%%dpsql {line}\n{BY_COLOUR};").value
        assert again.cost == 0
        assert again.footer.startswith(
            "Spent nothing: free, release 1 has the answers (epsilon 0.5 (pure)) · remaining"
        )
        assert "95 % error" in again.footer
        assert again[0] == first[0]
    assert len(con.releases()) == 1


def test_another_level_is_no_new_question(toys, con):
    toys(f"%%dpsql --epsilon 0.5 --alpha 0.1\n{BY_COLOUR}")
    again = toys(f"%%dpsql --alpha 0.01\n{BY_COLOUR}").value
    assert "free" in again.footer
    assert "90 % error" in again.footer
    assert again[0].level == "90 %"
    assert len(con.releases()) == 1


def test_one_line(toys, con):
    done = toys(f"%dpsql --epsilon 0.5 {COUNT};")
    assert done.value.names == ("q1",)
    assert len(done.value) == 1
    assert len(con.releases()) == 1
    assert toys("found = %dpsql SELECT n FROM q1").error is None
    assert toys("found.names").value == ("q1",)
    assert "spent nothing" in toys("found.footer").value.lower()


def test_sql_may_begin_on_the_line(toys):
    assert toys("%%dpsql SELECT 1 AS a,\n 2 AS b").value[0].columns == ("a", "b")


@pytest.mark.parametrize(
    ("line", "guarantee"),
    [
        ("--epsilon 0.25", "epsilon 0.25 (pure)"),
        ("--epsilon 2.5 --delta 1e-9", "epsilon 2.5, delta 1e-9"),
        ("--rho 0.001", "rho 0.001 (zCDP)"),
        ("--epsilon {{e}}", "epsilon 0.25 (pure)"),
    ],
)
def test_budgets(toys, line, guarantee):
    toys("e = 0.25")
    assert toys(f"%%dpsql {line}\n{COUNT}").value.release.guarantee == guarantee


def test_budgets_of_the_batch_and_of_connect(toys, place):
    options = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 0.125) COUNT(*) AS n FROM toys"
    assert "epsilon 0.125" in toys(f"%%dpsql\n{options}").value.release.guarantee
    toys("%dpsql connect toys.toml toys.duckdb --as generous --epsilon-per-release 0.375")
    assert "epsilon 0.375" in toys(f"%%dpsql -c generous\n{COUNT}").value.release.guarantee


def test_settings_are_defaults(toys):
    toys("%config DPSqlMagic.epsilon = 0.2\n%config DPSqlMagic.alpha = 0.2\n%config DPSqlMagic.row_limit = 2")
    done = toys(f"%%dpsql\n{BY_COLOUR}")
    assert done.value.release.guarantee == "epsilon 0.2 (pure)"
    assert "80 % error" in done.value.footer
    assert "the first 2 shown" in done.text
    assert "green" not in done.html
    assert "the first 2 shown" in toys("%%dpsql\nSELECT * FROM q1").html
    toys("%config DPSqlMagic.style = 'columns'\n%config DPSqlMagic.row_limit = 40")
    assert "n_stderr" in toys(f"%%dpsql\n{BY_COLOUR}").html
    # A budget that the cell names comes first, of whatever kind.
    assert "rho" in toys(f"%%dpsql --rho 0.001\n{COUNT}").value.release.guarantee


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("epsilon = -1", "epsilon must be positive"),
        ("rho = 'many'", "rho"),
        ("delta = 2", "delta must be below 1"),
        ("alpha = 2", "between 0 and 1"),
        ("row_limit = 0", "row_limit"),
        ("style = 'pretty'", "style"),
    ],
)
def test_wrong_settings_are_refused(toys, shell, caplog, setting, said):
    before = {name: getattr(_magic(shell), name) for name in ("epsilon", "delta", "rho", "alpha", "row_limit", "style")}
    done = toys(f"%config DPSqlMagic.{setting}")
    assert said in done.printed + caplog.text
    assert "Traceback" not in done.printed
    assert before == {name: getattr(_magic(shell), name) for name in before}


def _magic(shell):
    return next(c for c in shell.configurables if type(c).__name__ == "DPSqlMagic")


# -- keeping results -------------------------------------------------------------------------------


def test_assignment_keeps_the_results_and_shows_the_footer_alone(toys):
    done = toys(f"%%dpsql answers << --epsilon 0.5\n{BY_COLOUR}")
    assert done.value is None
    assert done.text.strip().startswith("answers: Spent epsilon 0.5")
    assert "<table" not in done.html
    assert toys("answers").value.names == ("q1",)
    toys(f"%dpsql more << {BY_COLOUR}")
    assert toys("more").value[0] == toys("answers").value[0]


def test_output_keeps_and_shows(toys):
    done = toys(f"%%dpsql -o answers --epsilon 0.5\n{BY_COLOUR}")
    assert "<table" in done.html
    assert toys("answers").value is done.value


def test_results_are_a_list_with_names(toys):
    found = toys(f"%%dpsql --epsilon 0.5\nCREATE VIEW by_colour AS {BY_COLOUR};\n{COUNT}").value
    assert found[0] is found["by_colour"] is found["BY_COLOUR"]
    assert found[-1] is found["q1"]
    assert [result.name for result in found] == ["by_colour", "q1"]
    assert found[0:1] == (found[0],)
    assert "q1" in found
    assert "q2" not in found
    with pytest.raises(IndexError, match="2 results"):
        found[2]
    with pytest.raises(dpsql.InterfaceError, match="did you mean by_colour"):
        found["by_color"]
    for method in ("df", "arrow", "plot", "fetchall"):
        with pytest.raises(dpsql.InterfaceError, match="2 results, by_colour, q1; choose one"):
            getattr(found, method)()


def test_a_slip_with_results_is_one_clean_message(toys):
    toys(f"%%dpsql answers << --epsilon 0.5\nCREATE VIEW by_colour AS {BY_COLOUR};\n{COUNT}")
    toys("answers['by_color']").refused(dpsql.InterfaceError, "did you mean by_colour")
    toys("answers.df()").refused(dpsql.InterfaceError, "choose one, such as ['by_colour'].df()")


def test_frames_and_arrow(toys):
    found = toys(f"%%dpsql --epsilon 0.5\n{BY_COLOUR}").value
    frame = found.df()
    assert list(frame.columns) == ["colour", "n", "n_stderr", "n_low", "n_high"]
    assert frame.equals(found["q1"].df())
    assert found.arrow().column_names == list(frame.columns)
    assert np.all(frame["n_low"] < frame["n"])
    assert found.fetchall() == found[0].fetchall()


def test_two_million_ranges_are_shown_in_part(toys, con):
    done = toys("%%dpsql --epsilon 0.5 --save spans\nSELECT dp_ranges(code), COUNT(*) AS n FROM toys GROUP BY 1")
    assert done.error is None, done.printed
    assert "2,001,000 rows, the first 40 shown" in done.html
    assert len(done.value[0]) == 2_001_000
    assert done.value[0].fetchmany(2) == done.value[0].rows[:2]
    with pytest.raises(dpsql.InterfaceError, match="worked out when they are asked for"):
        done.value.df()
    found = toys("%dpsql SELECT n FROM spans WHERE code_from = 0 AND code_to = 1999").value
    assert "95 % error ±" in found.footer  # its prefix counts are drawn again
    assert found.fetchall()[0][0] == pytest.approx(3_000, abs=500)
    assert len(con.releases()) == 1


def test_a_plot_is_a_figure_that_is_shown(toys):
    toys(f"%%dpsql answers << --epsilon 0.5\n{BY_COLOUR}")
    done = toys("answers.plot()")
    assert done.error is None, done.printed
    assert len(done.pictures) == 1


def test_save_makes_a_view(toys, con):
    done = toys(f"%%dpsql --epsilon 0.5 --save shades\n{BY_COLOUR}")
    assert done.value.footer.endswith("saved as the view dp.shades")
    assert toys("%dpsql SELECT * FROM dp.shades").value[0].fetchall() == done.value["shades"].fetchall()
    # Another question under the same name takes the view over; the first one is kept as r1.shades.
    assert toys(f"%%dpsql --epsilon 0.25 --save shades\n{COUNT}").value.names == ("shades",)
    assert toys("%dpsql SELECT * FROM r1.shades").value[0].fetchall() == done.value["shades"].fetchall()


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_save_writes_files(toys, place, suffix):
    found = toys(f"%%dpsql --epsilon 0.5 --save out.{suffix}\n{BY_COLOUR}").value
    assert found.footer.endswith(f"saved to out.{suffix}")
    reader = {"csv": "read_csv_auto", "parquet": "read_parquet", "json": "read_json_auto"}[suffix]
    rows = duckdb.sql(f"SELECT * FROM {reader}('{place / 'out'}.{suffix}')").fetchall()
    assert rows == [pytest.approx(row) for row in found.fetchall()] or rows == found.fetchall()
    both = toys(f"%%dpsql --epsilon 0.5 --save two.{suffix}\nCREATE VIEW a AS {BY_COLOUR};\n{COUNT}").value
    assert both.footer.endswith(f"saved to two-a.{suffix}, two-q1.{suffix}")
    assert (place / f"two-q1.{suffix}").exists()


def test_save_refuses_before_anything_is_spent(toys, con, place):
    for line, said in (
        ("--save nowhere/x.csv", "there is no folder"),
        ("--save x.txt", "write the name of a view"),
        ("--save a-b", "write the name of a view"),
        ("--save toys.csv", ""),
    ):
        if said:
            toys(f"%%dpsql --epsilon 0.5 {line}\n{BY_COLOUR}").refused(dpsql.Error, said)
    toys(f"%%dpsql --epsilon 0.5 --save v\n{BY_COLOUR}; {COUNT}").refused(dpsql.InterfaceError, "2 statements")
    toys(f"%%dpsql --epsilon 0.5 --save v\nCREATE VIEW w AS {BY_COLOUR}").refused(dpsql.InterfaceError, "called w")
    (place / "folder.csv").mkdir()
    toys(f"%%dpsql --epsilon 0.5 --save folder.csv\n{BY_COLOUR}").refused(dpsql.OperationalError, "cannot be written")
    assert con.releases() == []


def test_save_never_replaces_a_file_of_the_connection(toys, place):
    policy = (place / "toys.toml").read_text()
    (place / "link.csv").symlink_to(place / "toys.toml")
    toys("%dpsql --save link.csv SELECT 1").refused(dpsql.OperationalError, "would replace a file of this connection")
    assert (place / "toys.toml").read_text() == policy


# -- a dry run -------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_plan_and_spends_nothing(toys, con, place):
    done = toys(f"%%dpsql --dry-run --epsilon 0.5\n{BY_COLOUR}")
    assert isinstance(done.value, Plan)
    assert "Dry run: spent nothing · would spend epsilon 0.5 (pure) · remaining epsilon 4 of 4" in done.text
    assert "95 % within" in done.text
    assert "dpsql-plan" in done.html
    assert not con.ledger_path.exists()
    toys(f"%%dpsql plan << --dry-run --epsilon 0.5\n{BY_COLOUR}")
    assert isinstance(toys("plan").value, Plan)
    assert not con.ledger_path.exists()


def test_a_dry_run_of_what_is_free_says_so(toys):
    toys(f"%%dpsql --epsilon 0.5\n{BY_COLOUR}")
    assert "running it is free: release 1 has the answers" in toys(f"%%dpsql --dry-run\n{BY_COLOUR}").text
    assert (
        "running it is free: what is released or declared answers it" in toys("%dpsql --dry-run SELECT * FROM q1").text
    )


def test_a_dry_run_past_the_budget_says_so(toys):
    assert "which is more than is left" in toys(f"%%dpsql --dry-run --epsilon 3.5\n{BY_COLOUR}").text


# -- variables -------------------------------------------------------------------------------------


def test_variables_are_literals_of_the_batch(toys):
    toys("least = 50; evil = \"red' OR TRUE --\"; shades = ['red', evil]")
    found = toys(
        "%%dpsql --epsilon 1\nSELECT COUNT(*) AS n FROM toys WHERE price >= {{least}} AND colour IN ({{shades}})"
    )
    assert found.error is None, found.printed
    assert found.value.cost == 1
    plain = toys("%%dpsql\nSELECT COUNT(*) AS n FROM toys WHERE price >= 50 AND colour IN ('red', 'red'' OR TRUE --')")
    assert plain.value.cost == 0


def test_variables_of_a_function(toys):
    toys("at = 3\ndef f(at):\n    return get_ipython().run_line_magic('dpsql', 'SELECT {{at}} AS a')")
    assert toys("f(2).fetchall()").value == [(2,)]


# -- connections -----------------------------------------------------------------------------------


def test_connections_by_variable_and_by_name(ask, place):
    assert "there is no connection yet" in ask(f"%dpsql {COUNT}").refused(dpsql.InterfaceError)
    ask("import dpsql; con = dpsql.connect('toys.duckdb', policy='toys.toml', ledger='other.ledger')")
    assert "toys-1" in ask("%dpsql con").text
    assert ask(f"%%dpsql --epsilon 0.5\n{COUNT}").value.cost == 0.5
    assert ask("con.budget.spent").value == 0.5
    ask("%dpsql connect toys.toml toys.duckdb --as second")
    assert ask("%dpsql budget").value.spent == 0
    assert ask("%dpsql -c con budget").value.spent == 0.5
    assert ask(f"%%dpsql -c con\n{COUNT}").value.cost == 0
    held = ask("%dpsql connections").value
    assert [(row[0], row[3]) for row in held] == [("con", False), ("second", True)]
    assert "closed second" in ask("%dpsql close").text
    assert [row[0] for row in ask("%dpsql connections").value] == ["con"]
    ask("%dpsql -c seconds budget").refused(dpsql.InterfaceError, "no connection is called seconds")


def test_several_connections_and_none_chosen(ask, place):
    ask("import dpsql; a = dpsql.connect('toys.duckdb', policy='toys.toml'); b = a.__class__")
    assert ask("%dpsql budget").value.spent == 0  # the only one
    ask("%dpsql close a")
    ask("a = dpsql.connect('toys.duckdb', policy='toys.toml'); b = dpsql.connect('toys.duckdb', policy='toys.toml')")
    ask("%dpsql budget").refused(dpsql.InterfaceError, "several connections, a, b")


def test_an_open_duckdb_connection_by_its_variable(ask, place):
    ask("import duckdb; duck = duckdb.connect('toys.duckdb')")
    ask("%dpsql connect toys.toml duck --as open")
    assert ask(f"%%dpsql --epsilon 0.5\n{COUNT}").value.cost == 0.5
    ask("duck.close()")


# -- commands --------------------------------------------------------------------------------------


def test_commands(toys):
    assert toys("%dpsql help").text.count("--epsilon") >= 2
    assert repr(toys("%dpsql --help").value) == repr(toys("%dpsql help").value)
    assert "toys: data set toys-1 · 1 table (toys) · remaining epsilon 4 of 4" in toys("%dpsql").text
    tables = toys("%dpsql tables").value
    assert tables.fetchall() == [
        ("toys", "private", "colour", "red, blue, <b>green</b>"),
        ("toys", "private", "price", "0 to 100 or NULL"),
        ("toys", "private", "month", "1, 2, 3"),
        ("toys", "private", "code", "0 to 1999"),
        ("cheap", "private view", "", "SELECT * FROM toys WHERE price < 10"),
    ]
    toys(f"%%dpsql --epsilon 0.5 --save shades\n{BY_COLOUR}")
    assert ("shades", "released", "n_stderr", "DOUBLE") in toys("%dpsql tables").value.fetchall()
    budget = toys("%dpsql budget")
    assert isinstance(budget.value, BudgetState)
    assert "epsilon 0.5 spent of 4 at delta 1e-9" in budget.text
    assert "3.5 remaining" in budget.html
    releases = toys("%dpsql releases").value
    assert [row[2:] for row in releases] == [("epsilon 0.5 (pure)", "shades", "", True)]
    toys("%dpsql state << budget")
    assert toys("state.spent").value == 0.5


def test_python_objects_look_like_the_cells(toys, con, shell):
    shell.push({"con": con, "release": con.run(BY_COLOUR, 0.5)})
    plan = toys(f"con.plan({BY_COLOUR!r}, 0.5)")
    assert "Guarantee" in plan.text
    assert "std error" in plan.html
    assert "Release 1" in toys("release").text
    assert "<table" in toys("con.budget").html
    assert " ± " in toys("con.sql('SELECT * FROM q1')").text
    assert isinstance(toys("release['q1']").value, dpsql.release.Result)


# -- mistakes --------------------------------------------------------------------------------------

MISTAKES = [
    ("%%dpsql --epsilon 0.1\nSELECT COUNT(*) FROM toy", dpsql.SQLError, ("did you mean toys?", "^^^")),
    ("%%dpsql --epsilon 0.1\nSELECT COUNT(*)\nFROM toys WHERE pryce > 3", dpsql.SQLError, ("price", "^^^^^", "line 2")),
    ("%%dpsql --epsilon 0.1\nSELECT * FROM toys", dpsql.SQLError, ()),
    ("%%dpsql --epsilon 0.1\nSELEC 1", dpsql.SQLError, ()),
    ("%%dpsql --epsilon 0.1\nSELECT 'a", dpsql.SQLError, ("quotes",)),
    ("%%dpsql --epsilon 0.1\n\n ", dpsql.SQLError, ("empty",)),
    ("%%dpsql\n-- nothing", dpsql.SQLError, ("empty",)),
    (f"%%dpsql --epsilon 3.5\n{COUNT}", dpsql.BudgetError, ("has 1 left",)),
    (f"%%dpsql --epsilon nan\n{COUNT}", dpsql.DataError, ("epsilon",)),
    (f"%%dpsql --epsilon -1\n{COUNT}", dpsql.Error, ("epsilon",)),
    (f"%%dpsql --epsilon 0.1 --rho 0.1\n{COUNT}", dpsql.DataError, ("rho",)),
    (f"%%dpsql --alpha 2 --epsilon 0.1\n{COUNT}", dpsql.DataError, ("--alpha 0.05",)),
    (f"%%dpsql --alpha much --epsilon 0.1\n{COUNT}", dpsql.DataError, ("--alpha 0.05",)),
    (f"%%dpsql\n{COUNT}", dpsql.ProgrammingError, ("%%dpsql --epsilon 0.1", "%config DPSqlMagic.epsilon")),
    (f"%%dpsql --dry-run\n{COUNT}", dpsql.ProgrammingError, ("%%dpsql --epsilon 0.1",)),
    (f"%%dpsql --epsilo 1\n{COUNT}", dpsql.InterfaceError, ("did you mean --epsilon?",)),
    (f"%%dpsql -o 2x --epsilon 1\n{COUNT}", dpsql.InterfaceError, ("no name of a Python variable",)),
    (f"%%dpsql -o class --epsilon 1\n{COUNT}", dpsql.InterfaceError, ("no name of a Python variable",)),
    ("%dpsql connect nowhere.toml", dpsql.OperationalError, ("nowhere.toml",)),
    ("%dpsql connect toys.toml nowhere.duckdb --as x\n%dpsql --epsilon 1 SELECT COUNT(*) FROM toys", dpsql.Error, ()),
    ("%dpsql connect", dpsql.InterfaceError, ("policy",)),
    ("%dpsql nobody", dpsql.InterfaceError, ("no connection is called nobody",)),
    ("%dpsql budgt", dpsql.InterfaceError, ("has no command budgt: did you mean budget?",)),
    ("%dpsql budget now", dpsql.InterfaceError, ("takes nothing after it",)),
    ("%%dpsql budget\nSELECT 1", dpsql.InterfaceError, ("a line of its own",)),
    ("%%dpsql connect toys.toml\nSELECT 1", dpsql.InterfaceError, ("a line of its own",)),
    ("%%dpsql --epsilon 1\nINSERT INTO toys VALUES (1)", dpsql.NotSupportedError, ()),
    ("%%dpsql --epsilon 1\nSELECT COUNT(*) FROM toys WHERE price > ?", dpsql.ProgrammingError, ("write {{x}}",)),
    ("%%dpsql --epsilon 1\nSELECT COUNT(*) FROM toys WHERE price > :least", dpsql.ProgrammingError, ("write {{x}}",)),
    ("%%dpsql --epsilon 1\nSELECT COUNT(*) FROM toys WHERE price > {{leest}}", dpsql.InterfaceError, ("leest",)),
]


@pytest.mark.parametrize(("cell", "kind", "words"), MISTAKES, ids=[str(i) for i in range(len(MISTAKES))])
def test_a_mistake_is_one_clean_message(toys, con, cell, kind, words):
    toys(cell).refused(kind, *words)
    assert con.releases() == []


def test_a_closed_connection_and_a_broken_ledger(toys, place):
    (place / "toys.ledger").write_bytes(b"this is no ledger")
    toys(f"%%dpsql --epsilon 1\n{COUNT}").refused(dpsql.LedgerError)
    toys("%dpsql budget").refused(dpsql.LedgerError)
    toys("%dpsql close")
    toys("%dpsql budget").refused(dpsql.InterfaceError, "there is no connection yet")


def test_python_code_can_catch_it(toys, shell):
    with pytest.raises(dpsql.SQLError) as caught:
        shell.run_cell_magic("dpsql", "--epsilon 1", "SELECT COUNT(*) FROM toy")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_an_interrupt_is_one_clean_message(toys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dpsql.extensions.notebook.magics.Cursor.execute", stop)
    done = toys(f"%%dpsql --epsilon 1\n{COUNT}")
    assert isinstance(done.error, KeyboardInterrupt)
    assert "interrupted; what was charged stays charged" in done.printed
    assert "Traceback" not in done.printed


def test_a_file_that_cannot_be_written_loses_no_answer(toys, con, monkeypatch):
    def fail(*_):
        raise duckdb.IOException("private words")

    monkeypatch.setattr("dpsql.release.files.write_table", fail)
    done = toys(f"%%dpsql --epsilon 0.5 --save out.csv\n{BY_COLOUR}")
    done.refused(dpsql.OperationalError, "out.csv cannot be written", "the same cell is free now")
    assert "private words" not in done.printed
    monkeypatch.undo()
    assert len(con.releases()) == 1
    assert toys(f"%%dpsql --epsilon 0.5\n{BY_COLOUR}").value.cost == 0


# -- loading ---------------------------------------------------------------------------------------


def test_loading_twice_keeps_connections(toys, shell):
    toys("%reload_ext dpsql")
    assert toys("%dpsql budget").error is None
    toys("%load_ext dpsql")
    assert len([c for c in shell.configurables if type(c).__name__ == "DPSqlMagic"]) == 1


def test_unloading_takes_everything_back(shell, toys):
    toys("%unload_ext dpsql")
    assert "dpsql" not in shell.magics_manager.magics["line"]
    assert "dpsql" not in shell.magics_manager.magics["cell"]
    assert not shell.Completer.custom_matchers
    assert Plan not in shell.display_formatter.formatters["text/html"]
    shell.run_cell("%load_ext dpsql")


def test_results_as_documents(toys, shell):
    """What a front end gets: HTML and plain text side by side, each of them JSON-ready."""
    found = toys(f"%%dpsql --epsilon 0.5\n{BY_COLOUR}").value
    for value in (found, found[0]):
        bundle = value._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}
        json.dumps(bundle)
        shown = shell.display_formatter.format(value)[0]
        assert {kind: shown[kind] for kind in bundle} == bundle
        assert "&lt;b&gt;green&lt;/b&gt;" in bundle["text/html"]
        assert "<b>green</b>" not in bundle["text/html"]
        assert "<b>green</b>" in bundle["text/plain"]
    assert isinstance(found[0], NotebookResult)
