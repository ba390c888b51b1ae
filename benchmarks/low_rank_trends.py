"""The experiments of Yuan et al. 2012 (section 6): error against gamma, r, n, m and s on its three families.

Run by ``paper_tables.py``. The numbers of the figures are not in the paper's text and its data sets are not
here: the trends that the text states are checked instead (its Table 1 goes to n = 8192, as here, and to m = 1024;
which parameters were its defaults is lost). Errors are mean squared errors a query times epsilon^2 / 2, one draw
of each family (seed 0); they do not depend on data, but for the bias that gamma > 0 or too small an r leaves. That is
measured on a stand-in for the paper's counts: 5000 / k for k = 1, 2, ..., shuffled, at its epsilon = 0.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from report import Report
from scipy import linalg, sparse

from dpsql import bounds, strategy, workload
from dpsql.extensions.papers.decomposition import decompose
from dpsql.extensions.papers.haar import matrix as haar_matrix
from dpsql.strategies.pure.hierarchical import levels, rows_of
from dpsql.workload import Workload

_ROUNDS = 100
_EPSILON = 0.1
_SHARE = 0.1  # s / min(m, n) of WRelated where s is not varied


def related(m: int, n: int, s: int | None = None) -> Workload:
    return workload.wrelated(m, n, s or max(1, round(_SHARE * min(m, n))), 0)


FAMILIES: dict[str, Callable[[int, int], Workload]] = {
    "WDiscrete": lambda m, n: workload.wdiscrete(m, n, 0),
    "WRange": lambda m, n: workload.wrange(m, n, 0),
    "WRelated": related,
}
COLUMNS = {
    "LM": "noise on data (LM)",
    "WM": "wavelet (WM)",
    "HM": "hierarchy (HM)",
    "LRM": "low-rank, Alg. 1 (LRM)",
    "dpsql": "dpsql",
    "bound": "SVD bound",
}


def run(out: Report, full: bool) -> None:
    """All sweeps; ``full`` with 64 queries and up to 8192 cells."""
    out.heading("Yuan et al. 2012: the low-rank mechanism")
    example(out)
    m, n = (64, 128) if full else (32, 64)
    gamma(out, m, n)
    rank(out, m, n)
    domain(out, m, tuple(64 * 2**k for k in range(8)) if full else (32, 64, 128, 256))
    queries(out, 256 if full else 64)
    base(out, m, 4 * m)


def example(out: Report) -> None:
    """Section 1: noise on data 40, the paper's strategy 39."""
    W = workload.from_matrix([[0, 2, 1, 1], [0, 1, 0, 2], [1, 0, 2, 2]])
    # x_NJ, x_WA, x_NY / 3 + x_CA and 2 x_NY / 3, over the cells NY, NJ, CA, WA.
    A = np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1 / 3, 0, 1, 0], [2 / 3, 0, 0, 0]])
    own = float(np.abs(A).sum(axis=0).max() ** 2 * np.sum((W.matrix() @ np.linalg.inv(A)) ** 2))
    best = strategy.select(W, "laplace")
    rows = [
        ["noise on data", out.beside("section 1", "40", 2 * strategy.select(W, "laplace", "identity").expected)],
        ['its "optimal strategy"', out.beside("section 1", "39", 2 * own)],
        [f"dpsql ({best.method})", f"/ {2 * best.expected:.4g}"],
    ]
    out.table("Section 1: sum of squared errors times epsilon^2", ["strategy", "paper / here"], rows)
    out.trend("its strategy of 39 is optimal", best.expected * 2 > 39 * 0.999, f"dpsql {2 * best.expected:.4g}")


def stand_in(n: int) -> Any:
    """Counts in place of the paper's data: 5000 / k, shuffled by a fixed seed."""
    return np.random.default_rng(0).permutation(np.round(5000.0 / np.arange(1, n + 1)))


