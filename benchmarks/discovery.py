"""Values kept by private discovery, beside other mechanisms at the same (epsilon, delta), and its time at scale.

    python benchmarks/discovery.py             # keys kept, on generated data; --plot kept.svg draws them
    python benchmarks/discovery.py --scale 10  # 10 million rows, 1 million values, through DuckDB

The data are generated: 100,000 users; how many items one has, and which, are Zipf's. Beside the two mechanisms of
``dpsql.privacy.threshold`` stand, by their published formulas, written here: Laplace thresholding (the plain way),
and DP-SIPS (Swanberg, Desfontaines and Haney 2023, arXiv 2301.01998): three rounds of Gaussian thresholding of
weighted counts, each over the items that no round before has found. What Google's and PipelineDP's libraries choose
for a user in one group is the optimal selection by the same formula (Desfontaines et al. 2022). Numbers of keys are
expected ones, summed over the exact chance of each count, but for rounds, which are simulated: DP-SIPS, all of whose
budget finds keys, and "weighted", the two rounds of ``TwoRounds``, which keep an eighth of mu squared for counts.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
from scipy.special import ndtri

import dpsql
from dpsql.errors import DataError
from dpsql.privacy.calibrate import gaussian_mu
from dpsql.privacy.optimal_selection import OptimalSelection
from dpsql.privacy.threshold import WEIGHT, GaussianThreshold, Threshold, TwoRounds

USERS, ITEMS = 100_000, 200_000


def generated(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pairs of a user and an item, in an order that is random within a user."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.zipf(1.8, USERS), 200)
    users = np.repeat(np.arange(USERS), sizes)
    items = np.minimum(rng.zipf(1.25, users.size), ITEMS) - 1
    pairs = np.unique(users * ITEMS + items)
    rng.shuffle(pairs)
    pairs = pairs[np.argsort(pairs // ITEMS, kind="stable")]
    return pairs // ITEMS, pairs % ITEMS


def within(users: np.ndarray, items: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``groups`` items of each user."""
    first = np.concatenate([[True], users[1:] != users[:-1]])
    place = np.arange(users.size) - np.maximum.accumulate(np.where(first, np.arange(users.size), 0))
    kept = place < groups
    return users[kept], items[kept]


def expected(law: Threshold, counts: np.ndarray) -> float:
    """The expected number of values that are shown."""
    numbers, sizes = np.unique(counts[counts > 0], return_counts=True)
    return float(sizes @ np.exp(law.log_tail(float(law.least) - numbers)))


def gaussian(
    groups: int, epsilon: float, delta: float, law: type[GaussianThreshold] = GaussianThreshold
) -> GaussianThreshold:
    """As ``dpsql.privacy.finding`` chooses it."""
    made = []
    for part in range(1, 32):
        fails = delta * part / 32
        mu = Fraction(gaussian_mu(epsilon, delta - fails))
        made.append(law(groups, mu**2, Fraction(fails)))
    return min(made, key=lambda law: law.rounds[1].least / WEIGHT if isinstance(law, TwoRounds) else law.half)


def laplace_kept(groups: int, epsilon: float, delta: float, counts: np.ndarray) -> float:
    """Laplace noise of scale k/epsilon, threshold 1 + k/epsilon ln(k/(2 delta))."""
    scale = groups / epsilon
    threshold = 1 + scale * math.log(groups / (2 * delta))
    gap = threshold - counts[counts > 0]
    far = np.exp(-np.abs(gap) / scale) / 2
    return float(np.where(gap > 0, far, 1 - far).sum())


def sips_kept(users: np.ndarray, items: np.ndarray, groups: int, epsilon: float, delta: float, seed: int) -> int:
    """DP-SIPS with three rounds, shares of mu squared in the ratio 1, 3 and 9 as its authors advise."""
    rng, found, fails = np.random.default_rng(seed), np.zeros(ITEMS, dtype=bool), delta / 2
    mu = gaussian_mu(epsilon, delta - fails)
    for share in (1 / 13, 3 / 13, 9 / 13):
        sigma = 1 / (mu * math.sqrt(share))
        left = ~found[items]
        mine, what = within(users[left], items[left], groups)
        sizes = np.bincount(mine, minlength=USERS)
        weights = np.bincount(what, weights=1 / np.sqrt(sizes[mine]), minlength=ITEMS)
        ks = np.arange(1, groups + 1)
        tails = -np.expm1(np.log1p(-fails * share) / ks)
        threshold = float(np.max(1 / np.sqrt(ks) - sigma * ndtri(tails)))
        seen = np.unique(what)
        found[seen[weights[seen] + rng.normal(0, sigma, seen.size) >= threshold]] = True
    return int(found.sum())


