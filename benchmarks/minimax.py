"""Does the worst error of a local release fall as Theorem 1 of Wang, Ying and Zhang 2015 says?

    python benchmarks/minimax.py [--quick] [--picture docs/images/minimax.png]

The distortion is the mean squared error of an estimate of q(x) = sum_i phi_i(x_i) / sum_i c_i, a statistical query. For
each size n of the table, domain 2^l and epsilon, rows are randomised many times by the library's own sampler, and
every query is estimated by the unbiased estimator (12) and by the proper one (14). The worst of all queries and
databases is shown beside the upper bound, which holds at every n, and the leading term of the lower bound, which is
asymptotic: drawn as such, a certificate at no n.

Queries: single combinations, halves, quarters and three quarters of the domain, alike for all rows, and with the
complement for every other row (functions that differ by row, as in the proof of the lower bound). Databases: all rows
equal, and every other row another, which hold the worst since the error is linear in the distribution of the rows.
``slope`` is that of a line through the logarithms; -1 is the theorem's.

The last table is the time to release ten million rows (10^6 with --quick): wall clock and the process's own, since
other work on the machine moves the first. The bytes are from the system's entropy there, seeded elsewhere.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from report import Report

import dpsql
from dpsql.extensions.local.device import distortion_lower_bound, distortion_upper_bound
from dpsql.privacy.response import Response, offsets_from

SIZES = (1_000, 10_000, 100_000, 1_000_000)
RELEASES = (8_000, 4_000, 800, 200)
BITS = (1, 3, 6)
EPSILONS = (0.5, 1.0, 2.0)
SEED = 20_151_118
CHUNK = 4_000_000


class _Bytes:
    def __init__(self, seed: int) -> None:
        self.generator = np.random.Generator(np.random.Philox(seed))

    def __call__(self, size: int, /) -> bytes:
        return self.generator.bytes(size)


def lies(response: Response, n: int, releases: int, source: _Bytes) -> np.ndarray:
    """How often every offset was drawn for even and for odd rows, (releases, 2, k)."""
    k = response.domain_size
    together = max(1, CHUNK // n)
    found = []
    for start in range(0, releases, together):
        count = min(together, releases - start)
        drawn = offsets_from(response, count * n, source).reshape(count, n)
        place = (np.arange(count)[:, None] * 2 + (np.arange(n) % 2)[None, :]) * k
        found.append(np.bincount((drawn + place).ravel(), minlength=count * 2 * k).reshape(count, 2, k))
    return np.concatenate(found)


def queries(k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The functions of even and of odd rows, as indicators over the domain."""
    every = np.arange(k)
    halves = [every < 1, every % 2 == 0, every < k // 4, every < 3 * k // 4, every == k - 1]
    alike = [(h, h) for h in halves if 0 < h.sum() < k]
    return alike + [(h, ~h) for h, _ in alike]


def worst(response: Response, n: int, releases: int, source: _Bytes) -> tuple[float, float]:
    """The largest mean squared errors of the unbiased and of the proper estimator."""
    k, a = response.domain_size, float(response.contrast)
    drawn = lies(response, n, releases, source).astype(float)
    rows = np.array([(n + 1) // 2, n // 2])
    found = []
    for values in ((0, 0), (0, k - 1), (0, k // 2)):
        released = np.stack([np.roll(drawn[:, c], values[c], axis=1) for c in (0, 1)], axis=1)
        for even, odd in queries(k):
            phi = np.stack([even, odd]).astype(float)
            mean = phi.mean(axis=1)
            truth = sum(rows[c] * phi[c, values[c]] for c in (0, 1))
            counted = np.einsum("rck,ck->r", released, phi)
            unbiased = (rows * mean).sum() + (counted - (rows * mean).sum()) / a
            proper = np.clip(np.floor(unbiased + 0.5), 0, n)
            found.append([np.mean((unbiased - truth) ** 2), np.mean((proper - truth) ** 2)])
    unbiased_worst, proper_worst = np.max(found, axis=0) / n**2
    return float(unbiased_worst), float(proper_worst)


def slope(sizes: tuple[int, ...], values: list[float]) -> float:
    """Of the line through the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def distortions(report: Report, sizes: tuple[int, ...], times: tuple[int, ...]) -> list[dict[str, Any]]:
    """One series for each domain and epsilon."""
    found, rows = [], []
    for bits in BITS:
        for epsilon in EPSILONS:
            response = Response.of(2**bits, epsilon)
            source = _Bytes(SEED + 100 * bits + int(10 * epsilon))
            both = [worst(response, n, releases, source) for n, releases in zip(sizes, times, strict=True)]
            upper = [distortion_upper_bound(response, n) for n in sizes]
            lower = [distortion_lower_bound(2**bits, epsilon, n) for n in sizes]
            unbiased, proper = [u for u, _ in both], [p for _, p in both]
            found.append({"bits": bits, "epsilon": epsilon, "proper": proper, "upper": upper, "lower": lower})
            falls = slope(sizes, unbiased), slope(sizes, proper)
            under = max(p / u for p, u in zip(proper, upper, strict=True))
            rows.append(
                [
                    *(2**bits, epsilon, unbiased[0], unbiased[-1], falls[0], proper[0], proper[-1], falls[1], under),
                    proper[-1] / lower[-1],
                ]
            )
            report.trend(
                f"k = {2**bits}, epsilon {epsilon}: the unbiased estimator's slope is -1 within 5 %",
                abs(falls[0] + 1) <= 0.05,
                f"{falls[0]:.3f}",
            )
            report.trend(
                f"k = {2**bits}, epsilon {epsilon}: the proper one is always under the upper bound",
                under <= 1,
                f"{under:.3f}",
            )
    head = ["k", "epsilon", "unbiased, least n", "unbiased, largest n", "slope"]
    head += ["proper, least n", "proper, largest n", "slope", "largest part of upper bound", "times lower bound"]
    report.table(f"Worst distortion, n from {sizes[0]:,} to {sizes[-1]:,}", head, rows)
    return found


def release_time(report: Report, n: int) -> None:
    """The time to release n rows of four columns, and of thirty questions to them."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with duckdb.connect(str(place / "t.duckdb")) as connection:
            connection.execute(
                "CREATE TABLE visits AS SELECT ['NY', 'NJ', 'CA', 'WA'][CAST(1 + hash(i) % 4 AS BIGINT)] AS state, "
                "CAST(hash(i, 1) % 121 AS INTEGER) AS age, CAST(hash(i, 2) % 6 AS INTEGER) AS visits, "
                f"hash(i, 3) % 3 = 0 AS smoker FROM range({n}) t(i)"
            )
        (place / "t.toml").write_text(
            'dataset = "visits-1"\n[budget]\nepsilon = 1\nlocal_epsilon = 9\n[tables.visits]\nunit = "row"\n'
            'rows_public = true\n[tables.visits.columns]\nstate = { values = ["NY", "NJ", "CA", "WA"], other = true }\n'
            "age = { lower = 0, upper = 120 }\nvisits = { lower = 0, upper = 5 }\nsmoker = { nulls = false }\n"
        )
        con = dpsql.connect(place / "t.duckdb", policy=place / "t.toml")
        wall, own = time.perf_counter(), time.process_time()
        syn = con.synthesize("visits", ["state", "age", "visits", "smoker"], 3)
        wall, own = time.perf_counter() - wall, time.process_time() - own
        first = time.perf_counter()
        syn.sql("SELECT state, COUNT(*), AVG(visits) FROM visits GROUP BY state")
        first = time.perf_counter() - first
        more = time.perf_counter()
        for age in range(0, 120, 4):
            syn.sql(f"SELECT COUNT(*), SUM(visits) FROM visits WHERE age < {age} AND smoker")
        more = (time.perf_counter() - more) / 30
        size = (place / "t.ledger").stat().st_size / 1e6
        report.table(
            f"Release of {n:,} rows, k = {syn.combinations:,}",
            ["release, s", "of it the process's own, s", "first question, s", "each of 30 more, s", "ledger, MB"],
            [[wall, own, first, more, size]],
        )
        if n == 10_000_000:
            report.trend(
                "10M rows are released in at most 10 s", wall <= 10, f"{wall:.1f} s, {own:.1f} s of it our own"
            )


def picture(series: list[dict[str, Any]], sizes: tuple[int, ...], path: Path) -> None:
    """Distortion against n on log axes, a panel for each domain."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = dict(zip(EPSILONS, ("#1b6ca8", "#c8553d", "#3c7a3f"), strict=True))
    figure, axes = plt.subplots(1, len(BITS), figsize=(11, 4.2), sharey=True, layout="constrained")
    for axis, bits in zip(axes, BITS, strict=True):
        for found in (one for one in series if one["bits"] == bits):
            colour = colours[found["epsilon"]]
            axis.loglog(sizes, found["proper"], "o", color=colour, markersize=5)
            axis.loglog(sizes, found["upper"], "-", color=colour, linewidth=1.2)
            axis.loglog(sizes, found["lower"], ":", color=colour, linewidth=1.2)
        axis.set_title(f"{2**bits} combinations (l = {bits})", fontsize=10)
        axis.set_xlabel("rows n")
        axis.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("worst mean squared error of q(x)")
    handles = [
        plt.Line2D([], [], color=c, marker="s", linestyle="", label=f"epsilon {e:g}") for e, c in colours.items()
    ]
    handles += [
        plt.Line2D([], [], color="#444444", marker="o", linestyle="", label="measured, proper estimator"),
        plt.Line2D([], [], color="#444444", linestyle="-", label="upper bound, every n"),
        plt.Line2D([], [], color="#444444", linestyle=":", label="lower bound, asymptotic only"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="smaller tables and fewer releases")
    options.add_argument("--picture", metavar="FILE", type=Path, help="draw the distortions")
    given = options.parse_args()
    report = Report()
    report.heading("Local release: worst distortion and time")
    sizes = SIZES[:3] if given.quick else SIZES
    times = tuple(t // 4 for t in RELEASES[:3]) if given.quick else RELEASES
    release_time(report, 1_000_000 if given.quick else 10_000_000)
    series = distortions(report, sizes, times)
    if given.picture is not None:
        picture(series, sizes, given.picture)
    report.summary()


if __name__ == "__main__":
    main()
