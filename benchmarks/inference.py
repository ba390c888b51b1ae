"""Do regressions and tests under noise say what they claim, and what do they cost beside others?

    python -m pip install statsmodels scikit-learn
    python benchmarks/inference.py --releases 400

Thirty outcomes of public data that statsmodels and scikit-learn bring along. Of each: ``dp_regression`` of the outcome
on three columns, ``dp_ttest`` of it by a median split, ``dp_chisq`` of two columns in thirds. Each statement is planned
once and released once for real; then its noise is drawn ``--releases`` times by the plan's own law from seeded
generators.

- Coverage: of the least-squares coefficients of the table, by intervals at 95 % that have ends; how many have none.
- Width: root mean square error of slopes beside adaptive sufficient-statistics perturbation (AdaSSP, Wang 2018,
  Algorithm 2) at the same mu, its three steps at a third of mu squared each, better than its published constants.
- Size: rejections at 5 % where the null hypothesis holds, one column permuted anew each time (drawn by how often each
  value falls into each group), in ``--null`` releases; beside it that of the exact test on the same rows.
- Power: rejections at 5 % in resampled rows, as many as give the exact test a power of about 0.8 (at least 200, at
  most all), and that of the exact test on the same rows.

Bounds are the smallest and largest value, rounded outward to two digits: a custodian would declare them from what is
known. epsilon is 1, of fewer than 5,000 rows 5,000 / n (at most 10); delta 1e-9. The unit is a row.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
from scipy import stats

import dpsql
from dpsql.common.arrays import Floats
from dpsql.privacy.calibrate import gaussian_mu
from dpsql.reconstruct import evaluate
from dpsql.replicates.noise import replicates
from dpsql.workloads.expr.batch import Core, Derived
from dpsql.workloads.expr.formulas import Comparison, Fit, Independence, Leaf

DELTA = 1e-9
OUTCOMES = {
    "fair": {
        "affairs": ("rate_marriage", "age", "religious"),
        "rate_marriage": ("age", "educ", "children"),
        "children": ("age", "yrs_married", "educ"),
        "religious": ("age", "educ", "children"),
        "educ": ("age", "occupation_husb", "religious"),
        "yrs_married": ("age", "children", "religious"),
    },
    "randhie": {
        "mdvis": ("lncoins", "disea", "physlm"),
        "disea": ("lncoins", "physlm", "hlthg"),
        "physlm": ("disea", "hlthf", "hlthp"),
        "lncoins": ("disea", "hlthg", "fmde"),
        "hlthg": ("disea", "physlm", "lncoins"),
        "hlthf": ("disea", "physlm", "lncoins"),
        "fmde": ("disea", "hlthg", "physlm"),
        "lpi": ("fmde", "disea", "idp"),
    },
    "anes96": {
        "income": ("age", "educ", "PID"),
        "PID": ("age", "educ", "selfLR"),
        "selfLR": ("age", "PID", "vote"),
        "TVnews": ("age", "educ", "income"),
    },
    "modechoice": {"gc": ("invt", "hinc", "psize"), "ttme": ("invc", "hinc", "choice")},
    "star98": {"PERSPENK": ("LOWINC", "PERHISP", "PTRATIO")},
    "diabetes": {"target": ("bmi", "bp", "sex"), "bp": ("bmi", "age", "sex"), "bmi": ("age", "s5", "sex")},
    "breast_cancer": {
        "mean_texture": ("mean_radius", "mean_smoothness", "target"),
        "mean_radius": ("mean_texture", "mean_symmetry", "target"),
        "mean_symmetry": ("mean_radius", "mean_texture", "target"),
    },
    "digits": {
        "pixel_2_3": ("pixel_3_3", "pixel_5_5", "target"),
        "pixel_4_4": ("pixel_3_4", "pixel_2_2", "target"),
        "pixel_5_2": ("pixel_4_2", "pixel_2_5", "target"),
    },
}


def frames(only: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The public data, by name, as far as ``only`` (see ``main``) takes it."""
    import sklearn.datasets
    import statsmodels.datasets

    for name in (name for name in OUTCOMES if name.startswith(only) or only.startswith(name)):
        if name in ("diabetes", "breast_cancer", "digits"):
            held = getattr(sklearn.datasets, f"load_{name}")()
            frame = pd.DataFrame(held.data, columns=[str(c).replace(" ", "_") for c in held.feature_names])
            yield name, frame.assign(target=held.target.astype(float))
        else:
            yield name, getattr(statsmodels.datasets, name).load_pandas().data.astype(float)


