"""Shapes: statements that differ in the constants of their comparisons alone are parsed once.

A shape is what the tokens of a SELECT are with the constants that follow ``=``, ``<``, BETWEEN, THEN and the like, or
stand in a list after IN, left open. Its tree is that of one statement; every other is the same tree with its own
constants and places, which takes a fifth of the time of parsing. What the parser makes of such a constant does not
depend on its value; still a shape is used only where two statements and one of marks agree with what the parser makes
of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlglot import Token, TokenType, exp

from dpsql.sql.parse.names import Source, Spans
from dpsql.sql.parse.trees import DUCKDB, nodes, written

Items = tuple[str, ...] | None

_NUMBER, _TEXT = re.compile(r"[0-9]+(?:\.[0-9]+)?"), re.compile(r"[A-Za-z0-9 _.:%-]*")
_OPERATORS = (TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE)
_CLAUSES = (TokenType.THEN, TokenType.ELSE, TokenType.LIMIT, TokenType.OFFSET)
_BEFORE = frozenset({*_OPERATORS, *_CLAUSES, TokenType.BETWEEN, TokenType.AND, TokenType.LIKE, TokenType.DATE})
_LISTED = frozenset({TokenType.COMMA, TokenType.DASH, TokenType.NUMBER, TokenType.STRING})
_VIEW, _REPLACING = (TokenType.CREATE, TokenType.VIEW), (TokenType.OR, TokenType.REPLACE)
_PLACE = ("line", "col", "start", "end")


@dataclass(frozen=True)
class Parsed:
    """The tree of a statement; of one that is made of a shape its text, too, and those of its items as written.

    ``source``: the statement as the user wrote it, where equal ones mean the same, as without comments.
    """

    tree: exp.Expr | None = field(repr=False)
    text: str | None = None
    items: Items = None
    source: str | None = None


class _Parser(DUCKDB.parser_class):  # type: ignore[name-defined, misc]
    """DuckDB's, with names for the values of PIVOT t ON c IN ('a' AS first)."""

    _pivots = _listed = False

    def _parse_simplified_pivot(self, is_unpivot: bool | None = None) -> exp.Pivot:
        self._pivots, before = True, self._pivots
        try:
            pivot: exp.Pivot = super()._parse_simplified_pivot(is_unpivot)
            return pivot
        finally:
            self._pivots = before

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        self._listed, before = self._pivots, self._listed
        try:
            listing: exp.In = super()._parse_in(this, alias)
            return listing
        finally:
            self._listed = before

    def _parse_select_or_expression(self, alias: bool = False) -> exp.Expr | None:
        found: exp.Expr | None = super()._parse_select_or_expression(alias)
        return self._parse_alias(found) if self._listed and isinstance(found, exp.Condition) else found


def parsed(text: str, tokens: Sequence[Token]) -> list[Parsed]:
    """The statements of a batch, in order, as the parser makes them. Raises what the parser raises."""
    parser = _Parser(dialect=DUCKDB)
    chunks = _chunks(tokens)
    if chunks is None:
        return [Parsed(tree) for tree in parser.parse(list(tokens), text)]
    shapes = _Shapes(text, lambda part: parser.parse(part, text)[0])
    return [shapes.parsed(chunk) for chunk in chunks]


def _chunks(tokens: Sequence[Token]) -> list[list[Token]] | None:
    """The tokens of each statement of a batch of SELECTs and views; None of any other.

    Comments between statements are left out. None, too, where one stands within a statement or may be a hint.
    """
    chunks: list[list[Token]] = [[]]
    for token in tokens:
        ends = token.token_type is TokenType.SEMICOLON
        if token.comments and ((chunks[-1] and not ends) or any("+" in comment for comment in token.comments)):
            return None
        if ends:
            chunks.append([])
        else:
            chunks[-1].append(_like(token, token.text) if token.comments else token)
    if not chunks[-1]:
        chunks.pop()
    return chunks if all(map(_is_alone, chunks)) else None


