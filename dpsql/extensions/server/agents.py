"""Tools for agents, by the Model Context Protocol: one analyst's account, asked by a program that reads text.

An agent sees what any analyst sees, and can spend what its account has. It names what a batch may cost in each call
that may charge, and is told before (``plan``) and after what that is. A refusal is its text, to act on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from dpsql.driver.result_sets import ResultSet
from dpsql.errors import Error, ProgrammingError, SQLError
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.protocol.limits import Allowance
from dpsql.extensions.server.protocol.settings import Settings
from dpsql.extensions.server.protocol.sqlstate import state_of
from dpsql.extensions.server.protocol.statements import Part, parts_of
from dpsql.extensions.server.service import FIRST, NO_SESSION_BUDGET, Answer, Asker, Service
from dpsql.release.text_table import in_json

if TYPE_CHECKING:
    from mcp.server import MCPServer

Told: TypeAlias = dict[str, Any]
"""What a tool answers, as JSON can hold it."""

MOST_ROWS = 1_000
"""Rows of a result that an agent is shown; ``ask_releases`` with a LIMIT and OFFSET shows others."""

_COLUMNS = """
SELECT n.nspname, c.relname, a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
    pg_catalog.obj_description(c.oid), pg_catalog.col_description(c.oid, a.attnum)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2, a.attnum
"""
INSTRUCTIONS = """\
Differentially private SQL over tables that nobody may read. Call tables first, then plan to see the error of every
number for free, then run with what the batch may cost. Put all questions that belong together into one batch of
several statements separated by semicolons: it is charged once, and its errors are smaller. What was released is
read with ask_releases for free. Counts and sums have noise: n_stderr is the standard error of n."""


@dataclass(frozen=True)
class Agent:
    """The tools of one analyst's agent; each answers with what JSON can hold, or raises ``dpsql.Error``."""

    service: Service
    name: str
    journal: Journal
    allowance: Allowance

    async def tables(self) -> Mapping[str, object]:
        """Tables that may be asked, and released views, with columns, types and what is public of their values."""
        found = await self.service.answer(self._asker({}), Part("", _COLUMNS, _COLUMNS.strip(), 1))
        listed: dict[str, Any] = {}
        held = found.results[0][1]
        for schema, table, column, kind, required, about, domain in held.rows if held is not None else ():
            name = f"{schema}.{table}" if schema != "main" else str(table)
            entry = listed.setdefault(name, {"about": about, "columns": {}})
            said = [kind, *(["never NULL"] if required else []), *([domain] if domain else [])]
            entry["columns"][column] = "; ".join(map(str, said))
        return {"tables": listed}

    async def plan(self, sql: str, budget: dict[str, str]) -> Mapping[str, object]:
        """What a batch would cost and how far off each number would be; free, and nothing is measured."""
        part = _batch(sql)
        if not await self.service.is_private(self._asker({}), part):
            return {"cost": "free", "why": "it reads what is released, or no table; call ask_releases"}
        plan, free, warning = await self._noted(part, self.service.plan(self._asker(budget), part), lambda _: None)
        if free is not None:
            why = f"{free.provenance}; call run, which costs nothing"
            return {"cost": "free", "why": why, "columns": list(free.columns), "text": free.text()}
        if plan is None:
            return {"cost": "free", "why": "it asks for no row; call run, which costs nothing"}
        return {
            "cost": plan.charge.guarantee,
            "account": plan.charge.account,
            "affordable": plan.affordable and warning in ("", FIRST),
            **({"warning": warning} if warning else {}),
            "columns": plan.rows(),
            "text": str(plan),
        }

    async def run(self, sql: str, budget: dict[str, str]) -> Mapping[str, object]:
        """Measure a batch and spend what it costs, or answer it from earlier releases for free."""
        part = _batch(sql)
        asker = self._asker(budget)
        answer = await self._noted(part, self.service.answer(asker, part), lambda found: found)
        cost = answer.guarantee if answer.cost else "free"
        first = int(answer.kind == "private" and bool(answer.notices))  # which says what was charged, or why nothing
        results = answer.named or {f"q{at}": held for at, (_, held) in enumerate(answer.results, 1) if held is not None}
        return {
            "charged": cost,
            **({"why": answer.notices[0]} if first and not answer.cost else {}),
            **({"release": answer.release} if answer.release is not None else {}),
            **({"notes": list(answer.notices[first:])} if answer.notices[first:] else {}),
            "results": {name: shown(held) for name, held in results.items()},
            "budget": (await self.budget())["budget"],
        }

    async def ask_releases(self, sql: str) -> Mapping[str, object]:
        """One or several queries over what is released; never charged."""
        part = _batch(sql)
        if await self.service.is_private(self._asker({}), part):
            raise ProgrammingError("this asks private tables, which is charged; call plan to see the cost, then run")
        answer = await self._noted(part, self.service.answer(self._asker({}), part), lambda found: found)
        notes = {"notes": list(answer.notices)} if answer.notices else {}
        return {"results": [shown(held) for _, held in answer.results if held is not None], **notes}

    async def budget(self) -> Mapping[str, object]:
        """What is left of the account's own budget and of the policy's, and the batches that wait for approval."""
        held, asked = await self.service.budget(self._asker({})), await self.service.requests(self._asker({}))
        requests = [dict(zip(asked.names, row, strict=True)) for row in asked.rows]
        found = [dict(zip(held.names, row, strict=True)) for row in held.rows]
        return {"budget": found, **({"requests": requests} if requests else {})}

    def _asker(self, budget: dict[str, str]) -> Asker:
        settings = Settings({"errors": "on"})
        for name, amount in budget.items():
            settings.set(f"dpsql.{name}", amount)
        return Asker(self.name, settings)

    async def _noted(self, part: Part, work: Any, answer_of: Callable[[Any], Answer | None]) -> Any:
        """What ``work`` gives, noted in the audit log."""
        failure: Error
        try:
            found = await work
            self.journal.statement(self.name, "mcp", part.bare, "answered", answer_of(found))
            return found
        except Error as error:
            failure = error
        self.journal.statement(self.name, "mcp", part.bare, f"refused {state_of(failure)}")
        if str(failure) == NO_SESSION_BUDGET:
            raise ProgrammingError("no earlier release answers this; say what it may cost, epsilon=0.1 for example")
        raise failure


