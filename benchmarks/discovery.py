"""Values kept by private discovery, beside other mechanisms at the same (epsilon, delta), and its time at scale.

    python benchmarks/discovery.py             # keys kept, on generated data; --plot kept.svg draws them
    python benchmarks/discovery.py --scale 10  # 10 million rows, 1 million values, through DuckDB

The data are generated: 100,000 users; how many items one has, and which, are Zipf's. "Gaussian" is the Gaussian
threshold at epsilon and delta; "pure" the pure threshold at epsilon alone, of items that are codes of at most six
digits. Beside these two stand, by their published formulas, written here: Laplace thresholding (the plain way); the
optimal selection (Desfontaines, Voss, Gipson and Mandayam 2022), of which no (epsilon, delta)-DP choice for users in
one group shows more; and DP-SIPS (Swanberg, Desfontaines and Haney 2023, arXiv 2301.01998): three rounds of Gaussian
thresholding of weighted counts, each over the items that no round before has found, which is simulated. All other
numbers of keys are expected ones, summed over the exact chance of each count.
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
from dpsql.privacy.calibrate import gaussian_mu
from dpsql.privacy.pure_threshold import PureThreshold
from dpsql.privacy.threshold import GaussianThreshold, Threshold
from dpsql.privacy.universe import Universe

USERS, ITEMS = 100_000, 200_000
CODES = Universe(6, "0123456789")


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


def gaussian(groups: int, epsilon: float, delta: float) -> GaussianThreshold:
    """As ``dpsql.privacy.finding`` chooses it."""
    made = []
    for part in range(1, 32):
        fails = delta * part / 32
        mu = Fraction(gaussian_mu(epsilon, delta - fails))
        made.append(GaussianThreshold(groups, mu**2, Fraction(fails)))
    return min(made, key=lambda law: law.least)


def pure(groups: int, epsilon: float) -> PureThreshold:
    """The pure threshold of codes of at most six digits."""
    return PureThreshold(groups, Fraction(str(epsilon)), CODES)


def selected(groups: int, epsilon: float, delta: float, counts: np.ndarray) -> float:
    """The optimal selection: p_n = min(r p + d, 1 - (1 - p - d) / r, 1), p = p_(n-1), r = e^(epsilon/k)."""
    ratio, step, chances = math.exp(epsilon / groups), delta / groups, [0.0]
    while chances[-1] < 1:
        last = chances[-1]
        chances.append(min(ratio * last + step, 1 - (1 - last - step) / ratio, 1.0))
    return float(np.array(chances)[np.minimum(counts, len(chances) - 1)].sum())


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


Row = tuple[float, ...]
HEADS = ("epsilon", "delta", "groups", "Laplace", "selection", "Gaussian", "pure", "DP-SIPS")


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
            best = selected(groups, epsilon, delta, counts)
            normal = expected(gaussian(groups, epsilon, delta), counts)
            purely = expected(pure(groups, epsilon), counts)
            sips = float(np.mean([sips_kept(users, items, groups, epsilon, delta, seed) for seed in range(3)]))
            row = (epsilon, delta, groups, plain, best, normal, purely, sips)
            print(("{:>10g}" * 3 + "{:>10.1f}" * 5).format(*row), flush=True)
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
            if name in HEADS[3:]:
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