def _is_alone(chunk: Sequence[Token]) -> bool:
    """Whether a statement is a SELECT or CREATE [OR REPLACE] VIEW, none of those that go on behind a semicolon."""
    kinds = tuple(token.token_type for token in chunk[:4])
    return kinds[:1] == (TokenType.SELECT,) or kinds[:2] == _VIEW or kinds == (_VIEW[0], *_REPLACING, _VIEW[1])


@dataclass(frozen=True)
class _Node:
    """A node of a shape: where it hangs (``up``: the number of its parent), its token, and the constant that it is."""

    kind: type[exp.Expr]
    up: int
    key: str | None
    index: int | None
    args: dict[str, object]
    lists: tuple[tuple[str, list[object]], ...]
    token: int | None
    hole: int | None
    commented: bool  # the parser has added none to it


@dataclass(frozen=True)
class _Shape:
    """A tree without its constants and places, level by level, its text around the constants, and its items' tokens."""

    nodes: tuple[_Node, ...]
    pieces: tuple[str, ...]
    order: tuple[int, ...]
    spans: Spans | None

    @classmethod
    def of(cls, tree: exp.Select, tokens: Sequence[Token], marks: Sequence[str], spans: Spans | None) -> _Shape | None:
        """The shape of a tree with ``marks`` for its constants; None where it is not plain in all that is written out.

        Plain: each mark is one literal of the tree and stands once in its text, and each place is that of a token.
        """
        found: list[_Node] = []
        numbers: dict[int, int] = {}
        places = {(token.line, token.col, token.start, token.end): at for at, token in enumerate(tokens)}
        waiting = {mark: hole for hole, mark in enumerate(marks)}
        for node in nodes(tree):
            up = -1 if node is tree else numbers.get(id(node.parent), -2)
            meta = node._meta
            token = None if meta is None else places.get(tuple(meta.values()))
            if up == -2 or id(node) in numbers or node._type is not None or node.comments:
                return None
            if meta is not None and (token is None or tuple(meta) != _PLACE):
                return None
            hole = waiting.pop(node.args["this"], None) if isinstance(node, exp.Literal) else None
            args: dict[str, object] = {}
            lists: list[tuple[str, list[object]]] = []
            for key, value in node.args.items():
                if isinstance(value, list):
                    lists.append((key, [None if isinstance(part, exp.Expr) else part for part in value]))
                if isinstance(value, exp.Expr | list):
                    args[key] = None
                elif isinstance(value, str | int | Enum | None):
                    args[key] = value
                else:
                    return None
            if node is not tree and not _hangs(node):
                return None
            numbers[id(node)] = len(found)
            found.append(
                _Node(
                    type(node), up, node.arg_key, node.index, args, tuple(lists), token, hole, node.comments is not None
                )
            )
        text = written(tree)
        order = sorted(range(len(marks)), key=lambda hole: text.find(marks[hole]))
        if waiting or any(text.count(mark) != 1 for mark in marks):
            return None
        pieces = re.split("|".join(marks), text) if marks else [text]
        return cls(tuple(found), tuple(pieces), tuple(order), spans)

    def made(self, text: str, tokens: Sequence[Token], constants: Sequence[str]) -> Parsed:
        """The statement of these tokens."""
        made: list[exp.Expr] = []
        for part in self.nodes:
            node = part.kind()
            args = part.args.copy()
            for key, value in part.lists:
                args[key] = value.copy()
            if part.hole is not None:
                args["this"] = constants[part.hole]
            node.args = args
            if part.commented:
                node.comments = []
            if part.token is not None:
                token = tokens[part.token]
                node._meta = {"line": token.line, "col": token.col, "start": token.start, "end": token.end}
            if part.key is not None:
                node.parent, node.arg_key, node.index = made[part.up], part.key, part.index
                if part.index is None:
                    made[part.up].args[part.key] = node
                else:
                    made[part.up].args[part.key][part.index] = node
            made.append(node)
        out = [self.pieces[0]]
        for hole, piece in zip(self.order, self.pieces[1:], strict=True):
            out += [constants[hole], piece]
        spans = self.spans
        items = None if spans is None else tuple(text[tokens[i].start : tokens[j].end + 1] for i, j in spans)
        return Parsed(made[0], "".join(out), items, text[tokens[0].start : tokens[-1].end + 1])


