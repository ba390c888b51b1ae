"""Completion inside the magics: names from the policy and the releases, at every place of a statement."""

import pytest

pytestmark = [
    pytest.mark.surfaces,
    # What front ends call is provisional, what the terminal calls is old, and both say so.
    pytest.mark.filterwarnings("ignore::IPython.core.completer.ProvisionalCompleterWarning"),
    pytest.mark.filterwarnings("ignore:`Completer.complete`:PendingDeprecationWarning"),
]


@pytest.fixture
def complete(toys, shell):
    """What IPython offers at ``|``: (texts, kinds, what is replaced)."""

    def at(marked):
        code, offset = marked.replace("|", "", 1), marked.index("|")
        found = list(shell.Completer.completions(code, offset))
        replaced = {code[c.start : c.end] for c in found}
        return [c.text for c in found], {c.type for c in found}, replaced

    return at


@pytest.mark.parametrize(
    ("cell", "wanted", "kinds"),
    [
        ("%%dpsql\nSELECT * FROM to|", ["toys"], {"table"}),
        ("%%dpsql\nSELECT * FROM |", ["toys", "cheap"], {"table", "view"}),
        ("%%dpsql\nSELECT * FROM toys JOIN ch|", ["cheap"], {"view"}),
        ("%%dpsql\nSELECT pr|\nFROM toys", ["price"], {"column"}),
        ("%%dpsql\nSELECT t.co|\nFROM toys t", ["colour", "code"], {"column"}),
        ("%%dpsql\nSELECT toys.|\nFROM toys", ["colour", "price", "month", "code"], {"column"}),
        ("%%dpsql\nSELECT COUNT(*) FROM cheap WHERE pr|", ["price"], {"column"}),
        ("%%dpsql --epsilon 1\nSELECT mo|", ["month"], {"column"}),
        ("%dpsql --epsilon 1 SELECT COUNT(*) FROM toys WHERE pri|", ["price"], {"column"}),
        ("found = %dpsql SELECT COUNT(*) FROM toys WHERE pri|", ["price"], {"column"}),
        ("x = 1\n%dpsql SELECT COUNT(*) FROM to|", ["toys"], {"table"}),
        ("%%dpsql --ep|", ["--epsilon"], {"option"}),
        ("%%dpsql -c |", ["toys"], {"connection"}),
        ("%dpsql bud|", ["budget"], {"command"}),
        ("%dpsql connect --led|", ["--ledger"], {"option"}),
        ("%%dpsql\nSELECT COUNT(*) FROM toys GRO|", ["GROUP BY", "GROUPING SETS"], {"keyword"}),
        ("%%dpsql\nSELECT COUNT(*) FROM toys WHERE PRI|", ["price"], {"column"}),
    ],
)
def test_names_are_offered(complete, cell, wanted, kinds):
    texts, found, _ = complete(cell)
    assert texts == wanted
    assert found == kinds


def test_what_is_typed_is_replaced_and_no_more(complete):
    assert complete("%%dpsql\nSELECT t.co|\nFROM toys t")[2] == {"co"}
    assert complete("%%dpsql\nSELECT pr|")[2] == {"pr"}


@pytest.mark.parametrize("cell", ["%%dpsql\nSELECT 'to|", "%%dpsql\nSELECT COUNT(*) FROM nothing n WHERE n.|"])
def test_nothing_is_offered_where_nothing_fits(complete, cell):
    assert not {"table", "column", "view", "released view"} & complete(cell)[1]


def test_python_is_left_alone(complete):
    assert "print" in complete("pri|")[0]
    assert "price" not in complete("pri|")[0]
    assert "toys" not in complete("x = '%dpsql'\nto|")[0]


def test_released_views_and_their_columns(complete, toys):
    toys('%%dpsql --epsilon 0.5\nCREATE VIEW "by month" AS SELECT month, COUNT(*) AS n FROM toys GROUP BY month')
    assert complete("%dpsql SELECT * FROM by|")[0] == ['"by month"']
    assert complete("%dpsql SELECT * FROM dp.|")[0] == ['"by month"']
    assert complete('%%dpsql\nSELECT n_|\nFROM dp."by month"')[0] == ["n_stderr", "n_low", "n_high"]


def test_the_old_call_of_front_ends(toys, shell):
    """``complete(line_buffer=...)`` counts the cursor through the whole cell."""
    cell = "%%dpsql\nSELECT COUNT(*) FROM to"
    assert shell.Completer.complete(line_buffer=cell, cursor_pos=len(cell))[1] == ["toys"]
    assert shell.complete("pr", "%dpsql SELECT pr")[1] == ["price"]


def test_completing_costs_nothing_and_survives_a_broken_ledger(complete, toys, place):
    complete("%%dpsql\nSELECT * FROM |")
    assert not (place / "toys.ledger").exists()
    (place / "toys.ledger").write_bytes(b"this is no ledger")
    (place / "toys.releases.duckdb").write_bytes(b"this is no database")
    assert complete("%%dpsql\nSELECT * FROM to|")[0] == ["toys"]


def test_no_connection_no_names(ask, shell):
    assert [c.text for c in shell.Completer.completions("%%dpsql --ep", 12)] == ["--epsilon"]
    assert list(shell.Completer.completions("%%dpsql\nSELECT to", 17)) == []
