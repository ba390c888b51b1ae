"""``%dpsql`` and ``%%dpsql``: from a line and a cell to a connection, and back to something to look at."""

from __future__ import annotations

import keyword
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand
from IPython.display import display
from traitlets import Bunch, Enum, Float, Int, TraitError, Unicode, Union, validate

from dpsql.common import progress
from dpsql.common.options import CELL
from dpsql.driver.connection import Connection
from dpsql.driver.cursor import NO_BUDGET, Cursor
from dpsql.errors import Error, InterfaceError, ProgrammingError, nearest
from dpsql.extensions.notebook.connections import Connections, connections_of, releases_of, tables_of
from dpsql.extensions.notebook.line import COMMANDS, HELP, OPTIONS, Line, command_of, fill, read_connect, read_line
from dpsql.extensions.notebook.plain import plain
from dpsql.extensions.notebook.results import Note, NotebookResult, Results, footer_of, level_of, remaining_text
from dpsql.extensions.notebook.saving import as_view, check_save, is_file, save_files, view_note
from dpsql.extensions.notebook.tables import STYLES, Look
from dpsql.planning.free_answer import Free
from dpsql.planning.plan import Plan
from dpsql.privacy.accountant import Request
from dpsql.release import Result
from dpsql.release.cut import Losses
from dpsql.release.release import Release
from dpsql.sql.parse.parameters import prepare
from dpsql.surfaces.output import plainly

Variables = Mapping[str, object]
_AMOUNTS = [Float(), Unicode()]


@dataclass(frozen=True)
class _Batch:
    """One batch and what the line says about it."""

    line: Line
    sql: str
    variables: Variables