def low_rank(W: Workload, gamma: float = 1e-2, r: int | None = None) -> tuple[float, float, float, float]:
    """(noise a query times epsilon^2 / 2, total at epsilon 0.1 on the stand-in, ||W - BL||, CPU seconds)."""
    M = W.matrix()
    start = time.process_time()
    found = decompose(M, rank=r, gamma=gamma, rounds=_ROUNDS)
    seconds = time.process_time() - start
    noise = float((found.left**2).sum()) / M.shape[0]
    bias = float(np.mean(((M - found.left @ found.right) @ stand_in(M.shape[1])) ** 2))
    return noise, 2 * noise / _EPSILON**2 + bias, found.residual, seconds


def of_rows(A: Any, M: Any) -> float:
    """Error a query of a strategy of full column rank under Laplace noise."""
    rows = sparse.csr_array(A)
    root = linalg.cholesky((rows.T @ rows).toarray(), lower=True, overwrite_a=True, check_finite=False)
    half = linalg.solve_triangular(root, M.T, lower=True, check_finite=False)
    return float(abs(rows).sum(axis=0).max() ** 2 * np.mean(np.sum(half**2, axis=0)))


def errors(W: Workload) -> dict[str, float]:
    """Mean squared error a query times epsilon^2 / 2 of every mechanism that the size allows."""
    M = np.asarray(W.matrix(), dtype=np.float64)
    m, n = M.shape
    tree = levels(n)
    return {
        "LM": float(np.mean(np.sum(M**2, axis=1))),
        "WM": of_rows(haar_matrix(n)[0], M),
        "HM": of_rows(rows_of(tree, [1.0] * len(tree), "laplace"), M),
        "LRM": low_rank(W)[0],
        "dpsql": strategy.select(W, "laplace").expected / m,
        "bound": bounds.svd_bound(W) / m,
    }


def cells(found: dict[str, float]) -> list[Any]:
    return [found[key] for key in COLUMNS]


def others(found: dict[str, float]) -> list[float]:
    return [found[k] for k in ("LM", "WM", "HM")]


def spread(values: Iterable[float]) -> float:
    all_of = list(values)
    return max(all_of) / min(all_of)


def gamma(out: Report, m: int, n: int) -> None:
    """Figure 2: the relaxation."""
    values = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    rows, flat, total, faster = [], [], [], []
    for name, make in FAMILIES.items():
        W = make(m, n)
        found = {g: low_rank(W, gamma=g) for g in values}
        rows += [[name, f"{g:g}", *(float(v) for v in found[g][:3]), f"{found[g][3]:.2f}"] for g in values]
        flat.append(f"{name} {spread(f[0] for f in found.values()):.2f}")
        total.append(f"{name} {spread(found[g][1] for g in values if g <= 0.1):.2f}, "
                     f"{spread(f[1] for f in found.values()):.3g} to gamma = 10")  # fmt: skip
        faster.append(f"{name} {found[1e-4][3] / max(found[10.0][3], 1e-3):.1f}")
    head = ["family", "gamma", "noise part", "total on the stand-in", "residual", "CPU s"]
    out.table(f"Figure 2: gamma (m = {m}, n = {n}; rounds capped at {_ROUNDS})", head, rows)
    out.trend(
        "errors are not sensitive to gamma from 1e-4 to 10: the noise part (20 %)",
        all(float(t.split()[1]) < 1.2 for t in flat),
        "largest / least: " + "; ".join(flat),
    )
    out.trend(
        "errors are not sensitive to gamma from 1e-4 to 10: noise and bias (20 %)",
        all(float(t.split()[-5]) < 1.2 for t in total),
        "largest / least to gamma = 0.1: " + "; ".join(total),
    )
    out.trend(
        "larger gamma is much faster (gamma = 10 against 1e-4, twice)",
        all(float(t.split()[1]) > 2 for t in faster),
        "times: " + "; ".join(faster),
    )


