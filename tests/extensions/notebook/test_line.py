"""The line of a magic: options, assignments, commands, and SQL that stays as it is."""

import pytest

from dpsql.errors import InterfaceError
from dpsql.extensions.notebook.line import Connect, Line, command_of, filled, read_connect, read_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", Line()),
        ("SELECT 1 -- a comment", Line(rest="SELECT 1 -- a comment")),
        ("--epsilon 0.1 SELECT '--delta 3'", Line(epsilon="0.1", rest="SELECT '--delta 3'")),
        ("--epsilon=0.1 --delta=1e-9", Line(epsilon="0.1", delta="1e-9")),
        ("answers << --rho 0.01", Line(assign="answers", rho="0.01")),
        ("--rho 0.01 answers << SELECT 1", Line(assign="answers", rho="0.01", rest="SELECT 1")),
        ("answers<<SELECT 1", Line(assign="answers", rest="SELECT 1")),
        ("-c con -o out --dry-run FROM t", Line(connection="con", output="out", dry_run=True, rest="FROM t")),
        ('--save "my file.csv" FROM t', Line(save="my file.csv", rest="FROM t")),
        ("--alpha {{ level }} FROM t", Line(alpha="0.1", rest="FROM t")),
        ("-- only a comment", Line(rest="-- only a comment")),
        ("SELECT 1 << 2", Line(rest="SELECT 1 << 2")),
        ("SELECT a -c con", Line(rest="SELECT a -c con")),
        ("--help", Line(help=True)),
    ],
)
def test_lines_are_read_from_the_left(text, line):
    assert read_line(text, {"level": 0.1}) == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--epsilo 1", "did you mean --epsilon?"),
        ("--xyz 1", "choose from --alpha, --connection"),
        ("--epsilon", "such as --epsilon 0.1"),
        ("--epsilon 1 --epsilon 2", "--epsilon is given twice"),
        ("--dry-run --dry-run", "given twice"),
        ("--dry-run=yes", "does not accept a value"),
        ("a << b << SELECT 1", "two names"),
        ("--epsilon {{budgt}}", "did you mean budget?"),
        ("--epsilon {{nothing}}", "assign it in a cell before"),
    ],
)
def test_a_wrong_line_says_what_to_write(text, said):
    with pytest.raises(InterfaceError, match=said.replace("?", r"\?")):
        read_line(text, {"budget": 1})


def test_commands_are_no_sql():
    assert command_of("budget") == ("budget", "")
    assert command_of("Connect a.toml --as x") == ("connect", "a.toml --as x")
    assert command_of("SELECT 1") is None
    assert command_of("budgets") is None


def test_connect():
    asked = read_connect(
        "{{place}} 'my data.duckdb' --as trial --ledger=a.ledger --label 'me too'", {"place": "p.toml"}
    )
    assert asked == Connect("p.toml", "my data.duckdb", "trial", {"ledger": "a.ledger", "label": "me too"})
    assert read_connect("p.toml --database d.duckdb", {}) == Connect("p.toml", "d.duckdb")
    assert read_connect("d.duckdb --policy p.toml --rho-per-release 1", {}) == Connect(
        "p.toml", "d.duckdb", options={"rho_per_release": "1"}
    )


def test_connect_reads_the_environment_where_the_line_names_nothing(monkeypatch):
    monkeypatch.setenv("DPSQL_POLICY", "e.toml")
    assert read_connect("", {}) == Connect("e.toml")
    assert read_connect("p.toml", {}) == Connect("p.toml")
    monkeypatch.setenv("DPSQL_DATABASE", "e.duckdb")
    assert read_connect("--as x", {}) == Connect("e.toml", "e.duckdb", "x")
    assert read_connect("p.toml d.duckdb", {}) == Connect("p.toml", "d.duckdb")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "takes a policy file"),
        ("a b c", "takes a policy file"),
        ("a.toml --legder x", "did you mean --ledger"),
        ("a.toml --as", "needs a value"),
        ("'a.toml", "quote is not closed"),
    ],
)
def test_a_wrong_connect_says_what_to_write(text, said):
    with pytest.raises(InterfaceError, match=said):
        read_connect(text, {})


def test_values_of_options_keep_what_is_in_quotes():
    assert filled("'{{x}}'", {}) == "{{x}}"
    assert filled("{{x}}", {"x": 3}) == "3"
