"""The local release: rows that are randomised one by one, and estimates from them.

    randomise(record, domain, epsilon=...)            on a person's own device, before anything is sent
    randomise_many(columns, domain, epsilon=...)      many records, each on its own
    estimate(rows, phi, domain, epsilon=...)          counts, sums and averages from randomised rows, any number of them
    collect(rows, domain, epsilon=...)                rows made ready for many estimates
    where, value, constant, tabulated                 functions of a record in closed form
    distortion_upper_bound, distortion_lower_bound    the worst squared error of any such query

Nothing here reaches a database, an engine or a ledger: `randomise` is for the one who holds the record, everything
else works on what has been released. The law and its proof are in ``dpsql.privacy.response``. Relation: replace one
row; the number of rows is public.
"""

from dpsql.extensions.local.device.domain import OTHER, Categories, Domain
from dpsql.extensions.local.device.estimate import (
    Collected,
    Estimate,
    collect,
    distortion_lower_bound,
    distortion_upper_bound,
    estimate,
)
from dpsql.extensions.local.device.local import randomise, randomise_many
from dpsql.extensions.local.device.row_functions import RowFunction, constant, tabulated, value, where
from dpsql.privacy.response import Response

__all__ = [
    "OTHER",
    "Categories",
    "Collected",
    "Domain",
    "Estimate",
    "Response",
    "RowFunction",
    "collect",
    "constant",
    "distortion_lower_bound",
    "distortion_upper_bound",
    "estimate",
    "randomise",
    "randomise_many",
    "tabulated",
    "value",
    "where",
]