def rank(out: Report, m: int, n: int) -> None:
    """Figure 3: the number r of intermediate queries."""
    values = (0.8, 1.0, 1.2, 1.4, 1.7, 2.1, 2.5, 3.0, 3.6)
    rows, worse, stable, slower = [], [], [], []
    for name, make in FAMILIES.items():
        W = make(m, n)
        found = {r: low_rank(W, r=max(1, int(r * W.rank))) for r in values}
        rows += [[name, r, *(float(v) for v in found[r][:3]), f"{found[r][3]:.2f}"] for r in values]
        worse.append(f"{name} {found[0.8][1] / found[1.2][1]:.3g}")
        stable.append(f"{name} {spread(found[r][1] for r in values if r >= 1.2):.3f}")
        slower.append(f"{name} {found[2.1][3] / found[1.0][3]:.2g}, {found[3.6][3] / found[2.1][3]:.2g}")
    head = ["family", "r / rank", "noise part", "total on the stand-in", "residual", "CPU s"]
    out.table(f"Figure 3: r (m = {m}, n = {n}, gamma = 0.01)", head, rows)
    out.trend(
        "below the rank the error is far worse, by up to two orders of magnitude (ten times at 0.8 of the rank)",
        all(float(t.split()[1]) > 10 for t in worse),
        "times that of 1.2: " + "; ".join(worse),
    )
    out.trend(
        "the error is stable from 1.2 times the rank on (10 %)",
        all(float(t.split()[1]) < 1.1 for t in stable),
        "largest / least: " + "; ".join(stable),
    )
    out.trend(
        "time grows exponentially with r (from 2.1 to 3.6 by more than from 1.0 to 2.1)",
        all(float(t.split()[2]) > float(t.split()[1].strip(",")) for t in slower),
        "times: " + "; ".join(slower),
    )


def domain(out: Report, m: int, sizes: tuple[int, ...]) -> None:
    """Figures 4, 5 and 6: the domain size, with the matrix mechanism (MM) at the smallest size above m."""
    rows = []
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name, make in FAMILIES.items():
        for n in sizes:
            found[name, n] = errors(make(m, n))
            rows.append([name, n, *cells(found[name, n])])
    note = f"WRelated with s = {round(_SHARE * m)}."
    out.table(f"Figures 4 to 6: n (m = {m})", ["family", "n", *COLUMNS.values()], rows, note)
    n = sizes[1]
    poor = []
    for name, make in FAMILIES.items():
        approx = strategy.select(make(m, n), "laplace", "smoothed").expected / m
        poor.append((name, approx / max(*others(found[name, n]), found[name, n]["LRM"]), approx))
    out.trend(
        f"the matrix mechanism by its L2 approximation (MM) is much worse than every other mechanism, n = {n}",
        all(ratio > 1 for _, ratio, _ in poor),
        "; ".join(f"{name}: {value:.4g}, {ratio:.2g} times the worst other" for name, ratio, value in poor),
    )
    small, last = sizes[0], sizes[-1]
    first = found["WDiscrete", small]
    out.trend(
        "WDiscrete: noise on data is best where the domain is small",
        first["LM"] <= min(first["LRM"], first["WM"], first["HM"]),
        f"n = {small}: LM {first['LM']:.4g}, LRM {first['LRM']:.4g}",
    )
    growth = {k: found["WDiscrete", last][k] / found["WDiscrete", sizes[-2]][k] for k in ("LM", "WM", "HM", "LRM")}
    shown = ", ".join(f"{k} {v:.2f}" for k, v in growth.items())
    out.trend(
        "WDiscrete: every mechanism but LRM grows linearly in n (1.6 or more from the last doubling)",
        min(growth[k] for k in ("LM", "WM", "HM")) > 1.6,
        shown,
    )
    out.trend(
        "WDiscrete: LRM stops growing once n is well above m (10 % in the last doubling)",
        growth["LRM"] < 1.1,
        f"{shown}; its bound {found['WDiscrete', last]['bound'] / found['WDiscrete', sizes[-2]]['bound']:.2f}",
    )
    crossing = [n for n in sizes if max(found["WRange", n][k] for k in ("WM", "HM")) < found["WRange", n]["LM"]]
    if max(sizes) >= 512:
        out.trend(
            "WRange: WM and HM are better than LM from n = 512 on, and not before",
            crossing == [n for n in sizes if n >= 512],
            f"both better at n = {crossing}",
        )
    for name in ("WRange", "WRelated"):
        lead = [min(others(found[name, n])) / found[name, n]["LRM"] for n in sizes]
        out.trend(
            f"{name}: LRM is better than LM, WM and HM at every n",
            min(lead) > 1,
            "best other / LRM: " + ", ".join(f"{v:.2f}" for v in lead),
        )
    end = found["WRelated", last]
    ratio = end["LM"] / end["LRM"]
    out.trend(
        f"WRelated: LRM leads by over two orders of magnitude at the largest n ({last}; 8192 in the paper)",
        ratio > 100,
        f"LM / LRM {ratio:.3g}, LM / bound {end['LM'] / end['bound']:.3g}",
    )


