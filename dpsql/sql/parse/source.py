"""Source: the user's own text of a SELECT's items, for what depends on how they are written.

DuckDB names a column without an alias after its text as written: 1_000 and 1000 are two
names. Tokens know their place in the text; the tree of an expression does not.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from sqlglot import Token, TokenType, exp

from dpsql.sql.parse.trees import nodes

_OPEN = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSE = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
_ENDS = frozenset({TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY})


class Source:
    """A batch's text and its tokens, cut at the semicolons."""

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._semicolons = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
        self._starts = [tokens[i].start for i in self._semicolons]

    def items(self, select: exp.Select) -> tuple[str, ...] | None:
        """The text of each item of a SELECT of the batch; None where the tokens do not tell it plainly.

        Cost: linear in the statement.
        """
        within = next((part.meta["start"] for part in nodes(select) if part.meta_get("start") is not None), None)
        if within is None:
            return None
        number = bisect.bisect(self._starts, within)
        first = self._semicolons[number - 1] + 1 if number else 0
        last = self._semicolons[number] if number < len(self._semicolons) else len(self._tokens)
        tokens = self._tokens[first:last]
        heads = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SELECT]
        if len(heads) != 1:
            return None
        found = _split(tokens[heads[0] + 1 :])
        if len(found) != len(select.expressions) or not all(found):
            return None
        return tuple(self._text[item[0].start : item[-1].end + 1] for item in found)


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    """The items at the commas outside of parentheses, up to the clause that ends them."""
    items: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        kind = token.token_type
        depth += (kind in _OPEN) - (kind in _CLOSE)
        if depth < 0 or (depth == 0 and kind in _ENDS):
            break
        if depth == 0 and kind is TokenType.COMMA:
            items.append([])
        else:
            items[-1].append(token)
    # DuckDB reads a comma after the last item.
    return items[:-1] if len(items) > 1 and not items[-1] else items
