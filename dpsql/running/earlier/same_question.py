"""What makes two batches the same question, so that the earlier answer can be used again for free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from dpsql.planning.plan import Plan
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Entry
from dpsql.running.earlier.stored_measurements import declarations
from dpsql.sql import Answer
from dpsql.sql.outer.probes import shown_columns
from dpsql.workloads.expr.batch import Core


def reuse_key(plan: Plan, errors: bool) -> str:
    """What makes two runs the same question: data version, statements, meaning, charge, options.

    Not the strategy, unless the call names it: its last digits depend on the number of threads, and either strategy
    answers the question to the planned tolerance.
    """
    objective, plain = plan.strategy.objective, plan.wanted is None and not plan.estimated
    body = [
        plan.dataset,
        [answer.meaning for answer in plan.queries],
        plan.charge.as_dict(),
        _meaning(plan),
        plan.alpha,
        errors,
        # Answers planned for one objective do not serve who asked for another; what was not asked for is left out.
        *([objective] if objective == "max" or (objective == "total" and plain) else []),
        *([plan.strategy.method, plan.strategy.shape[0]] if plan.estimated else []),
        *([repr(plan.wanted)] if plan.wanted is not None else []),
        *([plan.named] if plan.named else []),
    ]
    return hashlib.sha256(json.dumps(body, ensure_ascii=True).encode()).hexdigest()


def request_key(plan: Plan, key: str) -> str:
    """What an approval is for: the text of a batch, to the letter, beside ``reuse_key`` and the policy of its plan."""
    return hashlib.sha256(json.dumps([key, plan.sql.strip(), plan.policy]).encode()).hexdigest()


def _meaning(plan: Plan) -> list[str]:
    """What policy and types give to the same words: rows of units, group keys, bounds and grids of sums, cuts.

    Of a batch that is one matrix and planned as blocks as that matrix has them: whether blocks are a match is no part
    of the question.
    """
    one_matrix = None if plan.origin is None else plan.origin.prepared.one_matrix
    compiled = plan.compiled if one_matrix is None else one_matrix
    found = [repr(query.keys) for query in compiled.queries]
    said: set[object] = set()
    for layout in compiled.layouts:
        kind = (layout.table, layout.source, layout.measures)
        if kind not in said:  # a table has many layouts where it is counted in many histograms
            schemas = [sorted(plan.schemas[table].items()) for table in layout.source.tables]
            values = sorted(layout.values.items(), key=lambda v: v[0])
            found.append(repr((layout.table, layout.source, schemas, layout.measures, values)))
            found.extend(repr(cap) for cap in layout.source.caps)
        every = {id(axis): axis for axis in (*layout.cells.axes, *layout.whole.cells.axes)}
        axes = [axis for number, axis in every.items() if number not in said]
        found.extend(f"{axis!r} {np.asarray(getattr(axis, 'pieces', ())).tolist()}" for axis in axes)
        said.update([kind, *(id(axis) for axis in axes)])
    return found


# -- single statements, at whatever budget -------------------------------------------------------------


def question_keys(policy: str, answers: Sequence[Answer]) -> list[str]:
    """What each statement of a batch asks, whatever its budget and the rest of its batch: equal keys, equal question.

    ``policy`` is the policy's text. The key holds the declared data version, what the policy says of tables and views,
    the statement as DuckDB would write it, the names of its columns, its groups, and the results that it reads. The
    name of its own result is left out: q1 of one batch may be q3 of another.
    """
    # What is left to spend changes no question.
    version, declared = policy.partition("\n[budget]\n")[0], declarations(policy)
    keys: dict[str, str] = {}
    for answer in answers:
        body = [
            *(version, declared, answer.text),
            *([column.name for column in shown_columns(answer)], [repr(core.keys) for core in answer.cores]),
            [keys[name] for name in answer.reads],
        ]
        keys[answer.name] = hashlib.sha256(json.dumps(body, ensure_ascii=True).encode()).hexdigest()[:32]
    return [keys[answer.name] for answer in answers]


class Erring(Protocol):
    """What has errors to compare: a `Plan`, or answers from earlier releases."""

    @property
    def queries(self) -> tuple[Answer, ...]: ...
    @property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]: ...
    def mean_square(self, part: slice) -> float: ...


def squared_errors(plan: Erring) -> list[float]:
    """The sum of squared standard errors of what each statement measures; compares two plans of one statement."""
    cores = iter(plan.cores)
    found = []
    for answer in plan.queries:
        held = [next(cores) for _ in answer.cores]
        parts = [part for _, slices in held for part in slices]
        found.append(float(sum(plan.mean_square(part) * (part.stop - part.start) for part in parts)))
    return found


def types_of(schemas: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """A mark of the column types of each table: one text means other things over other types."""
    return {
        name: hashlib.sha256(json.dumps(sorted(types.items())).encode()).hexdigest()[:32]
        for name, types in schemas.items()
    }


def questions(plan: Plan) -> list[list[object]]:
    """(key, squared error) of each statement, for the ledger's description of a charge."""
    keys = question_keys(plan.policy, plan.queries)
    return [[key, float(f"{error:.12g}")] for key, error in zip(keys, squared_errors(plan), strict=True)]


Accepts: TypeAlias = "Callable[[Entry, list[int]], bool]"
"""Whether a release, and which of its results, may stand for an answer."""


def most_precise(
    entries: Sequence[Entry],
    keys: Sequence[str],
    names: Sequence[str] | None,
    alpha: float | None,
    types: Mapping[str, str],
    accepts: Accepts | None = None,
) -> tuple[Entry, list[int]] | None:
    """The release that answers all of ``keys`` with the least error, and which of its results these are.

    One release, so that the answers are consistent with each other. ``names``: the batch names views, so that the
    release must have exactly these results. ``alpha``: its error columns are wanted, at that level. ``types`` are those
    of the tables now (``types_of``): a release of tables that had others answers nothing. ``accepts``: what else must
    hold of a release, asked from the least error on. Free: the ledger's descriptions are public.
    """
    found: list[tuple[float, Entry, list[int]]] = []
    for entry in reversed(entries):  # of equal errors the newest comes first
        held = entry.description.get("questions")
        if entry.released is None or not isinstance(held, list):
            continue
        if alpha is not None and (not entry.description.get("errors") or entry.description.get("alpha") != alpha):
            continue
        before = entry.description.get("types")
        if not isinstance(before, dict) or any(types.get(name) != mark for name, mark in before.items()):
            continue
        if names is not None and list(entry.results) != list(names):
            continue
        places = {str(key): at for at, (key, _) in enumerate(held)}
        if all(key in places for key in keys):
            chosen = [places[key] for key in keys]
            found.append((sum(float(held[at][1]) for at in chosen), entry, chosen))
    found.sort(key=lambda one: one[0])
    return next(((e, chosen) for _, e, chosen in found if accepts is None or accepts(e, chosen)), None)


def paid_with(charges: Sequence[Charge]) -> Accepts:
    """Accepts a release of the very batch that one of these charges paid for: it is what a run at them would give.

    One by a strategy that its call named is not: another may be exacter.
    """
    accounts = [charge.as_dict() for charge in charges]

    def accepts(entry: Entry, places: list[int]) -> bool:
        whole = places == list(range(len(entry.description["questions"])))
        said = entry.description
        return whole and "objective" not in said and "named" not in said and entry.charge.as_dict() in accounts

    return accepts