@magics_class
class DPSqlMagic(Magics):  # type: ignore[misc,unused-ignore]
    """Private SQL in a notebook; the settings are defaults for what a cell does not say itself."""

    epsilon = Union(_AMOUNTS, default_value=None, allow_none=True, help="Budget of a batch that names none.").tag(
        config=True
    )
    delta = Union(_AMOUNTS, default_value=None, allow_none=True, help="With epsilon; None: the policy's.").tag(
        config=True
    )
    rho = Union(_AMOUNTS, default_value=None, allow_none=True, help="Instead of epsilon and delta.").tag(config=True)
    alpha = Float(0.05, help="1 - confidence of the intervals.").tag(config=True)
    row_limit = Int(40, min=1, help="Rows of a result that are shown.").tag(config=True)
    style = Enum(STYLES, "interval", help='"interval": 12.3 ± 4.5; "columns": all columns.').tag(config=True)

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell=shell)
        # Kept with the shell, so that %reload_ext forgets none.
        self.connections: Connections = shell.meta.setdefault("dpsql_connections", Connections())

    @validate("epsilon", "delta", "rho")
    def _amount(self, proposal: Bunch) -> object:
        try:
            if proposal.value is not None:
                Request.of(**({"epsilon": 1} if proposal.trait.name == "delta" else {}), **{
                    proposal.trait.name: proposal.value
                })  # fmt: skip
        except Error as error:
            raise TraitError(str(error)) from None
        return proposal.value

    @validate("alpha")
    def _level(self, proposal: Bunch) -> float:
        if not 0 < proposal.value < 1:
            raise TraitError("alpha is 1 - confidence and lies between 0 and 1, such as 0.05")
        return float(proposal.value)

    @needs_local_scope
    @no_var_expand
    @line_cell_magic("dpsql")  # type: ignore[arg-type,unused-ignore]
    def dpsql(self, line: str, cell: str | None = None, local_ns: Variables | None = None) -> object:
        """Ask private tables, or what is released of them; ``%dpsql help`` shows all options."""
        failure: BaseException
        try:
            return self._run(line, cell, ChainMap(dict(local_ns or {}), self.shell.user_ns))
        except (Error, KeyboardInterrupt) as error:
            failure = error
        raise plain(failure).with_traceback(None)

    def look(self) -> Look:
        """How results are shown, by the settings of the moment."""
        return Look(self.row_limit, self.style)

    def completing(self, before: str) -> tuple[Connection | None, list[str]]:
        """The connection that a cell which begins like ``before`` asks, if there is one, and the names of all."""
        variables = self.shell.user_ns
        known = self.connections.all(variables)
        first = before.split("\n", 1)[0].split("dpsql", 1)[-1]
        name: str | None = None
        try:
            name = read_line(first, variables).connection
        except Error:
            name = None
        name = name or self.connections.current
        if name not in known and len(known) == 1:
            (name,) = known
        return known.get(name or ""), sorted(known)

    # -- inside --------------------------------------------------------------------------------

    def _run(self, text: str, cell: str | None, variables: Variables) -> object:
        line = read_line(text, variables)
        if line.help:
            return Note(HELP)
        command = command_of(line.rest)
        if command is not None and cell is None:
            return self._command(*command, line, variables)
        if command is not None and (command[0] == "connect" or not command[1]):
            raise InterfaceError(f"{command[0]} is a command for a line of its own: %dpsql {line.rest[:60]}")
        if cell is None and line.rest.isidentifier():
            near = nearest(line.rest, COMMANDS)
            if line.rest not in self.connections.all(variables) and near.startswith("did you mean"):
                raise InterfaceError(f"%dpsql has no command {line.rest}: {near}")
            self.connections.choose(line.rest, variables)
            self.connections.current = line.rest
            return Note(self._greeting(line.rest, variables))
        if cell is None and not line.rest:
            if line.connection is not None:
                return self._run(line.connection, None, variables)
            return Note(self._greeting(None, variables))
        sql = line.rest if cell is None else f"{line.rest}\n{cell}" if line.rest else cell
        return self._batch(_Batch(line, sql, variables))

    def _batch(self, batch: _Batch) -> object:
        line = batch.line
        con = self.connections.choose(line.connection, batch.variables)
        sql = fill(batch.sql, batch.variables)
        if line.save is not None:
            check_save(line.save, con)
            sql = sql if is_file(line.save) else as_view(sql, line.save)
        _check_parameters(sql)
        for name in (line.assign, line.output):
            if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
                raise InterfaceError(f"{name!r} is no name of a Python variable; write one such as -o answers")
        usual = (self.epsilon, self.delta, self.rho)
        budget = {"epsilon": line.epsilon, "delta": line.delta, "rho": line.rho}
        unpaid = False
        without: list[str] = []
        with progress_for(self.shell, display):
            cursor = Cursor(
                con,
                errors=True,
                population=None if line.population is None else OPTIONS["--population"].read(line.population, CELL),
                usual=None if usual == (None, None, None) else usual,
                alpha=self.alpha if line.alpha is None else OPTIONS["--alpha"].read(line.alpha, CELL),
                warn=without.append,
            )
            try:
                if line.dry_run:
                    return self._keep(line, self._dry(con, cursor.dry_run(sql, **budget), cursor.plan, cursor.free))
                cursor.execute(sql, **budget)
            except ProgrammingError as error:
                unpaid = str(error) == NO_BUDGET
                if not unpaid:
                    raise
        if unpaid:
            raise ProgrammingError(
                "no earlier release answers this and no budget is given; write %%dpsql --epsilon 0.1, or %config "
                "DPSqlMagic.epsilon = 0.1 for all cells (--dry-run --epsilon 0.1 shows the errors first, for free)"
            )
        results = self._results(con, cursor)
        results.footer += "".join(f" · {why}" for why in dict.fromkeys(without))
        if line.save is not None:
            said = view_note(line.save)
            if is_file(line.save):
                said = "saved to " + ", ".join(save_files(line.save, results, con))
            results.footer += f" · {said}"
        return self._keep(line, results)

    def _results(self, con: Connection, cursor: Cursor) -> Results:
        found: list[NotebookResult] = []
        level = level_of(con, cursor.release)
        while True:
            described = cursor.description or ()
            empty = Result([d[0] for d in described], [d[1] for d in described], [])
            made = NotebookResult.of(empty, cursor.names[len(found)], level, self.look(), cursor.rows())
            found.append(made.with_losses(Losses(notes=cursor.notes)))
            if not cursor.nextset():
                break
        return Results(found, footer_of(con, found, cursor.release), cursor.release)

    def _dry(self, con: Connection, made: object, plan: Plan | None, free: Free | None) -> Plan | Note:
        """The plan after a line that says what it would cost, or that line alone where it would be free."""
        if plan is not None:
            said = f"would spend {plan.charge.guarantee}" + ("" if plan.affordable else ", which is more than is left")
            _show(Note(f"Dry run: spent nothing · {said} · {remaining_text(con)}"))
            return plan
        why = "what is released or declared answers it"
        if isinstance(made, Release):
            why = f"release {made.id} has the answers ({made.guarantee})"
        elif free is not None:
            why = free.provenance
        why += "" if free is None else f"; {free.errors}"
        return Note(f"Dry run: spent nothing, and running it is free: {why} · {remaining_text(con)}")

    def _keep(self, line: Line, value: object) -> object:
        """Assign as the line says; the value where it is to be shown."""
        names = [name for name in (line.assign, line.output) if name is not None]
        if names:
            self.shell.push(dict.fromkeys(names, value), interactive=True)  # type: ignore[no-untyped-call,unused-ignore]
        if line.assign is None or line.output is not None:
            return value
        if isinstance(value, Results):
            _show(Note(f"{line.assign}: {value.footer}"))
        return value if isinstance(value, Note) else None

    # -- commands ------------------------------------------------------------------------------

    def _command(self, name: str, arguments: str, line: Line, variables: Variables) -> object:
        if name == "help":
            return Note(HELP)
        if name == "connect":
            made, _ = self.connections.connect(read_connect(arguments, variables), variables)
            return Note(self._greeting(made, variables))
        if name == "close":
            return Note(f"closed {self.connections.close(arguments or line.connection, variables)}")
        if arguments:
            raise InterfaceError(f"{name} takes nothing after it; write %dpsql {name}, or -c NAME before it")
        if name == "connections":
            return connections_of(self.connections.all(variables), self.connections.current, self.look())
        con = self.connections.choose(line.connection, variables)
        made_by: dict[str, Callable[[Connection], object]] = {
            "budget": lambda con: con.budget,
            "tables": lambda con: tables_of(con, self.look()),
            "releases": lambda con: releases_of(con, self.look()),
        }
        return self._keep(line, made_by[name](con))

    def _greeting(self, name: str | None, variables: Variables) -> str:
        con = self.connections.choose(name, variables)
        shown = name or self.connections.current or ""
        return (
            f"{shown}: data set {con.policy.dataset} · {len(con.policy.tables)} "
            f"table{'' if len(con.policy.tables) == 1 else 's'} ({', '.join(list(con.policy.tables)[:6])}) · "
            f"{remaining_text(con)} · %dpsql help shows what to write"
        )


