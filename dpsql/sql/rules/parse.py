"""Parse: the text of a batch as trees, one a statement, held to public size limits and parsed by sqlglot.

Only the text decides here. Limits are checked on the raw characters, before any token is made, because the parser
recurses and is slow on hostile input.

    >>> stage("parse", "FROM people SELECT COUNT(*) n")
    SELECT COUNT(*) AS n FROM people
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError

from dpsql.errors import SQLError
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.parse.names import Source
from dpsql.sql.parse.shapes import Parsed, parsed
from dpsql.sql.parse.spellings import has_spellings
from dpsql.sql.parse.statements import Statement, refuse, refuse_lost_hints, refuse_stray_hints
from dpsql.sql.parse.tokens import (
    QUOTING_SQL,
    check_size,
    first_line,
    items_of,
    nesting,
    place_at,
    refuse_token,
    tokens_of,
)
from dpsql.sql.parse.trees import nodes, uncollected
from dpsql.sql.rules.rule import Rule, tree_text
from dpsql.sql.rules.spell import SPELL, Unspelled

MAX_DEPTH = 24

_SKIPPED = re.compile(QUOTING_SQL, re.DOTALL)
# What neither the ledger nor DuckDB can store as text.
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
_LANDMARK = re.compile(r"[;()]")
# A run of prefix operators nests as deeply as parentheses do.
_PREFIX_RUN = re.compile(rf"(?:\bNOT\b[\s(]*){{{MAX_DEPTH}}}|(?:[-+~][\s(]*){{{MAX_DEPTH}}}", re.IGNORECASE)
_COMMANDS = frozenset({TokenType.COMMAND, TokenType.LOAD, TokenType.EXECUTE})
_LACKS = re.compile(r"Required keyword: '\w+' missing for <class '[\w.]*?(\w+)'>")
_PATH = re.compile(r"[^\s;'\"]+\.(sql|txt|ddl)", re.IGNORECASE)
# GROUP BY CUBE (a, b > 1): the parser reads columns alone within these, and any expression within a function.
_CUBES = frozenset({TokenType.CUBE, TokenType.ROLLUP})
_CUBE_NAMES = frozenset({kind.name.lower() for kind in _CUBES})
_PIVOTS = frozenset({TokenType.PIVOT, TokenType.UNPIVOT})
_ENCLOSED = _PIVOTS | {TokenType.GROUPING_SETS}
_SET_OPERATORS = frozenset({TokenType.UNION, TokenType.EXCEPT, TokenType.INTERSECT})
_BEFORE_PIVOT = _SET_OPERATORS | {TokenType.L_PAREN, TokenType.ALL, TokenType.DISTINCT}
_LIMITS = frozenset({TokenType.LIMIT, TokenType.OFFSET, TokenType.FETCH})
_AFTER_PIVOT = _SET_OPERATORS | _LIMITS | {TokenType.ORDER_BY, TokenType.SEMICOLON}


@dataclass(frozen=True)
class Trees:
    """A batch as the parser reads it: its text with the tokens, and its statements in order."""

    source: Source = field(repr=False)
    statements: tuple[Parsed, ...]


def _parsed(text: str) -> Trees:
    _check_limits(text)
    if _PATH.fullmatch(text.strip()):
        said = f"the batch is {text.strip()[:80]}, the path of a file, where its text is asked"
        raise SQLError(f"{said}; read the file and send its text", code="syntax")
    try:
        tokens = tokens_of(text)
        _refuse_commands(tokens)
        _hints_to_their_statements(text, tokens)
        tokens = _prepared(tokens)
        return Trees(Source(text, tokens), tuple(parsed(text, tokens)))
    except ParseError as error:
        raise _syntax(error) from None
    except RecursionError:
        raise SQLError(f"an expression nests too deeply; nest at most {MAX_DEPTH} levels", code="too-large") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        # Odd token sequences trip some versions of the parser itself.
        raise SQLError(
            "syntax error: the parser cannot make sense of the batch; DuckDB's dialect is read", code="syntax"
        ) from None


def _prepared(tokens: Sequence[Token]) -> list[Token]:
    """Tokens as the parser is to read them.

    $$text$$ is 'text', CUBE and ROLLUP are functions, whose arguments may be expressions, each of GROUPING SETS stands
    in parentheses, and PIVOT t ON a ... ORDER BY b is FROM (PIVOT t ON a ...) ORDER BY b, a query like any other.
    """
    for token, after in itertools.pairwise(tokens):
        if token.token_type in _CUBES and after.token_type is TokenType.L_PAREN:
            token.token_type = TokenType.VAR
    for token in tokens:
        if token.token_type is TokenType.HEREDOC_STRING:
            token.token_type = TokenType.STRING
    if not any(token.token_type in _ENCLOSED for token in tokens):
        return list(tokens)
    opened: list[int] = []
    closed = 0  # where the last parenthesis began that has ended
    start = 0  # of the statement
    new: dict[int, list[tuple[TokenType, str]]] = {}
    for at, token in enumerate(tokens):
        kind = token.token_type
        if kind in _PIVOTS and _starts_query(tokens, at, start, closed):
            parts = items_of(tokens[at:], _AFTER_PIVOT)
            stop = at + sum(map(len, parts)) + len(parts) - 1
            new.setdefault(at, []).extend([(TokenType.FROM, "FROM"), (TokenType.L_PAREN, "(")])
            new.setdefault(stop, []).insert(0, (TokenType.R_PAREN, ")"))
        elif kind is TokenType.GROUPING_SETS:
            first = at + 2
            for item in items_of(tokens[first:]):
                if item and not _is_set(item):
                    new.setdefault(first, []).append((TokenType.L_PAREN, "("))
                    new.setdefault(first + len(item), []).insert(0, (TokenType.R_PAREN, ")"))
                first += len(item) + 1
        if kind is TokenType.SEMICOLON:
            start = at + 1
        elif nesting(token) > 0:
            opened.append(at)
        elif nesting(token) < 0 and opened:
            closed = opened.pop()
    out: list[Token] = []
    for at in range(len(tokens) + 1):
        near = tokens[min(at, len(tokens) - 1)]
        out += [Token(kind, text, near.line, near.col, near.start, near.end) for kind, text in new.get(at, ())]
        out += tokens[at : at + 1]
    return out


def _starts_query(tokens: Sequence[Token], at: int, start: int, closed: int) -> bool:
    """Whether PIVOT begins a query and follows no table. ``closed``: where the last parenthesis began that has ended.

    It begins a statement, a query in parentheses or after UNION, that of CREATE VIEW, and what follows a list of WITH.
    """
    before = tokens[at - 1].token_type if at > start else None
    if before is TokenType.ALIAS:
        begun = {token.token_type for token in tokens[start:at]}
        return TokenType.CREATE in begun and begun.isdisjoint({TokenType.SELECT, TokenType.FROM, TokenType.WITH})
    if before is TokenType.R_PAREN:
        return closed > start and (
            tokens[closed - 1].token_type is TokenType.ALIAS or tokens[closed - 1].text.upper() == "MATERIALIZED"
        )
    return before is None or before in _BEFORE_PIVOT


def _is_set(item: Sequence[Token]) -> bool:
    """Whether one of GROUPING SETS is in parentheses as a whole, or several by CUBE and the like."""
    if item[0].token_type is TokenType.GROUPING_SETS or item[0].text.lower() in _CUBE_NAMES:
        return True
    depths = list(itertools.accumulate(nesting(token) for token in item))
    return 0 not in depths[:-1]


def _refuse_commands(tokens: Sequence[Token]) -> None:
    """EXPLAIN, CALL and the like, which the parser would keep as text and warn of."""
    for before, token in zip([None, *tokens], tokens, strict=False):
        starts = before is None or before.token_type is TokenType.SEMICOLON
        if starts and token.token_type in _COMMANDS:
            said = "only SELECT and CREATE VIEW ... AS SELECT are answered"
            raise refuse_token(f"a statement of the batch is {token.text.upper()}; {said}", token, "not-select")


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


def _hints_to_their_statements(text: str, tokens: Sequence[Token]) -> None:
    """A hint between a semicolon and SELECT belongs to that SELECT, as it does before the first statement."""
    for token, after in itertools.pairwise(tokens):
        if token.token_type is TokenType.SEMICOLON and after.token_type is TokenType.SELECT and token.comments:
            between = text[token.end + 1 : after.start]
            hints = [said for said in token.comments if said.lstrip().startswith("+") and said in between]
            token.comments = [said for said in token.comments if said not in hints]
            after.comments = hints + (after.comments or [])


def _text(made: Trees) -> str:
    trees = [one.tree for one in made.statements if one.tree is not None and not isinstance(one.tree, exp.Semicolon)]
    return ";\n".join(map(tree_text, trees))


PARSE: Rule[str, Trees] = Rule(
    "parse",
    "the text as trees, one a statement",
    "a text",
    broken=lambda text: None,
    apply=_parsed,
    text=_text,
)


# -- statements ----------------------------------------------------------------------------------


@uncollected()
def parse(text: str) -> tuple[Statement, ...]:
    """Parse a batch of SELECT and CREATE [OR REPLACE] VIEW statements (DuckDB's dialect).

    Cost: linear in the text, about 0.2 ms a statement. Raises SQLError past the limits, on
    syntax errors, on any other kind of statement, and where two results have one name.
    """
    trees = PARSE(text)
    source, tokens = trees.source, trees.source.tokens
    # Most batches have neither, and a walk over every tree costs a tenth of the parsing.
    commented, spelled = any(token.comments for token in tokens), has_spellings(tokens)
    if commented:
        refuse_lost_hints(tokens, [one.tree for one in trees.statements])
    statements: list[Statement] = []
    unnamed = 0
    for one in trees.statements:
        tree, text_given = one.tree, None if spelled else one.text
        if tree is None or isinstance(tree, exp.Semicolon):
            continue
        if commented:
            refuse_stray_hints(tree)
        tree = SPELL(Unspelled(tree, spelled))
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


def _view(tree: exp.Create) -> Statement:
    kind = str(tree.args.get("kind") or "").upper()
    if kind != "VIEW":
        raise refuse(
            f"CREATE {kind or '?'} is not answered; write CREATE VIEW name AS SELECT ...", tree, code="not-select"
        )
    for key, value in tree.args.items():
        if value and key not in {"this", "kind", "replace", "expression"}:
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
    raise refuse(f"{what} is {shown}; only SELECT and CREATE VIEW ... AS SELECT are answered", tree, code="not-select")


def _check_names(statements: list[Statement]) -> None:
    seen: dict[str, Statement] = {}
    for statement in statements:
        key = statement.name.lower()
        if key in seen:
            said = f"two results of the batch are named {statement.name}; name one of them otherwise"
            raise refuse(said, statement.tree)
        seen[key] = statement


def repeated(statements: Sequence[Statement], policy: Policy, tables: Iterable[str]) -> set[str]:
    """Texts of SELECTs that occur more than once and mean the same each time, with their first statement.

    Such are unnamed, over tables, without queries in them, in a batch that gives no table's name to a result.
    """
    first: dict[str, Statement] = {}
    times = Counter(statement.source for statement in statements)
    for statement in statements:
        if statement.source is not None and times[statement.source] > 1:
            first.setdefault(statement.source, statement)
    results = {fold(statement.name) for statement in statements} if first else set()
    named = {fold(name).rpartition(".")[2] for name in (*tables, *policy.tables)}
    if not results.isdisjoint(named):
        return set()
    names_repeated = set()
    for source, statement in first.items():
        parts = list(nodes(statement.tree))
        read = [part.name for part in parts if isinstance(part, exp.Table)]
        plain = sum(isinstance(part, exp.Query) for part in parts) == 1 and not statement.named
        if plain and not any(fold(name) in results or policy.view(name) for name in read):
            names_repeated.add(source)
    return names_repeated
