"""What has been released: noisy tables, public, kept in a DuckDB file derived from the ledger."""

from .columns import Numbers
from .names import check_name
from .range_table import RangeNumber, RangeRows, RangeTable
from .record import ReleaseRecord, ReleaseTable, ResultTable
from .result import Result
from .store import ReleaseStore

__all__ = [
    "Numbers",
    "RangeNumber",
    "RangeRows",
    "RangeTable",
    "ReleaseRecord",
    "ReleaseStore",
    "ReleaseTable",
    "Result",
    "ResultTable",
    "check_name",
]