def _show(value: Note) -> None:
    display(value)  # type: ignore[no-untyped-call,unused-ignore]


def _check_parameters(sql: str) -> None:
    spots = prepare(sql).spots
    if spots:
        key = spots[0].key
        shown = f"parameter :{key}" if isinstance(key, str) else "parameter ?"
        raise ProgrammingError(f"the cell has the {shown}; write {{{{x}}}} for the value of a Python variable x")


def register(shell: InteractiveShell) -> DPSqlMagic:
    """Give ``shell`` the magics; those that it has already stay, with their connections."""
    for held in shell.configurables:
        if isinstance(held, DPSqlMagic):
            return held
    made = DPSqlMagic(shell)  # which enters itself among the shell's configurables
    shell.register_magics(made)
    return made


def unregister(shell: InteractiveShell) -> None:
    """Take the magics out of the session again."""
    shell.configurables[:] = [held for held in shell.configurables if not isinstance(held, DPSqlMagic)]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("dpsql", None)
    shell.magics_manager.registry.pop("DPSqlMagic", None)


def over_output(show: Callable[..., object]) -> progress.Say:
    """What writes a text over the last one in one output of the cell, made by the first."""
    handles: list[Any] = []

    def write(text: str) -> None:
        data = {"text/plain": text}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(show(data, raw=True, display_id=True))

    return write


@contextmanager
def progress_for(shell: InteractiveShell, show: Callable[..., object]) -> Iterator[None]:
    """Within, work of more than two seconds is shown: in a kernel in an output of the cell, else on a terminal.

    An output says that planning goes on, or that rows are read, each with the seconds; it is empty in the end.
    """
    if getattr(shell, "kernel", None) is None:
        with progress.shown():
            yield
        return
    with progress.Line(over_output(show)) as line:
        plain = plainly(lambda text: line(f"planning: {text}"))
        with progress.heard_by(lambda text: line(text) if text == progress.MEASURING else plain(text)):
            yield
