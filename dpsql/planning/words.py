"""The words of a plan, each in a short sentence that stands on the same screen."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from dpsql.common.arrays import Json
from dpsql.planning.figures import figure
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.privacy.amounts import show

# A pattern that finds the word, how it is listed, and what it means. A word that another explains comes before it.
_WORDS = (
    (r"local release", "local release", "every row is changed at random by itself, before it is collected"),
    (r"stand-ins?\b", "stand-ins", "made-up public data, on which the method was tried"),
    (r"\bblocks? of \d", "block", "numbers whose noise is drawn together"),
    (r"K-norm noise", "K-norm noise", "Laplace-like noise, drawn for several numbers together"),
    (r"\bstrateg(y|ies)\b", "strategy", "the counts and sums that are measured in place of the answers asked"),
    (r"\bmeasurements?\b", "measurement", "one count or sum to which noise is added"),
    (r"\bcells?\b", "cell", "rows that no statement of the batch tells apart"),
    (r"\bmu\b", "mu squared", "what Gaussian noise costs; it adds up over releases"),
    (r"\bsensitivity\b", "sensitivity", "how much the protected rows can change what is measured"),
    (r"\bunits?\b", "unit", "the person or thing whose rows are protected together"),
    (r"expected_rows", "expected_rows", "the policy's public guess of how many rows there are"),
)
_PARTS = (
    (r"\bpure\b", "pure: the part for releases with epsilon alone"),
    ("Gaussian budget", "Gaussian: the part for Gaussian noise"),
)


def words(plan: PlannedBatch, page: str, rows: Sequence[Json]) -> list[tuple[str, str]]:
    """What the words of the text ``page`` mean, and those of the table of ``rows``, in the order of reading."""
    promised = list(_of_guarantee(plan, page))
    said = " ".join([page, *(text for _, text in promised)])
    used = [(name, text) for pattern, name, text in _WORDS if re.search(pattern, said)]
    parts = [text for pattern, text in _PARTS if re.search(pattern, page)]
    budget = "budget", "; ".join(["what all releases together may cost", *parts])
    return [*promised, budget, *used, *_of_errors(plan, rows)]


def _of_guarantee(plan: PlannedBatch, page: str) -> Iterator[tuple[str, str]]:
    """Epsilon with the factor that it stands for, delta, rho."""
    guarantee = plan.charge.guarantee
    if "epsilon" in guarantee:
        figure_of = re.search(r"epsilon ([0-9.]+(e-?[0-9]+)?)", guarantee)
        epsilon = math.inf if figure_of is None else float(figure_of[1])
        fold = "e^epsilon" if epsilon > 14 else show(Fraction(math.exp(epsilon)), 3)
        whose = "one unit's rows" if "all rows of" in plan.unit else "one row"
        yield "epsilon", f"with or without {whose} an outcome is at most {fold} times as likely"
    if re.search(r"\bdelta\b", page):
        yield "delta", "beyond that factor, chances may differ by at most delta"
    if re.search(r"\brho\b", page):
        yield "rho (zCDP)", "how far the protected rows may change chances; less is more private"


def _of_errors(plan: PlannedBatch, rows: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """The titles and marks of the table of errors."""
    said = getattr(plan.strategy, "errors_text", "")
    if said:
        yield "std error", said
    elif plan.estimated:
        yield (
            "std error",
            "depends on the data; here estimated on made-up public data, not proven. A release states its own, which "
            "may be larger",
        )
    else:
        yield "std error", "the noise's standard deviation; of several, their root mean square"
    level = f"{100 * (1 - plan.alpha):g}"
    about = "about " if plan.estimated and not said else ""
    yield (
        f"{level} % within",
        f"half-width of the {about}{level} % confidence interval of each number by itself, not of all at once; for "
        "several numbers, the widest",
    )
    if any(row["naive_stderr"] for row in rows):
        yield "gain", "2x: asking each column separately at this total cost doubles errors"
    sizes = sorted({row["group_rows"] for row in rows if row["group_rows"] is not None})
    if sizes:
        span = figure(sizes[0]) if len(sizes) == 1 else f"{figure(sizes[0])} to {figure(sizes[-1])}"
        fewer = "; doubled if only half of these count" if _limited(plan) else ""
        yield "~", f"estimated as if each group had {span} rows; fewer have larger errors{fewer}"
    if any(row["stderr"] is None for row in rows):
        yield "depends", "an average, ratio or quantile; its error depends on the answer"


def _limited(plan: PlannedBatch) -> bool:
    """Whether some source lets only some rows of a unit count."""
    sources = (layout.source for layout in plan.compiled.layouts)
    return any(s.unit is not None and s.of is None and not s.single and not s.distinct for s in sources)