@dataclass
class Asked:
    """A statement planned: its core, how the noise moves the numbers of it, and the formula of each column."""

    core: Core
    rows: Floats
    noise: Any
    values: Callable[[int, int], Floats]  # (count, seed): the noise of all outputs
    formulas: dict[tuple[str, int], Any]

    @classmethod
    def of(cls, plan: dpsql.Plan) -> Asked:
        (core, slices), divisor = plan.cores[0], plan.compiled.common_steps
        found = plan.answers.rows(slices, plan.noise)
        rows = np.asarray(found.todense() if hasattr(found, "todense") else found) / divisor
        formulas: dict[tuple[str, int], Any] = {}
        for column in core.columns:
            if isinstance(column, Derived):
                what = getattr(column.formula, "what", "difference")
                formulas[what, getattr(column.formula, "at", 0)] = column.formula

        def moved(count: int, seed: int) -> Floats:
            return replicates(plan.noise, seed, count, rows.shape[1]) @ rows.T

        return cls(core, rows, plan.noise, moved, formulas)

    def evaluated(self, formula: Any, estimates: Floats, alpha: float = 0.05) -> Any:
        return evaluate(formula, estimates, np.repeat(self.rows, len(estimates), axis=0), self.noise, alpha)


class World:
    """One outcome: its rows, the connection that plans and releases."""

    def __init__(self, name: str, frame: pd.DataFrame, outcome: str, columns: tuple[str, ...], folder: Path) -> None:
        self.names = (*columns, outcome)
        data = frame[list(self.names)].dropna().to_numpy()
        self.n = len(data)
        self.epsilon = min(max(5_000 / self.n, 1.0), 10.0)
        self.bounds = [(_outward(column.min(), -1), _outward(column.max(), 1)) for column in data.T]
        self.data = data
        thirds = [np.searchsorted(np.unique(np.quantile(c, [1 / 3, 2 / 3])), c, side="left") for c in data.T]
        self.thirds = [np.unique(third, return_inverse=True)[1] for third in thirds]
        self.half = (data[:, 0] > np.median(data[:, 0])).astype(int)
        if self.half.min() == self.half.max():
            self.half = (data[:, 0] >= np.median(data[:, 0])).astype(int)
        table = pd.DataFrame(data, columns=[f"v{i}" for i in range(data.shape[1])]).assign(
            half=self.half, first=self.thirds[0], last=self.thirds[-1]
        )
        path = folder / f"{name}_{outcome}"
        with duckdb.connect(f"{path}.duckdb") as con:
            con.register("given", table)
            con.execute("CREATE TABLE t AS SELECT * FROM given")
        declared = [
            f"v{i} = {{ lower = {low}, upper = {high}, nulls = false }}" for i, (low, high) in enumerate(self.bounds)
        ]
        for column, groups in (("half", 2), ("first", self.thirds[0].max() + 1), ("last", self.thirds[-1].max() + 1)):
            declared.append(f"{column} = {{ lower = 0, upper = {groups - 1}, nulls = false }}")
        Path(f"{path}.toml").write_text(
            f'dataset = "{name}-{outcome}"\n[budget]\nepsilon = 100.0\ndelta = {DELTA}\n[tables.t]\nunit = "row"\n'
            "[tables.t.columns]\n" + "\n".join(declared) + "\n",
            encoding="utf-8",
        )
        self.con = dpsql.connect(f"{path}.duckdb", policy=f"{path}.toml")

    def asked(self, sql: str) -> tuple[Asked, Any]:
        """A statement planned, and its one true release."""
        plan = self.con.plan(sql, epsilon=self.epsilon, delta=DELTA)
        release = self.con.run(plan)
        return Asked.of(plan), release[release.views[0]].df()


def _outward(value: float, side: int) -> float:
    """A value rounded to two digits, away from the others."""
    if value == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if side > 0 else math.floor)(value / step) * step:.6g}")