def shown(result: ResultSet) -> Mapping[str, object]:
    """A result as JSON: its columns, and its rows up to a number that an agent can read."""
    rows = in_json([result.rows[at] for at in range(min(len(result.rows), MOST_ROWS))])
    more = {"rows_left_out": len(result.rows) - MOST_ROWS} if len(result.rows) > MOST_ROWS else {}
    return {"columns": list(result.names), "rows": rows, **more}


def tools(agent: Agent) -> MCPServer[Any]:
    """An MCP server with the tools of an agent (the extra ``dpsql[mcp]``)."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server: MCPServer[Any] = MCPServer("dpsql", instructions=INSTRUCTIONS, log_level="ERROR")

    async def reported(work: Callable[[], Awaitable[Mapping[str, object]]]) -> Told:
        failure: Error
        try:
            agent.allowance.take()
            return {name: in_json(said) for name, said in (await work()).items()}
        except Error as error:
            failure = error
        place = "\n".join(getattr(failure, "__notes__", ())) if isinstance(failure, SQLError) else ""
        raise ToolError(f"{failure}\n{place}".strip())

    def given(**amounts: float | str | None) -> dict[str, str]:
        return {name: str(amount) for name, amount in amounts.items() if amount is not None}

    async def tables() -> Told:
        """List private tables and released views with their columns, types and public domains. Free."""
        return await reported(agent.tables)

    async def plan(
        sql: str, epsilon: float | None = None, delta: float | None = None, rho: float | None = None
    ) -> Told:
        """Show what a batch of SELECT or CREATE VIEW statements would cost and the error of every number. Free.

        epsilon (or epsilon and delta, or rho): what the batch may spend.
        """
        return await reported(lambda: agent.plan(sql, given(epsilon=epsilon, delta=delta, rho=rho)))

    async def run(sql: str, epsilon: float | None = None, delta: float | None = None, rho: float | None = None) -> Told:
        """Run a batch over private tables and SPEND the budget named here, once for all its statements.

        What earlier releases answer is free. Charges are never given back. Call plan first.
        """
        return await reported(lambda: agent.run(sql, given(epsilon=epsilon, delta=delta, rho=rho)))

    async def ask_releases(sql: str) -> Told:
        """Query what is released (views of schema dp) with any SQL of DuckDB. Free; reads no private table."""
        return await reported(lambda: agent.ask_releases(sql))

    async def budget() -> Told:
        """Show what is left to spend, and the state of batches that wait for the custodian's approval. Free."""
        return await reported(agent.budget)

    for tool in (tables, plan, run, ask_releases, budget):
        server.add_tool(tool)
    return server


def _batch(sql: str) -> Part:
    parts = parts_of(sql)
    if len(parts) != 1 or parts[0].word:
        raise SQLError("the text is no batch of SELECT and CREATE VIEW statements; write these alone", code="syntax")
    return parts[0]