def weighted_kept(users: np.ndarray, items: np.ndarray, law: GaussianThreshold) -> int:
    """The two rounds of ``TwoRounds``, its weights, noise and thresholds."""
    assert isinstance(law, TwoRounds)
    found = np.zeros(ITEMS, dtype=bool)
    for step in law.rounds:
        left = ~found[items]
        sizes = np.bincount(users[left], minlength=USERS)
        mine, what = within(users[left], items[left], law.groups)
        most, weights = (np.array(column) for column in zip(*step.alone, strict=True))
        weight = weights[np.searchsorted(most, np.minimum(sizes[mine], law.groups))]
        sums = np.bincount(what, weights=weight, minlength=ITEMS).astype(np.int64)
        seen = np.unique(what)
        found[seen[sums[seen] + step.sample(seen.size) >= step.least]] = True
    return int(found.sum())


Row = tuple[float, ...]
HEADS = ("epsilon", "delta", "groups", "Laplace", "selection", "Gaussian", "chosen", "weighted", "DP-SIPS")


def keys_kept() -> list[Row]:
    """Prints a line for each budget and number of groups, and returns them."""
    found: list[Row] = []
    users, items = generated()
    every = np.bincount(items, minlength=ITEMS)
    common = int(np.sum(every >= 50))
    print(f"{USERS:,} users, {users.size:,} pairs, {np.count_nonzero(every):,} items, {common:,} of 50 users or more")
    print(("{:>10}" * len(HEADS)).format(*HEADS))
    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-9), (1.0, 1e-5), (3.0, 1e-5)):
        for groups in (1, 4, 16, 64):
            _, kept = within(users, items, groups)
            counts = np.bincount(kept, minlength=ITEMS)
            plain = laplace_kept(groups, epsilon, delta, counts)
            try:
                best = expected(OptimalSelection(groups, Fraction(str(epsilon)), Fraction(str(delta))), counts)
            except DataError:
                best = math.nan
            normal = expected(gaussian(groups, epsilon, delta), counts)
            sips = np.mean([sips_kept(users, items, groups, epsilon, delta, seed) for seed in range(3)])
            rounds = gaussian(groups, epsilon, delta, TwoRounds)
            own = np.mean([weighted_kept(users, items, rounds) for _ in range(3)])
            row = (epsilon, delta, groups, plain, best, normal, np.nanmax([best, normal]), own, sips)
            print(("{:>10g}" * 3 + "{:>10.1f}" * 6).format(*row), flush=True)
            found.append(row)
    return found


def plot(rows: list[Row], place: Path) -> None:
    """Values kept by the number of groups, a picture for each budget."""
    from matplotlib.figure import Figure

    budgets = list(dict.fromkeys(row[:2] for row in rows))
    figure = Figure(figsize=(3.2 * len(budgets), 3.2), layout="constrained")
    for axes, (epsilon, delta) in zip(figure.subplots(1, len(budgets), squeeze=False)[0], budgets, strict=True):
        mine = [row for row in rows if row[:2] == (epsilon, delta)]
        for at, name in enumerate(HEADS):
            if name in ("Laplace", "chosen", "weighted", "DP-SIPS"):
                axes.plot([row[2] for row in mine], [row[at] for row in mine], marker="o", label=name)
        axes.set(title=f"epsilon {epsilon:g}, delta {delta:g}", xlabel="groups of a user", xscale="log", ylim=(0, None))
    figure.axes[0].set_ylabel("values kept")
    figure.axes[0].legend()
    figure.savefig(place)


def scale(millions: float) -> None:
    """Rows and a tenth as many values, counted, decided and shown."""
    rows, values = int(millions * 1e6), int(millions * 1e5)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with duckdb.connect(str(place / "hits.duckdb")) as con:
            con.execute(
                "CREATE TABLE hits AS SELECT 'phrase ' || ((hash(i) % 4294967296 / 4294967296.0) ** 3 "
                f"* {values})::BIGINT AS phrase FROM range({rows}) t(i)"
            )
            (distinct,) = con.execute("SELECT COUNT(DISTINCT phrase) FROM hits").fetchone() or (0,)
        policy = (
            'dataset = "hits-1"\n[budget]\nepsilon = 1.0\ndelta = 1e-6\n'
            '[tables.hits]\nunit = "row"\n[tables.hits.columns]\nphrase = {}\n'
        )
        (place / "hits.toml").write_text(policy, encoding="utf-8")
        con = dpsql.connect(place / "hits.duckdb", policy=place / "hits.toml", memory_limit="3GB")
        start, work = time.perf_counter(), time.process_time()
        found = con.discover("hits.phrase", epsilon=0.5, delta=1e-9)
        taken, work = time.perf_counter() - start, time.process_time() - work
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{rows:,} rows, {distinct:,} values: {len(found.values):,} shown in {taken:.1f} s, "
        f"{work:.1f} s of a core, at most {most:.2f} GiB of memory in all"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--scale", type=float, metavar="MILLIONS", help="measure the time over so many million rows")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw the keys kept, too, such as kept.svg")
    given = options.parse_args()
    if given.scale is None:
        rows = keys_kept()
        if given.plot is not None:
            plot(rows, given.plot)
    else:
        scale(given.scale)


if __name__ == "__main__":
    main()