def moments(values: Floats) -> Floats:
    """Sums of products of 1 and the columns, row by row of the upper triangle."""
    z = np.c_[np.ones(len(values)), values]
    product = z.T @ z
    return np.array([product[i, j] for i, j in combinations_with_replacement(range(z.shape[1]), 2)])


# -- regressions -----------------------------------------------------------------------------------


@dataclass
class Regressed:
    covered: int
    bounded: int
    intervals: int
    beside: list[float]  # root mean square error of AdaSSP over ours, slope by slope


def regressed(world: World, count: int, seed: int) -> Regressed:
    k = len(world.names) - 1
    columns = ", ".join(f"v{i}" for i in range(k))
    asked, frame = world.asked(f"CREATE VIEW fit AS SELECT dp_regression(v{k}, {columns}) FROM t")
    fit: Fit = asked.formulas["coefficient", 0]
    clamped = np.clip(world.data, *np.array(world.bounds).T)
    exact = np.zeros(len(asked.core.outputs))
    for part, value in zip(fit.moments, moments(clamped - fit.centres), strict=True):
        assert isinstance(part, Leaf)
        exact[part.index] = value
    estimates = exact + asked.values(count, seed)
    A = np.c_[np.ones(world.n), clamped[:, :-1]]
    beta, *_ = np.linalg.lstsq(A, clamped[:, -1], rcond=None)
    covered = bounded = 0
    ours: list[float] = []
    for at in range(k + 1):
        found = asked.evaluated(asked.formulas["coefficient", at], estimates)
        ends = np.isfinite(found.low) & np.isfinite(found.high)
        covered += int(((found.low <= beta[at]) & (beta[at] <= found.high))[ends].sum())
        bounded += int(ends.sum())
        ours.append(float(np.sqrt(np.mean((found.value - beta[at]) ** 2))))
        released = frame["coefficient"][at]
        if ends.all():
            assert abs(released - beta[at]) < 7 * np.median(found.stderr), "the release is not of the law of its plan"
    others = adassp((clamped - fit.centres) / fit.scales, gaussian_mu(world.epsilon, DELTA), count, seed)
    scales = fit.scales[-1] / np.array(fit.scales[:-1])
    rmse = np.sqrt(np.mean((others[:, 1:] * scales - beta[1:]) ** 2, axis=0))
    return Regressed(covered, bounded, (k + 1) * count, list(rmse / ours[1:]))


def adassp(z: Floats, mu: float, count: int, seed: int) -> Floats:
    """Coefficients (count x d) of AdaSSP for rows in [-1, 1], an intercept among the columns.

    Wang 2018, Algorithm 2, rho = 0.05, with the deviation sqrt(3) / mu for sqrt(log(6 / delta)) / (epsilon / 3).
    """
    generator = np.random.default_rng(seed)
    X, y = np.c_[np.ones(len(z)), z[:, :-1]], z[:, -1]
    d, sigma, rho, delta = X.shape[1], math.sqrt(3) / mu, 0.05, DELTA
    size = float(d)  # ||x||^2 <= d
    XX, Xy = X.T @ X, X.T @ y
    least = np.linalg.eigvalsh(XX)[0]
    out = []
    for _ in range(count):
        known = max(least + sigma * size * generator.normal() - sigma * size * math.sqrt(math.log(6 / delta)), 0.0)
        ridge = max(0.0, sigma * size * math.sqrt(d * math.log(2 * d * d / rho)) - known)
        E = np.triu(generator.normal(size=(d, d)))
        E = E + np.triu(E, 1).T
        top = Xy + sigma * math.sqrt(size) * generator.normal(size=d)
        out.append(np.linalg.solve(XX + sigma * size * E + ridge * np.eye(d), top))
    return np.array(out)


# -- tests -----------------------------------------------------------------------------------------


@dataclass
class Rejected:
    size: tuple[int, int]
    exact_size: float
    power: float
    exact: float
    rows: int


