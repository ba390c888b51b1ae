"""Statements: a batch's text, held to public size limits and parsed by sqlglot.

Only the text decides here. Limits are checked on the raw characters, before any token is
made, because the parser recurses and is slow on hostile input.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError

from dpsql.errors import SQLError
from dpsql.sql.parse.names import Source
from dpsql.sql.parse.quoted import written_at
from dpsql.sql.parse.shapes import parsed
from dpsql.sql.parse.spellings import has_spellings, prepared, respelled
from dpsql.sql.parse.stages import reached
from dpsql.sql.parse.tokens import QUOTING_SQL, check_size, first_line, place_at, place_of, refuse_token, tokens_of
from dpsql.sql.parse.trees import loosened, nodes, original, uncollected, written

MAX_DEPTH = 24

_SKIPPED = re.compile(QUOTING_SQL, re.DOTALL)
# What neither the ledger nor DuckDB can store as text.
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
_LANDMARK = re.compile(r"[;()]")
# A run of prefix operators nests as deeply as parentheses do.
_PREFIX_RUN = re.compile(rf"(?:\bNOT\b[\s(]*){{{MAX_DEPTH}}}|(?:[-+~][\s(]*){{{MAX_DEPTH}}}", re.IGNORECASE)
# What joins call the columns of a subquery by the unit.
_JOINED = re.compile(r'\S+ by \S+ #[0-9a-f]{16}\([^()]*\)\??\.|"[^"]+ by [^"]+"\.')
_COMMANDS = frozenset({TokenType.COMMAND, TokenType.LOAD, TokenType.EXECUTE})
_HINT = re.compile(r"(WEIGHT|MAX_ERROR)\s*\(\s*([0-9.eE+-]+)\s*\)", re.IGNORECASE)
_HINTS = re.compile(rf"\+\s*{_HINT.pattern}(?:[\s,]*{_HINT.pattern})*\s*", re.IGNORECASE)
_REACH = {"WEIGHT": (1e-6, 1e6), "MAX_ERROR": (1e-12, 1e15)}


@dataclass(frozen=True)
class Statement:
    """One query of a batch and the name of its result.

    ``name`` is the view's, or q1, q2, ... for the unnamed queries in their order (``named``
    says which). ``columns`` are the names listed after the view's name, or None. ``tree`` is a SELECT or
    a set operation. ``items`` are the texts of the SELECT's items as the user wrote them, where one
    of them needs a name and the texts are known. ``text_given``: ``text``, where it was written.
    ``source``: the whole statement as the user wrote it, where equal ones ask the same; else None. ``batch``: the text
    that it is a part of, which messages quote.
    """

    name: str
    named: bool
    replace: bool
    columns: tuple[str, ...] | None
    tree: exp.Select | exp.SetOperation = field(repr=False)
    items: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    text_given: str | None = field(default=None, repr=False, compare=False)
    source: str | None = field(default=None, repr=False, compare=False)
    batch: Source | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def text(self) -> str:
        """The query as DuckDB would write it, without comments."""
        # Writing changes some trees, such as those of WITHIN GROUP, and a cursor reads its statements twice.
        if self.text_given is not None:
            return self.text_given
        again = self.tree.copy()
        text = written(again, copy=False)
        loosened(again)
        return text


_AT = re.compile(r" \(line [0-9]+, column [0-9]+\)$")
_LACKS = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*?(\w+)'>")
_PATH = re.compile(r"[^\s;'\"]+\.(sql|txt|ddl)", re.IGNORECASE)


@uncollected()
def parse(text: str) -> tuple[Statement, ...]:
    """Parse a batch of SELECT and CREATE [OR REPLACE] VIEW statements (DuckDB's dialect).

    Cost: linear in the text, about 0.2 ms a statement. Raises SQLError past the limits, on
    syntax errors, on any other kind of statement, and where two results have one name.
    """
    _check_limits(text)
    if _PATH.fullmatch(text.strip()):
        raise SQLError(
            f"the batch is {text.strip()[:80]}, the path of a file, where its text is asked; read the file and send "
            "its text",
            code="syntax",
        )
    try:
        tokens = tokens_of(text)
        _refuse_commands(tokens)
        _hints_to_their_statements(text, tokens)
        tokens = prepared(tokens)
        found = parsed(text, tokens)
    except ParseError as error:
        raise _syntax(error) from None
    except RecursionError:
        raise SQLError(f"an expression nests too deeply; nest at most {MAX_DEPTH} levels", code="too-large") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        # Odd token sequences trip some versions of the parser itself.
        raise SQLError(
            "syntax error: the parser cannot make sense of the batch; DuckDB's dialect is read", code="syntax"
        ) from None
    source = Source(text, tokens)
    # Most batches have neither, and a walk over every tree costs a tenth of the parsing.
    commented, spelled = any(token.comments for token in tokens), has_spellings(tokens)
    if commented:
        _refuse_lost_hints(tokens, [one.tree for one in found])
    statements: list[Statement] = []
    unnamed = 0
    for one in found:
        tree, text_given = one.tree, None if spelled else one.text
        if tree is None or isinstance(tree, exp.Semicolon):
            continue
        if commented:
            _refuse_stray_hints(tree)
        reached("parse", tree)
        if spelled:
            tree = respelled(tree)
        reached("spell", tree)
        if isinstance(tree, exp.Create):
            statement = _view(tree)
        else:
            unnamed += 1
            query = _query(tree, "a statement of the batch")
            statement = Statement(f"q{unnamed}", False, True, None, query, text_given=text_given, source=one.source)
        if isinstance(statement.tree, exp.Select) and any(
            not isinstance(item, exp.Alias | exp.Column) for item in statement.tree.expressions
        ):
            statement = replace(statement, items=source.items(statement.tree) if text_given is None else one.items)
        statements.append(replace(statement, batch=source))
    if not statements:
        raise SQLError("the batch is empty; write at least one SELECT", code="syntax")
    _check_names(statements)
    return tuple(statements)


def _refuse_commands(tokens: Sequence[Token]) -> None:
    """EXPLAIN, CALL and the like, which the parser would keep as text and warn of."""
    for before, token in zip([None, *tokens], tokens, strict=False):
        starts = before is None or before.token_type is TokenType.SEMICOLON
        if starts and token.token_type in _COMMANDS:
            said = "only SELECT and CREATE VIEW ... AS SELECT are answered"
            raise refuse_token(f"a statement of the batch is {token.text.upper()}; {said}", token, "not-select")


def place(node: exp.Expr) -> tuple[int, int, tuple[int, int]] | tuple[None, None, None]:
    """Line and column (from 1) of the first token under ``node`` that the parser remembers, and those of the last."""
    first: tuple[int, int, int] | None = None
    last: tuple[int, int, int] = (0, 0, 0)
    for part in node.walk():
        meta = part.meta
        if "start" in meta:
            width = meta["end"] - meta["start"]
            found = (meta["start"], meta["line"], max(1, meta["col"] - width))
            first = found if first is None else min(first, found)
            last = max(last, (meta["end"], meta["line"], max(1, meta["col"])))
    if first is None and node.parent is not None:
        return place(node.parent)  # CURRENT_DATE and the like: the parser remembers what holds them
    return (None, None, None) if first is None else (*first[1:], last[1:])


def refuse(message: str, node: exp.Expr | None = None, *, code: str = "not-answered") -> SQLError:
    """The error that refuses ``node``, with its place in the user's text; one line, whatever the text holds.

    ``code``: the kind of refusal, one of docs/sql.md.
    """
    found: tuple[int, int, tuple[int, int]] | tuple[None, None, None] = (None, None, None)
    while node is not None and found[0] is None:  # what has no token of its own is shown by what holds it
        ends = written_at(node) if isinstance(node, exp.Condition) else None
        found = place(original(node)) if ends is None else (*place_of(ends[0]), (ends[1].line, max(1, ends[1].col)))
        node = node.parent
    return SQLError(_one_line(message), *found, code=code)


def without_place(error: SQLError) -> str:
    """What an error says, without its place."""
    return _AT.sub("", str(error))


def _one_line(message: str) -> str:
    shown = _JOINED.sub("", "".join(c if c.isprintable() else " " for c in message))
    return shown if len(shown) <= 600 else shown[:600] + " ..."


def _check_limits(text: str) -> None:
    if not isinstance(text, str):
        raise SQLError(f"a batch is a string of SQL, not {type(text).__name__}", code="syntax")
    check_size(text)
    odd = _NO_TEXT.search(text)
    if odd:
        raise SQLError("a NUL or a lone surrogate is no text; remove it", *place_at(text, odd.start()), code="syntax")
    bare = _SKIPPED.sub(lambda match: " " * len(match.group()), text)
    spaceship = bare.find("<=>")
    if spaceship >= 0:
        # The parser reads it as MySQL's operator; in DuckDB it is a distance of arrays.
        line, column = place_at(text, spaceship)
        raise SQLError("<=> is not admitted; write IS NOT DISTINCT FROM", line, column, (line, column + 2))
    depth = 0
    for landmark in _LANDMARK.finditer(bare):
        character = landmark.group()
        if character == "(":
            depth += 1
            if depth > MAX_DEPTH:
                raise SQLError(
                    f"parentheses nest deeper than {MAX_DEPTH}: flatten the expression",
                    *place_at(text, landmark.start()),
                    code="too-large",
                )
        elif character == ")":
            depth = max(0, depth - 1)
        else:
            depth = 0
    run = _PREFIX_RUN.search(bare)
    if run:
        line, _ = place_at(text, run.start())
        raise SQLError(f"{MAX_DEPTH} prefix operators in a row: simplify the expression", line, 1, code="too-large")


def _syntax(error: ParseError) -> SQLError:
    details = error.errors[0] if error.errors else {}
    description = first_line(str(details.get("description") or error))
    description = _LACKS.sub(lambda said: f"{said[1].upper()} lacks an argument", description)
    line, column = details.get("line"), details.get("col")
    end = None if line is None or column is None else (line, column)
    if column is not None:
        # The parser says where the token ends.
        column = max(1, column - max(0, len(str(details.get("highlight") or "")) - 1))
    return SQLError(
        f"syntax error: {description.rstrip('.')}; DuckDB's dialect is read", line, column, end, code="syntax"
    )


def _view(tree: exp.Create) -> Statement:
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "VIEW":
        raise refuse(
            f"CREATE {kind or '?'} is not answered; write CREATE VIEW name AS SELECT ...", tree, code="not-select"
        )
    allowed = {"this", "kind", "replace", "expression", "exists", "refresh", "unique", "concurrently"}
    for key, value in tree.args.items():
        if (value and key not in allowed) or (value and key in {"exists", "refresh", "unique", "concurrently"}):
            raise refuse(f"CREATE VIEW with {key.upper()} is not answered; leave it out", tree, code="not-select")
    target = tree.this
    columns = None
    if isinstance(target, exp.Schema):
        columns = tuple(_identifier(part) for part in target.expressions)
        target = target.this
    if not isinstance(target, exp.Table) or target.args.get("db") or target.args.get("catalog"):
        raise refuse("a view of a batch has a plain name; results live in schema dp", tree)
    name = target.name
    if not name:
        raise refuse("a view needs a name of at least one character", tree)
    if name.lower() == "releases":
        raise refuse("dp.releases is the list of releases; choose another name", tree)
    return Statement(name, True, bool(tree.args.get("replace")), columns, _query(tree.expression, f"view {name}"))


def _identifier(node: exp.Expression) -> str:
    if isinstance(node, exp.ColumnDef):
        raise refuse("the columns of a view are names without types", node)
    return str(node.name)


def _query(tree: exp.Expr | None, what: str) -> exp.Select | exp.SetOperation:
    while isinstance(tree, exp.Subquery | exp.Paren) and not any(
        value for key, value in tree.args.items() if key != "this"
    ):
        tree = tree.this
    if isinstance(tree, exp.Select | exp.SetOperation):
        return tree
    shown = "nothing" if tree is None else tree.key.upper()
    place_of = tree if tree is not None else None
    raise refuse(
        f"{what} is {shown}; only SELECT and CREATE VIEW ... AS SELECT are answered", place_of, code="not-select"
    )


@dataclass(frozen=True)
class Hints:
    """What the hints of a SELECT ask: a weight of its rows of W, and the half-width wanted of its private numbers."""

    weight: float = 1.0
    max_error: float | None = None


def hints_of(select: exp.Select) -> Hints:
    """The hints after SELECT, such as ``/*+ WEIGHT(4) MAX_ERROR(50) */``. SQLError for others and for repeated ones."""
    found: dict[str, float] = {}
    for comment in select.comments or []:
        if not comment.lstrip().startswith("+"):
            continue
        text = comment.strip()
        read = [(name.upper(), _within(name.upper(), number)) for name, number in _HINT.findall(text)]
        if not _HINTS.fullmatch(text) or any(value is None for _, value in read):
            raise refuse(
                f"the hint /*{comment}*/ is not known; write /*+ WEIGHT(4) */ with a number from 1e-6 to 1e6, or "
                "/*+ MAX_ERROR(50) */ with a positive one",
                select,
                code="hint",
            )
        for name, value in read:
            if name in found:
                raise refuse(f"the hint {name} stands twice; keep one of them", select, code="hint")
            found[name] = value or 0.0
    return Hints(found.get("WEIGHT", 1.0), found.get("MAX_ERROR"))


def _hints_to_their_statements(text: str, tokens: Sequence[Token]) -> None:
    """A hint between a semicolon and SELECT belongs to that SELECT, as it does before the first statement."""
    for token, after in itertools.pairwise(tokens):
        if token.token_type is TokenType.SEMICOLON and after.token_type is TokenType.SELECT and token.comments:
            between = text[token.end + 1 : after.start]
            hints = [said for said in token.comments if said.lstrip().startswith("+") and said in between]
            token.comments = [said for said in token.comments if said not in hints]
            after.comments = hints + (after.comments or [])


def _refuse_stray_hints(tree: exp.Expr) -> None:
    """A hint that is not read must not pass silently for one that is."""
    for node in nodes(tree):
        for comment in node.comments or []:
            if comment.lstrip().startswith("+") and not isinstance(node, exp.Select):
                raise refuse(_stray(comment), node, code="hint")


def _refuse_lost_hints(tokens: Sequence[Token], trees: Sequence[exp.Expr | None]) -> None:
    """A hint that the parser drops, as in ``COUNT(/*+ WEIGHT(2) */ *)``, must not pass for one that is read."""
    hints = [(token, text) for token in tokens for text in token.comments or [] if text.lstrip().startswith("+")]
    if not hints:
        return
    lost = Counter(text for _, text in hints)
    # What stands behind a semicolon is kept with it, and read by nobody.
    read = [tree for tree in trees if tree is not None and not isinstance(tree, exp.Semicolon)]
    lost.subtract(text for tree in read for node in nodes(tree) for text in node.comments or [])
    for token, text in hints:
        if lost[text] > 0 and token.token_type is not TokenType.SELECT:
            end = token.line, max(1, token.col)
            raise SQLError(_one_line(_stray(text)), *place_of(token), end, code="hint")


def _stray(hint: str) -> str:
    return f"the hint /*{hint}*/ stands where none is read; write it right after SELECT"


def _within(hint: str, text: str) -> float | None:
    least, most = _REACH[hint]
    try:
        value = float(text)
    except ValueError:
        return None
    return value if least <= value <= most else None


def _check_names(statements: list[Statement]) -> None:
    seen: dict[str, Statement] = {}
    for statement in statements:
        key = statement.name.lower()
        if key in seen:
            raise refuse(
                f"two results of the batch are named {statement.name}; name one of them otherwise",
                statement.tree,
            )
        seen[key] = statement