def queries(out: Report, n: int) -> None:
    """Figures 7 and 8: the number of queries, up to m = n."""
    sizes = [n // 16, n // 8, n // 4, n // 2, n]
    s = max(1, n // 32)
    rows = []
    found: dict[tuple[str, int], dict[str, float]] = {}
    for name in ("WRange", "WRelated"):
        for m in sizes:
            found[name, m] = errors(FAMILIES[name](m, n) if name == "WRange" else related(m, n, s))
            rows.append([name, m, *cells(found[name, m])])
    out.table(f"Figures 7 and 8: m (n = {n}; WRelated with s = {s})", ["family", "m", *COLUMNS.values()], rows)
    lead = [min(others(found["WRange", m])) / found["WRange", m]["LRM"] for m in sizes]
    shown = "best other / LRM: " + ", ".join(f"{v:.2f}" for v in lead)
    out.trend("WRange: LRM is best where m is much smaller than n", lead[0] > 1 and lead[1] > 1, shown)
    out.trend("WRange: LRM's lead shrinks as m grows", lead == sorted(lead, reverse=True), shown)
    last = found["WRange", n]
    out.trend(
        "WRange: the wavelet is best at m = n (1024 in the paper)",
        last["WM"] <= min(last["LRM"], last["LM"], last["HM"]),
        ", ".join(f"{k} {last[k]:.4g}" for k in ("WM", "LRM", "LM", "HM")),
    )
    lead = [min(others(found["WRelated", m])) / found["WRelated", m]["LRM"] for m in sizes]
    out.trend(
        "WRelated: LRM is dramatically better than the others for any m (ten times)",
        min(lead) > 10,
        "best other / LRM: " + ", ".join(f"{v:.2f}" for v in lead),
    )


def base(out: Report, m: int, n: int) -> None:
    """Figure 9: the number s of base queries of WRelated."""
    shares = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    found = {x: errors(related(m, n, max(1, round(x * m)))) for x in shares}
    rows = [[f"{x:g}", max(1, round(x * m)), *cells(f)] for x, f in found.items()]
    note = "Entries of C A have variance s, so every error grows with s; divided by s those of the others stay."
    out.table(f"Figure 9: s on WRelated (m = {m}, n = {n})", ["s / m", "s", *COLUMNS.values()], rows, note)
    first, last = found[0.1], found[1.0]
    low = {k: first[k] / first["LRM"] for k in ("LM", "WM", "HM")}
    out.trend(
        "LRM leads by over two orders of magnitude at low rank",
        min(low.values()) > 100,
        "; ".join(f"{k} / LRM {v:.3g}" for k, v in low.items()),
    )
    drift = max(spread(f[k] / round(x * m) for x, f in found.items()) for k in ("LM", "WM", "HM"))
    raw = max(last[k] / first[k] for k in ("LM", "WM", "HM"))
    out.trend("the errors of the others stay as s grows", raw < 1.3, f"they grow {raw:.3g} times")
    out.trend("the same, divided by s (30 %)", drift < 1.3, f"largest / least {drift:.2f}")
    grown = last["LRM"] / first["LRM"]
    out.trend("LRM's error grows rapidly with s", grown > 2 * raw, f"{grown:.3g} times, the others {raw:.3g}")
    steps = np.log([found[x]["LRM"] / round(x * m) for x in (0.1, 1.0)])
    exponent = float((steps[1] - steps[0]) / np.log(10))
    out.trend(
        "LRM's error is linear in the rank (exponent 0.8 to 1.2, divided by s)",
        0.8 < exponent < 1.2,
        f"exponent {exponent:.2f}",
    )