def _hangs(node: exp.Expr) -> bool:
    """Whether a node is where it says that it is."""
    assert node.parent is not None  # noqa: S101 - its caller asked
    held = node.parent.args.get(node.arg_key or "")
    if node.index is None:
        return held is node
    return isinstance(held, list) and node.index < len(held) and held[node.index] is node


class _Shapes:
    """The shapes of one batch."""

    def __init__(self, text: str, parse: Callable[[list[Token]], exp.Expr | None]) -> None:
        self.text = text
        self.parse = parse
        self.seen: dict[tuple[object, ...], int | _Shape] = {}

    def parsed(self, tokens: list[Token]) -> Parsed:
        """One statement. The second of a shape makes it, for most shapes of some batches are seen once."""
        key, holes = _key(tokens)
        known = self.seen.get(key, 0)
        if isinstance(known, _Shape):
            return known.made(self.text, tokens, [tokens[hole].text for hole in holes])
        tree = self.parse(tokens)
        if known >= 0:
            self.seen[key] = known + 1
            if known == 1:
                self.seen[key] = self._shape(tokens, holes, tree) or -1
        return Parsed(tree, source=self.text[tokens[0].start : tokens[-1].end + 1])

    def _shape(self, tokens: list[Token], holes: Sequence[int], tree: exp.Expr | None) -> _Shape | None:
        """The shape of a statement, where it is one: the tree and the text of the statement come out of it again."""
        marks = [f"{9_000_000_000 + number}" for number in range(len(holes))]
        marked = [_like(token, token.text) for token in tokens]
        for hole, mark in zip(holes, marks, strict=True):
            marked[hole] = _like(tokens[hole], mark)
        model = self.parse(marked)
        if not isinstance(model, exp.Select) or not isinstance(tree, exp.Select):
            return None
        shape = _Shape.of(model, marked, marks, Source(self.text, tokens).spans(tree))
        if shape is None:
            return None
        again = shape.made(self.text, tokens, [tokens[hole].text for hole in holes])
        assert again.tree is not None  # noqa: S101 - made a line before
        return shape if _laid_out(again.tree) == _laid_out(tree) and again.text == written(tree) else None


def _like(token: Token, text: str) -> Token:
    return Token(token.token_type, text, token.line, token.col, token.start, token.end)


def _key(tokens: Sequence[Token]) -> tuple[tuple[object, ...], list[int]]:
    """What statements of one shape have in common, and which tokens are its open constants."""
    key: list[object] = []
    holes: list[int] = []
    before: TokenType | None = None
    listed = False  # in the list after IN
    for at, token in enumerate(tokens):
        kind = token.token_type
        if kind is TokenType.L_PAREN:
            listed = before is TokenType.IN
        elif listed and kind not in _LISTED:
            listed = False
        open_ = (
            kind in (TokenType.NUMBER, TokenType.STRING)
            and (listed or before in _BEFORE)
            and (_NUMBER if kind is TokenType.NUMBER else _TEXT).fullmatch(token.text)
        )
        if open_:
            holes.append(at)
        key.append(kind)
        key.append(None if open_ else token.text)
        if kind is not TokenType.DASH or not (listed or before in _BEFORE):
            before = kind
    return tuple(key), holes


def _laid_out(tree: exp.Expr) -> list[object]:
    """All that there is of a tree."""
    return [
        (
            *(type(node), node.arg_key, node.index, node.comments, node._type, node._meta, node.parent is None),
            *((key, _bare(value)) for key, value in node.args.items()),
        )
        for node in nodes(tree)
    ]


def _bare(value: object) -> object:
    """An argument; of a tree its kind alone."""
    if isinstance(value, list):
        return [_bare(part) for part in value]
    return type(value) if isinstance(value, exp.Expr) else value
