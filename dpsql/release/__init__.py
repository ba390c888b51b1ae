"""What has been released: noisy tables, public, kept in a DuckDB file derived from the ledger."""

from .record import ReleaseRecord, ReleaseTable, check_name
from .result import Result
from .store import ReleaseStore

__all__ = ["ReleaseRecord", "ReleaseStore", "ReleaseTable", "Result", "check_name"]