def ttests(world: World, count: int, null: int, seed: int) -> Rejected:
    asked, _ = world.asked(f"CREATE VIEW tt AS SELECT dp_ttest(v{len(world.names) - 1}, half) FROM t")
    test: Comparison = asked.formulas["p_value", 0]
    low, high = world.bounds[-1]
    centred = np.clip(world.data[:, -1], low, high) - (low + high) / 2

    def p_values(sums: Floats, seed: int) -> Floats:
        """Of counts, sums and squares (count x 2 x 3)."""
        exact = np.zeros((len(sums), len(asked.core.outputs)))
        for group, leaves in enumerate(test.groups):
            for part, leaf in enumerate(leaves):
                assert isinstance(leaf, Leaf)
                exact[:, leaf.index] = sums[:, group, part]
        return np.asarray(asked.evaluated(test, exact + asked.values(len(exact), seed)).value)

    generator = np.random.default_rng(seed)
    values, often = np.unique(centred, return_counts=True)
    fall = generator.multivariate_hypergeometric(often, int((world.half == 0).sum()), size=null)
    powers = np.stack([values**0, values, values**2], axis=1)
    permuted = np.stack([fall @ powers, (often - fall) @ powers], axis=1)
    known, size = _size(p_values(permuted, seed))
    t = stats.ttest_ind(centred[world.half == 0], centred[world.half == 1], equal_var=False).statistic
    rows = int(np.clip(world.n * (2.8 / max(abs(t), 1e-9)) ** 2, min(200, world.n), world.n))
    picked = [generator.integers(0, world.n, rows) for _ in range(count)]
    beside = np.stack([world.half == 0, world.half == 1], axis=1).astype(float)
    columns = np.stack([centred**0, centred, centred**2], axis=1)
    resampled = np.array([beside[at].T @ columns[at] for at in picked])
    return Rejected(
        (size, known), float(np.mean(_welch(permuted) < 0.05)),
        float(np.mean(p_values(resampled, seed + 1) < 0.05)), float(np.mean(_welch(resampled) < 0.05)), rows,
    )  # fmt: skip


def _size(p: Floats) -> tuple[int, int]:
    """How many p-values there are, and how many below 5 %."""
    return int(np.isfinite(p).sum()), int((p < 0.05).sum())


@np.errstate(all="ignore")
def _welch(sums: Floats) -> Floats:
    """Welch's test of exact counts, sums and squares (count x 2 x 3)."""
    n, S, Q = np.moveaxis(sums, 2, 0)
    of_mean = (Q - S**2 / n) / (n - 1) / n
    t = np.diff(S / n, axis=1)[:, 0] / np.sqrt(of_mean.sum(axis=1))
    return np.asarray(2 * stats.t.sf(np.abs(t), of_mean.sum(axis=1) ** 2 / (of_mean**2 / (n - 1)).sum(axis=1)))


