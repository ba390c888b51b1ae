"""Keys of a GROUP BY as one number: Spark hashes, compares and shuffles one BIGINT where it would several."""

from __future__ import annotations

from collections.abc import Sequence

from dpsql.engines.spark.values import Expr

_MOST = 2**62


def packed(keys: Sequence[Expr]) -> tuple[str, list[str]] | None:
    """One BIGINT for several whole numbers of known ranges, and each number again from a column ``dpsql_key``.

    A mixed-radix number: key i with w values, NULL beside them, is a digit below w + 1, 0 for NULL. None where there is
    no second key, or where 62 bits do not hold all.
    """
    if len(keys) < 2:
        return None
    digits, numbers, factor = [], [], 1
    for key in keys:
        if not key.whole or key.type == "HUGEINT" or key.high < key.low:
            return None
        radix = key.high - key.low + 2
        digits.append(f"coalesce(CAST({key.text} AS BIGINT) - {_long(key.low - 1)}, 0L) * {factor}L")
        numbers.append(f"nullif(dpsql_key div {factor}L % {radix}L, 0L) + {_long(key.low - 1)}")
        factor *= radix
        if factor > _MOST:
            return None
    return " + ".join(digits), numbers


def _long(number: int) -> str:
    return f"{number}L" if number >= 0 else f"({number}L)"
