"""What is cheap is checked first: whether a batch could be charged at all, before it is planned for minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.common.arrays import Json
from dpsql.common.numerics import ALPHA
from dpsql.errors import Error, SQLError
from dpsql.measure.failed_sources import refuse_failed
from dpsql.measure.sources import Holdings
from dpsql.planning.prepare import understood_for
from dpsql.privacy.accountant import Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.release.books import Books
from dpsql.running.answer_free import Earlier
from dpsql.running.finding_share import SHARE, part_of, waiting


@dataclass(frozen=True)
class PendingBatch:
    """A batch that is about to be planned and paid for. ``plain``: unbiased estimates by a strategy that is fixed.

    ``fresh``: whatever earlier releases say. ``request``: None where a target error is to give the budget.
    """

    sql: str
    request: Request | None
    label: str
    plain: bool = True
    fresh: bool = False


def check_payable(batch: PendingBatch, holdings: Holdings, books: Books, past: Earlier) -> None:
    """Raise what a charge for the batch would be refused with by now: account, locks of the ledger, failed sources.

    Nothing where earlier releases may answer it for free, which needs none of these: planning says whether they do.
    Depends on public values alone. Costs some milliseconds where nothing is in the way; where something is, it may
    raise SQLError and PolicyError as planning does.
    """
    request = batch.request
    if request is not None and waiting(holdings.policy):  # charged in parts, of which this is the last
        request = part_of(request, 1 - SHARE)
    charges = () if request is None else charge_for(request, books.budget)
    refusal = _refusal(batch, charges, holdings, books)
    if refusal is not None and (batch.fresh or not _may_be_free(batch, charges, books, past)):
        raise refusal


def _refusal(batch: PendingBatch, charges: Sequence[Charge], holdings: Holdings, books: Books) -> Error | None:
    description: Json = {}
    policy, schemas = holdings.policy, holdings.schemas()
    found = waiting(policy)  # nobody has listed their groups, so the batch cannot be understood yet
    if not found and any(table.periods is not None for table in policy.tables.values()):
        reads = understood_for(batch.sql, policy, schemas)[1]
        description = {} if reads is None else {"periods": reads.as_dict()}
    try:
        state = books.state()
        if not books.path.exists():
            if charges and not any(state.affords(charge) for charge in charges):
                state.check(charges[0])
            return None
        ledger = books.ledger()
        ledger.check_charges(charges, batch.label, description)
        if found:
            refuse_failed(holdings.engine, ledger, holdings.sources.values())
        elif ledger.failed_scans():
            answers = understood_for(batch.sql, policy, schemas)[0].answers
            tables = {query.table for answer in answers for core in answer.cores for query in core.queries}
            refuse_failed(holdings.engine, ledger, [holdings.sources[name] for name in tables & set(holdings.sources)])
    except Error as refusal:
        return refusal
    return None


def _may_be_free(batch: PendingBatch, charges: Sequence[Charge], books: Books, past: Earlier) -> bool:
    """Whether an earlier release may have what the batch asks; False only where none can."""
    released = [entry for entry in books.entries() if entry.released is not None]
    if not batch.plain:
        return any(entry.charge in charges for entry in released)
    if not released:
        return False
    try:
        keys = set(past.questions(batch.sql)[0])
    except SQLError:
        if waiting(past.policy):
            return False  # its groups are still to be found
        raise
    answered = (entry.description.get("questions") for entry in released)
    if any(keys <= {str(key) for key, _ in questions} for questions in answered if isinstance(questions, list)):
        return True
    return past.answer(batch.sql, ALPHA) is not None