def chisqs(world: World, count: int, null: int, seed: int) -> Rejected:
    asked, _ = world.asked("CREATE VIEW ch AS SELECT dp_chisq(first, last) FROM t")
    test: Independence = asked.formulas["p_value", 0]
    a, b = world.thirds[0], world.thirds[-1]
    shape = (test.rows, len(test.counts) // test.rows)

    def table(a: Floats, b: Floats) -> Floats:
        return np.bincount(a * shape[1] + b, minlength=shape[0] * shape[1]).reshape(shape)

    def p_values(tables: Floats, seed: int) -> Floats:
        exact = np.zeros((len(tables), len(asked.core.outputs)))
        for number, leaf in enumerate(test.counts):
            assert isinstance(leaf, Leaf)
            exact[:, leaf.index] = tables.reshape(len(tables), -1)[:, number]
        return np.asarray(asked.evaluated(test, exact + asked.values(len(tables), seed)).value)

    generator = np.random.default_rng(seed)
    margins = [np.bincount(each).astype(int) for each in (a, b)]
    permuted = stats.random_table(*margins).rvs(null, random_state=generator)
    known, size = _size(p_values(permuted, seed))
    whole = stats.chi2_contingency(table(a, b), correction=False).statistic
    degrees = (shape[0] - 1) * (shape[1] - 1)
    wanted = {1: 7.85, 2: 9.63, 4: 11.94}.get(degrees, 12.0)  # noncentrality of a power of 0.8
    rows = int(np.clip(world.n * wanted / max(whole, 1e-9), min(200, world.n), world.n))
    chosen = np.array([table(a[at], b[at]) for at in (generator.integers(0, world.n, rows) for _ in range(count))])
    return Rejected(
        (size, known), float(np.mean(_pearson(permuted) < 0.05)),
        float(np.mean(p_values(chosen, seed + 1) < 0.05)), float(np.mean(_pearson(chosen) < 0.05)), rows,
    )  # fmt: skip


@np.errstate(all="ignore")
def _pearson(tables: Floats) -> Floats:
    """Pearson's test of exact tables (count x r x c), without what is empty."""
    across, down = tables.sum(axis=2), tables.sum(axis=1)
    expected = across[:, :, None] * down[:, None, :] / tables.sum(axis=(1, 2))[:, None, None]
    chisq = np.where(expected > 0, (tables - expected) ** 2 / expected, 0.0).sum(axis=(1, 2))
    degrees = ((across > 0).sum(axis=1) - 1) * ((down > 0).sum(axis=1) - 1)
    return np.where(degrees > 0, stats.chi2.sf(chisq, degrees), 1.0)


# -- the figures -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--releases", type=int, default=400)
    parser.add_argument("--null", type=int, default=4000, help="releases under the null hypothesis")
    parser.add_argument("--only", default="", help="data sets, or 'data set, outcome', that begin so")
    options = parser.parse_args()
    count, null = options.releases, options.null
    start = time.process_time()
    print("| data, outcome | rows | epsilon | covered | without ends | AdaSSP's error / ours | t: size, power (exact's)"
          " | chi-square: size, power (exact's) |\n|---|---:|---:|---:|---:|---:|---:|---:|")  # fmt: skip
    fits: list[Regressed] = []
    tests: dict[str, list[Rejected]] = {"t": [], "chi-square": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, frame in frames(options.only):
            for outcome, columns in OUTCOMES[name].items():
                if not f"{name}, {outcome}".startswith(options.only):
                    continue
                world = World(name, frame, outcome, columns, Path(folder))
                seed = len(fits) * 10 + 1
                fit = regressed(world, count, seed)
                t, chi = ttests(world, count, null, seed), chisqs(world, count, null, seed)
                fits.append(fit)
                tests["t"].append(t)
                tests["chi-square"].append(chi)
                world.con.close()
                said = " | ".join(
                    f"{_percent(*r.size)} ({100 * r.exact_size:.1f}), {r.power:.2f} ({r.exact:.2f}, {r.rows:,} rows)"
                    for r in (t, chi)
                )
                cells = [
                    f"{name}, {outcome}",
                    f"{world.n:,}",
                    f"{world.epsilon:.3g}",
                    _percent(fit.covered, fit.bounded),
                ]
                cells += [_percent(fit.intervals - fit.bounded, fit.intervals), f"{np.median(fit.beside):.2f}", said]
                print(f"| {' | '.join(cells)} |", flush=True)
    covered, bounded = (sum(getattr(fit, part) for fit in fits) for part in ("covered", "bounded"))
    intervals = sum(fit.intervals for fit in fits)
    without = _percent(intervals - bounded, intervals)
    print(f"\ncoefficients: {_percent(covered, bounded)} of {bounded:,} intervals cover; {without} have no ends")
    beside = np.concatenate([fit.beside for fit in fits])
    print(f"AdaSSP's root mean square error over ours: median {np.median(beside):.2f}, "
          f"from {beside.min():.2f} to {beside.max():.2f}; below 1 in {np.mean(beside < 1):.0%}")  # fmt: skip
    for name, held in tests.items():
        a, b = sum(r.size[0] for r in held), sum(r.size[1] for r in held)
        each = [100 * r.size[0] / r.size[1] for r in held if r.size[1]]
        ours, exact = (np.mean([getattr(r, part) for r in held]) for part in ("power", "exact"))
        print(f"{name}: size {_percent(a, b)}, from {min(each):.1f} to {max(each):.1f} %; "
              f"mean power {ours:.2f} beside {exact:.2f} of the exact test")  # fmt: skip
    print(f"{time.process_time() - start:.0f} CPU seconds")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


if __name__ == "__main__":
    main()
