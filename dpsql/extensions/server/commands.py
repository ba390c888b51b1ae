"""The statements of a session that ask no table: settings, transactions, EXPLAIN and what is said of the budget."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pygwire import TransactionStatus

from dpsql.driver.result_sets import ResultSet
from dpsql.errors import NotSupportedError, SQLError
from dpsql.extensions.server.protocol.settings import Settings
from dpsql.extensions.server.protocol.sqlstate import SessionError
from dpsql.extensions.server.protocol.statements import Part, without
from dpsql.extensions.server.service import Answer, Asker, Service
from dpsql.planning.free_answer import Free
from dpsql.planning.plan import Plan
from dpsql.release.text_table import in_json

_EXPLAIN = re.compile(
    r"EXPLAIN\s*(?:\((?P<options>[^()]*)\)\s*|(?P<analyze>ANALY[SZ]E\b)\s*|(?P<verbose>VERBOSE\b)\s*)*", re.IGNORECASE
)
_FORMAT = re.compile(r"FORMAT\s+(\w+)", re.IGNORECASE)
_ANALYZE = re.compile(r"ANALY[SZ]E(?!\s+(?:off|false|0)\b)", re.IGNORECASE)
_SHOW = re.compile(r"SHOW\s+(.+)", re.IGNORECASE | re.DOTALL)

NOTHING_BACK = "what was charged stays charged and what was released stays released: there is nothing to roll back"


@dataclass
class Conversation:
    """One session as its commands see it: who asks, what is set, and the state of a transaction that means nothing."""

    service: Service
    name: str
    database: str = "dpsql"
    unnamed: dict[str, dict[str, int]] = field(default_factory=dict)
    """What q1, q2, ... mean in this session."""
    settings: Settings = field(default_factory=Settings)
    status: TransactionStatus = TransactionStatus.IDLE
    charged: bool = False
    """Whether something was charged since the transaction began."""

    @property
    def asker(self) -> Asker:
        """Who asks, and how."""
        return Asker(self.name, self.settings, self.database, self.unnamed)

    async def answer(self, part: Part) -> Answer:
        """What a command or a batch comes to. Raises ``dpsql.Error``."""
        self.check(part)
        if part.word:
            return await _COMMANDS.get(part.word, _unknown)(self, part)
        found = await self.service.answer(self.asker, part)
        self.charged = self.charged or found.cost > 0
        return found

    def check(self, part: Part) -> None:
        """Raise SessionError for what is not run in a transaction that has failed."""
        if self.status is TransactionStatus.ERROR_TRANSACTION and part.word not in _ENDS:
            raise SessionError(
                "the transaction has failed, and statements are ignored until it ends; send ROLLBACK", "25P02"
            )

    async def columns(self, part: Part) -> ResultSet | None:
        """The columns of what ``answer`` would give, None where it gives none; charges nothing, changes nothing."""
        if part.word in ("SHOW", "EXPLAIN"):
            return (await self.answer(part)).results[0][1]
        return None if part.word else await self.service.columns(self.asker, part)

    def failed(self) -> None:
        """A statement was refused: within a transaction the rest of it is."""
        if self.status is TransactionStatus.IN_TRANSACTION:
            self.status = TransactionStatus.ERROR_TRANSACTION


def _done(tag: str, *notices: str) -> Answer:
    return Answer([(tag, None)], notices, "command")


async def _set(conversation: Conversation, part: Part) -> Answer:
    conversation.settings.execute(part.bare)
    return _done("SET")


async def _reset(conversation: Conversation, part: Part) -> Answer:
    conversation.settings.reset(part.bare)
    return _done("RESET")


async def _begin(conversation: Conversation, part: Part) -> Answer:
    conversation.status, conversation.charged = TransactionStatus.IN_TRANSACTION, False
    return _done("BEGIN" if part.word == "BEGIN" else "START TRANSACTION")


async def _end(conversation: Conversation, part: Part) -> Answer:
    if part.word == "ROLLBACK" and re.match(r"ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO\b", part.bare, re.IGNORECASE):
        conversation.status = TransactionStatus.IN_TRANSACTION
        return _done("ROLLBACK")
    failed = conversation.status is TransactionStatus.ERROR_TRANSACTION
    back = part.word in ("ROLLBACK", "ABORT")
    notices = (NOTHING_BACK,) if back and conversation.charged else ()
    conversation.status, conversation.charged = TransactionStatus.IDLE, False
    return _done("ROLLBACK" if back or failed else "COMMIT", *notices)


async def _savepoint(conversation: Conversation, part: Part) -> Answer:
    return _done(part.word)


async def _discard(conversation: Conversation, part: Part) -> Answer:
    conversation.settings.reset("RESET ALL")
    return _done("DISCARD ALL")


async def _quiet(conversation: Conversation, part: Part) -> Answer:
    return _done(part.word)


async def _show(conversation: Conversation, part: Part) -> Answer:
    found = _SHOW.fullmatch(part.bare)
    name = " ".join((found[1] if found else "").lower().split())
    if name == "dpsql.budget":
        return _rows("SHOW", await conversation.service.budget(conversation.asker))
    if name == "dpsql.requests":
        return _rows("SHOW", await conversation.service.requests(conversation.asker))
    if name == "dpsql.domains":
        return _rows("SHOW", await conversation.service.domains())
    if name == "all":
        rows = [(key, value) for key, value in conversation.settings.values().items()]
        return _rows("SHOW", ResultSet(["name", "setting"], ["VARCHAR", "VARCHAR"], rows))
    value = conversation.settings.show(name)
    return _rows("SHOW", ResultSet([name.strip('"')], ["VARCHAR"], [(value,)]))


async def _explain(conversation: Conversation, part: Part) -> Answer:
    found = _EXPLAIN.match(part.bare)
    options = (found["options"] or "") if found else ""
    if found is None or found["analyze"] or _ANALYZE.search(options):
        raise NotSupportedError(
            "EXPLAIN ANALYZE would run the batch; EXPLAIN shows its plan, with all errors, for free"
        )
    form = _FORMAT.search(options)
    batch = without(part, found.end())
    if not batch.bare:
        raise SQLError("EXPLAIN names no batch; write EXPLAIN SELECT ...", code="syntax")
    if not await conversation.service.is_private(conversation.asker, batch):
        return _rows("EXPLAIN", _lines("Free: it reads what is released already, or no table at all"))
    plan, free, warning = await conversation.service.plan(conversation.asker, batch)
    return _rows("EXPLAIN", explained(plan, form[1] if form else "text", free), *([warning] if warning else []))


def explained(plan: Plan | None, form: str, free: Free | None = None) -> ResultSet:
    """A plan, or an answer that is free, as rows: its text by lines, its columns ("rows"), or a document ("json")."""
    if free is not None:
        head: dict[str, object] = {"guarantee": f"free, from {free.source}", "amount": 0.0}
        return _shown(form, head, [dict(row) for row in free.columns], free.text)
    return _lines("Free: it asks for no row") if plan is None else _shown(form, _head(plan), plan.rows(), plan.__str__)


def _shown(form: str, head: dict[str, object], columns: list[dict[str, object]], text: Callable[[], str]) -> ResultSet:
    if form.lower() == "json":
        return ResultSet(["QUERY PLAN"], ["JSON"], [(json.dumps(in_json([{**head, "columns": columns}])),)])
    if form.lower() == "rows":
        kinds = {"numbers": "BIGINT", "group_rows": "DOUBLE"} | dict.fromkeys(("result", "column", "groups"), "VARCHAR")
        names = list(columns[0]) if columns else ["result"]
        rows = [tuple(row[name] for name in names) for row in columns]
        return ResultSet(names, [kinds.get(name, "DOUBLE") for name in names], rows)
    if form.lower() != "text":
        raise NotSupportedError(f"EXPLAIN has no format {form[:20]}; write text, json or rows")
    return _lines(text())


def _head(plan: Plan) -> dict[str, object]:
    conversation = {"guarantee": plan.charge.guarantee, "account": plan.charge.account, "amount": plan.charge.amount}
    return {**conversation, "affordable": plan.affordable, "notes": list(plan.notes)}


def _lines(text: str) -> ResultSet:
    return ResultSet(["QUERY PLAN"], ["VARCHAR"], [(line,) for line in text.split("\n")])


def _rows(tag: str, result: ResultSet, *notices: str) -> Answer:
    return Answer([(tag, result)], notices, "plan" if tag == "EXPLAIN" else "command")


async def _unknown(conversation: Conversation, part: Part) -> Answer:
    raise NotSupportedError(f"{part.word} is not offered; ask with SELECT, or EXPLAIN a batch before it is run")


_ENDS = ("COMMIT", "END", "ROLLBACK", "ABORT")
_COMMANDS: dict[str, Callable[[Conversation, Part], Awaitable[Answer]]] = {
    "SET": _set,
    "RESET": _reset,
    "SHOW": _show,
    "EXPLAIN": _explain,
    **dict.fromkeys(("BEGIN", "START"), _begin),
    **dict.fromkeys(_ENDS, _end),
    **dict.fromkeys(("SAVEPOINT", "RELEASE"), _savepoint),
    "DISCARD": _discard,
    **dict.fromkeys(("DEALLOCATE", "LISTEN", "UNLISTEN"), _quiet),
}
