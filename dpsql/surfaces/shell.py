"""``dpsql shell``: SQL typed line by line; answers are those of ``dpsql run``, and free ones over released views."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from sqlglot import TokenType

from dpsql.common.options import COMMAND, Option, on
from dpsql.driver.connection import Connection
from dpsql.errors import Error, OperationalError, ProgrammingError, SQLError, nearest
from dpsql.privacy.amounts import exact
from dpsql.sql.parse.tokens import tokens_of
from dpsql.sql.routing import route
from dpsql.surfaces import commands, inputs, output
from dpsql.surfaces.cli import interrupted, show_error

HELP = """\
SELECT ...;          one batch: private tables are measured and charged, released views are free
EXPLAIN SELECT ...;  the plan of a batch, with the error of every number; free
\\d, \\d NAME          tables and released views; the columns of one
\\set NAME VALUE      an option of what follows, as of dpsql run: \\set epsilon 0.1; \\set alone lists them
\\budget              what is spent and left
\\r                   forget the statement that was begun
\\q                   leave
\\?                   this help"""
_COMMANDS = ("\\?", "\\budget", "\\d", "\\q", "\\r", "\\set")
_WORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "COUNT(*)", "COUNT_IF", "SUM", "AVG", "MEDIAN"),
    *("BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "CREATE OR REPLACE VIEW", "EXPLAIN", "LIMIT", "JOIN"),
)
_EXPLAIN = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)


def shell(options: argparse.Namespace) -> int:
    """Answer what is typed until the end. 1 where that is no terminal and something was refused."""
    with inputs.connected(options) as con:
        session = Shell(con, options)
        with _history(session) if sys.stdin.isatty() else contextlib.nullcontext():
            return session.loop()


class Shell:
    """What was typed so far, and the options of what follows; ``failed``: whether anything was refused."""

    def __init__(self, con: Connection, options: argparse.Namespace) -> None:
        self.con = con
        self.options = argparse.Namespace(**vars(options) | _FIXED)
        self.failed = False
        self._text = ""
        self._names: list[str] = []

    def loop(self) -> int:
        """Read lines until the end."""
        terminal = sys.stdin.isatty()
        if terminal and not self.options.quiet:
            print("SQL, ended by ;   \\? for help, \\q to leave")
        going = True
        while going:
            try:
                going = self.feed(input(("    -> " if self._text else "dpsql> ") if terminal else ""))
            except UnicodeDecodeError as error:
                raise OperationalError(f"stdin: byte {error.start} is not UTF-8; send it as UTF-8") from None
            except EOFError:
                if self._text:  # it may have been cut off: nothing is charged for it
                    self.failed = True
                    print("dpsql: the last statement does not end with ; and was not run", file=sys.stderr)
                return int(self.failed and not terminal)
            except KeyboardInterrupt as interrupt:
                self._text = ""
                print(f"\n{interrupted(interrupt)}")
        return int(self.failed and not terminal)

    def feed(self, line: str) -> bool:
        """Take one line, and answer where it ends a statement or is a command; False at the end of the session."""
        try:
            if line.lstrip().startswith("\\"):
                return self._command(*line.split(None, 1))
            self._text += f"{line}\n" if self._text or line.strip() else ""
            if self._text and _ends(self._text, line):
                text, self._text = self._text.rstrip().removesuffix(";"), ""
                self._answer(text)
        except Error as error:
            self._text, self.failed = "", True
            show_error(error, self.options, "\\set ")
        return True

    def _answer(self, text: str) -> None:
        """One batch: its plan after EXPLAIN, its measured tables, or what releases say."""
        explained = _EXPLAIN.sub(lambda word: " " * len(word[0]), text, count=1)  # so that places in it stay
        if explained != text:
            commands.explained(commands.planned(self.con, self.options, explained), self.options)
        elif route(text, self.con.policy, self.con._view_names).private:
            commands.measured(self.con, self.options, text)
        else:
            output.show(output.table_text(self.con.sql(text)))

    def _command(self, name: str, argument: str = "") -> bool:
        argument = argument.strip().rstrip(";")
        if name not in _COMMANDS:
            raise ProgrammingError(f"the shell has no command {name[:40]}; {nearest(name, _COMMANDS)}")
        if name == "\\d":
            output.show(self._described(argument))
        elif name == "\\set":
            self._set(*argument.split(None, 1))
        elif name == "\\r":
            self._text = ""
        elif name != "\\q":
            print(HELP if name == "\\?" else self.con.budget)
        return name != "\\q"

    def _described(self, name: str) -> str:
        """The tables and views, or the columns of one of them, with what the policy declares."""
        rows = output.declared_columns(self.con)
        if not name:
            return output.grid(("name", "kind"), ("VARCHAR",) * 2, list(dict.fromkeys(row[:2] for row in rows)))
        chosen = [row[2:] for row in rows if row[0].lower() == name.lower()]
        if not chosen:
            raise ProgrammingError(f"there is no table or view {name[:60]}; {nearest(name, [row[0] for row in rows])}")
        return output.grid(("column", "values"), ("VARCHAR",) * 2, chosen)

    def _set(self, name: str = "", text: str = "") -> None:
        """Show the options that are set, or give one its value; without a value it is as at the start."""
        known = _settable()
        if not name:
            values = {key: getattr(self.options, key, None) for key in known}
            print("\n".join(f"\\set {key} {value}" for key, value in values.items() if value not in (None, [])))
            return
        name = name.lower().replace("-", "_")
        if name not in known:
            raise ProgrammingError(f"the shell has no option {name[:60]}; {nearest(name, known)}")
        option = known[name]
        value = option.read(text, COMMAND) if text else option.default
        if text and option.kind == "amount":
            exact(option.name, text)
        if text and option.choices and text not in option.choices and "NAME" not in option.value:
            raise ProgrammingError(f"{option.name} is {text[:40]!r}; {nearest(text, option.choices)}")
        for other in known.values():
            if text and (other.name in option.against or option.name in other.against):
                setattr(self.options, other.name, other.default)
        setattr(self.options, option.name, ([text] if text else []) if option.many == "*" else value)

    def complete(self, word: str, state: int) -> str | None:
        """The completion of that number: commands, names of tables, columns and released views, words of SQL."""
        if state == 0:
            names = {name for row in output.declared_columns(self.con) for name in (row[0], row[2]) if name}
            offered = (*_COMMANDS, *sorted(names), *_WORDS, *(f"\\set {name}" for name in _settable()))
            self._names = [name for name in offered if name.lower().startswith(word.lower())]
        return self._names[state] if state < len(self._names) else None


def _settable() -> dict[str, Option]:
    """The options of ``dpsql run`` that a session can change, by name: those that have a value."""
    return {o.name: o for o in on(COMMAND).values() if o.value and o.group in ("budget", "level", "search", "run")}


def _ends(text: str, line: str) -> bool:
    """Whether the text is a whole statement; a ``;`` on a line of its own ends what cannot be read, too."""
    with contextlib.suppress(SQLError):  # a quote or comment that is still open
        return [token.token_type for token in tokens_of(text)][-1:] == [TokenType.SEMICOLON]
    return line.strip() == ";"


def _refuse(message: str) -> NoReturn:
    raise ProgrammingError(message)


_FIXED = {"format": None, "output": None, "explain": False, "usage": _refuse}


@contextlib.contextmanager
def _history(session: Shell) -> Iterator[None]:
    """Editing, completion and history where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    file = (base if base.is_absolute() else Path.home() / ".local" / "state") / "dpsql" / "history"
    private = False  # nor is anything written through a link
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
        file.chmod(0o600)
        readline.read_history_file(file)
        private = True
    readline.set_completer(session.complete)
    readline.set_completer_delims(" \t\n,()=<>;")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_history_length(2_000)
        if private:
            with contextlib.suppress(OSError):
                readline.write_history_file(file)
                file.chmod(0o600)
