"""The budget of a batch: what the call asks for and what the batch's own OPTIONS say, which must not contradict."""

from __future__ import annotations

from fractions import Fraction

from dpsql.errors import DataError
from dpsql.privacy.accountant import Request
from dpsql.privacy.amounts import exact, show
from dpsql.sql.parse.options import budget_of, read_options


def request_of(sql: str, epsilon: object = None, delta: object = None, rho: object = None) -> Request:
    """The checked request for ``sql``: epsilon and delta of its OPTIONS, if any, and of the call.

    What only one of the two says counts; what both say must be equal (a float as its shortest decimal text, as a
    person wrote it). Raises SQLError for clauses that are refused, DataError for amounts that are, and where the two
    disagree.
    """
    options = budget_of(read_options(sql)[1])
    if options is None:
        return Request.of(epsilon, delta, rho)
    if rho is not None:
        raise DataError("rho is given and the batch has OPTIONS with epsilon; keep one of the two")
    return Request.of(_one("epsilon", options.epsilon, epsilon), _one("delta", options.delta, delta))


def _one(name: str, written: object, given: object) -> object:
    if written is None or given is None:
        return given if written is None else written
    wanted = exact(name, written)
    called: Fraction = exact(name, given, shortest=True)
    if called != wanted:
        raise DataError(
            f"{name} is {show(called)} in the call and {show(wanted)} in the batch's OPTIONS; keep one of the two"
        )
    return written
