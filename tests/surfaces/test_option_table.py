"""The table of options: every surface reads it, the docs list it, and a name that it lacks gets the nearest one.

python tests/surfaces/test_option_table.py      writes the table of docs/cli.md anew
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import pytest

from dpsql.common.options import CALL, CELL, CLAUSE, COMMAND, CONNECT, RUN, SETTING, TABLE, Option, on, option_of
from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import DataError, Error
from dpsql.extensions.notebook.line import HELP, Line, read_connect, read_line
from dpsql.extensions.server.protocol.settings import Settings
from dpsql.planning.options import PlanKeywords, PlanOptions
from dpsql.registry import added_options
from dpsql.sql.parse.options import read_options
from dpsql.surfaces.cli import main
from dpsql.surfaces.grammar import grammar

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- options: written by tests/surfaces/test_option_table.py -->\n", "<!-- /options -->\n"
ROWS = (*TABLE, *added_options())
SHOWN = {
    COMMAND: "command line",
    CELL: "cells",
    CONNECT: "`%dpsql connect`",
    SETTING: "`SET dpsql.{}`",
    CLAUSE: "OPTIONS",
    CALL: "`con.plan`",
    RUN: "`con.run`",
}


def listed() -> str:
    """The options as a table of Markdown."""
    lines = ["| option | what it means | where |", "|---|---|---|"]
    for option in ROWS:
        only = option.surfaces <= {CALL, RUN, CLAUSE, SETTING}
        spelled = option.name if only else ", ".join(option.flags) or option.name
        written = f"{spelled} {option.value}".strip().replace("|", "\\|")
        where = [text.format(option.name) for surface, text in SHOWN.items() if surface in option.surfaces]
        lines.append(f"| `{written}` | {option.meaning} | {', '.join(where)} |")
    return "\n".join(lines) + "\n"


def test_the_page_lists_the_table() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0] == listed(), "run python tests/surfaces/test_option_table.py"


@pytest.mark.parametrize(
    ("page", "surfaces"), [("notebook.md", (CELL, CONNECT)), ("serve.md", (SETTING,)), ("sql.md", (CLAUSE,))]
)
def test_pages_of_surfaces_name_their_options(page: str, surfaces: tuple[str, ...]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    missing = [o.spelled(surface) for surface in surfaces for o in on(surface, ROWS).values()]
    assert [name for name in missing if not re.search(rf"(?<![\w-]){re.escape(name)}\b", text)] == []


def test_names_are_unique_on_each_surface() -> None:
    for surface in SHOWN:
        spelled = [name for o in ROWS if surface in o.surfaces for name in (o.flags or (o.name,))]
        named = [option.name for option in ROWS if surface in option.surfaces]
        assert len({*spelled}) == len(spelled)
        assert len({*named}) == len(named)
    assert all(not option.meaning.endswith(".") for option in ROWS)
    assert all(other in {o.name for o in ROWS} for option in ROWS for other in option.against)


def test_calls_take_the_options_of_the_table() -> None:
    keywords = {*typing.get_type_hints(PlanKeywords)}
    assert {*on(CALL)} - {"epsilon", "delta", "rho"} == keywords
    assert {field.name for field in dataclasses.fields(PlanOptions)} == keywords
    defaults = PlanOptions()
    assert all(getattr(defaults, o.name) == o.default for o in on(CALL).values() if o.default is not None)
    run = inspect.signature(Connection.run).parameters
    assert {*on(RUN)} <= {*run}
    assert {*on(CONNECT, TABLE)} <= {f"--{name.replace('_', '-')}" for name in inspect.signature(connect).parameters}
    declared = [name for name in inspect.signature(Connection.plan).parameters if name != "self"]
    assert declared == ["sql", "epsilon", "delta", "rho", "options", "keywords"]


def test_commands_with_a_policy_take_it_as_an_option() -> None:
    without = [name for name, _, options in grammar() if "--policy" not in {f for o in options for f in o.flags}]
    assert sorted(without) == ["completion", "demo", "glossary", "policy import"]


def test_lines_and_help_of_cells_have_every_option() -> None:
    assert {option.name for option in on(CELL, ROWS).values()} <= {field.name for field in dataclasses.fields(Line)}
    assert all(name in HELP for surface in (CELL, CONNECT) for name in on(surface, ROWS))


def test_settings_have_every_option() -> None:
    values = Settings().values()
    assert {name for name in values if name.startswith("dpsql.")} == {*on(SETTING, ROWS)}


def test_an_unknown_option_gets_the_nearest_name_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "--epsilom", "1", "--policy", "p.toml"])
    assert stopped.value.code == 2
    assert "dpsql plan has no option --epsilom; did you mean --epsilon?" in " ".join(capsys.readouterr().err.split())
    tried = {
        "did you mean --epsilon?": lambda: read_line("--epsilom 1 SELECT 1", {}),
        "did you mean --ledger?": lambda: read_connect("p.toml --ledgr x", {}),
        "did you mean dpsql.epsilon": lambda: Settings().set("dpsql.epsilom", "1"),
        "did you mean epsilon?": lambda: read_options("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilom = 1) 1"),
    }
    for words, call in tried.items():
        with pytest.raises(Error, match=re.escape(words)):
            call()
    with pytest.raises(TypeError, match=r"no option epsilom; did you mean epsilon\?"):
        PlanOptions().having({"epsilom": 1})


@pytest.mark.parametrize(("typed", "words"), [
    (["pln"], "there is no command pln; did you mean plan?"),
    (["policy", "chek"], "there is no command policy chek; did you mean check?"),
    (["xyzzy"], "there is no command xyzzy; choose from"),
])  # fmt: skip
def test_an_unknown_command_gets_the_nearest_name(
    typed: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(typed)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_beginnings_of_options_and_values_like_options_still_serve(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "--max-err", "5", "--relative", "0.1", "--policy", "p.toml", "--sql", "--- no option\nSELECT 1"])
    assert "--max-error and --relative contradict each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "surface", "text", "words"),
    [
        ("--rounds N:whole", COMMAND, "x", "--rounds is 'x'; write a whole number, such as --rounds 5"),
        ("--alpha A:level", CELL, "1", "--alpha is '1'; write 1 - confidence, between 0 and 1, such as --alpha 0.05"),
        ("--errors on|off:switch", SETTING, "perhaps", "dpsql.errors is 'perhaps'; write on or off"),
        ("--confidence C:share", SETTING, "1e-999999", "dpsql.confidence is '1e-999999'; write a number from 0.5"),
        ("--confidence C:share", SETTING, "nan", "such as dpsql.confidence = 0.95"),
        ("--timeout SECONDS:seconds", COMMAND, "-1", "--timeout is '-1'; write seconds"),
        ("--horizon N:periods", COMMAND, "ever", "--horizon is 'ever'; write a number of periods, or endless"),
    ],
)
def test_a_value_that_cannot_be_read_is_said_in_the_words_of_its_surface(
    option: str, surface: str, text: str, words: str
) -> None:
    with pytest.raises(DataError) as refused:
        option_of(option, "").read(text, surface)
    assert words in str(refused.value)


def test_the_language_of_a_row() -> None:
    row = option_of("-o --max-error [NAME=]E*:number=0.5/rho,delta", "half-width")
    assert (row.name, row.flags, row.value, row.many) == ("max_error", ("-o", "--max-error"), "[NAME=]E", "*")
    assert (row.default, row.against, row.spelled(COMMAND)) == (0.5, ("rho", "delta"), "--max-error")
    assert option_of("--no-errors", "").name == "errors"
    argument: Option = option_of("release ID?:whole", "")
    assert (argument.name, argument.flags, argument.many) == ("release", (), "?")


if __name__ == "__main__":
    path = DOCS / "cli.md"
    head, rest = path.read_text(encoding="utf-8").split(BEGIN)
    path.write_text(head + BEGIN + listed() + END + rest.split(END)[1], encoding="utf-8")
