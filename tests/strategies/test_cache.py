"""Strategies kept on disk: found again as they were, and never believed."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dpsql import strategy, workload
from dpsql.errors import DataError
from dpsql.strategies.cached import cache
from dpsql.strategies.core.certificate import Certificate, dual_value
from dpsql.strategy import select
from dpsql.workload import Workload
from dpsql.workloads.families.contributions import Contributions, Part, Tied

CORNERS = np.kron(np.eye(6, dtype=int), [[1, 1], [1, -1]])
WORKLOADS = {
    "ranges": workload.random_ranges(9, 30, 5),
    "product": workload.all_range((4, 5)),
    "floats": workload.from_matrix(np.random.default_rng(0).normal(size=(7, 5))),
    "blocks": Workload.from_rows(
        np.kron(np.eye(3, dtype=int), np.array([[1, 1, 1], [0, 1, 1]])), [1, 2, 1, 1, 3, 1], groups=[0, 0, 1, 1, 2, 2]
    ),
    "singles": workload.identity(40),
    "count and sum": Workload.from_rows(
        np.random.default_rng(1).integers(-3, 4, size=(5, 12)), np.ones(5), contributions=CORNERS
    ),
}


@pytest.fixture(autouse=True)
def everything_is_worth_keeping(monkeypatch):
    monkeypatch.setattr(sys.modules["dpsql.strategies.selection"], "_WORTH", 0.0)


def entry(folder):
    (path,) = folder.glob("*.npz")
    return path


def selections(monkeypatch):
    """Counts real selections."""
    made = []
    module = sys.modules["dpsql.strategies.selection"]
    best = module.best_of
    monkeypatch.setattr(module, "best_of", lambda task, method: made.append(method) or best(task, method))
    return made


def same(a, b):
    assert np.array_equal(a.matrix(), b.matrix())
    assert (a.method, a.noise, a.l1, a.l2_squared, a.considered) == (
        b.method,
        b.noise,
        b.l1,
        b.l2_squared,
        b.considered,
    )
    assert b.expected == pytest.approx(a.expected, rel=1e-9)
    assert sparse.issparse(a.mixing) == sparse.issparse(b.mixing)
    assert b.mixing.dtype == b.basis.dtype == np.int64
    if a.lower_bound is not None:
        assert b.lower_bound == pytest.approx(a.lower_bound, rel=1e-6)
        assert b.lower_bound <= a.lower_bound * (1 + 1e-9)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.few(every=2)
def test_found_again_as_it_was(name, noise, tmp_path, monkeypatch):
    made = selections(monkeypatch)
    W = WORKLOADS[name]
    first = select(W, noise, cache=tmp_path)
    second = select(W, noise, cache=tmp_path)
    assert len(made) == 1
    same(first, second)
    assert second.planned is W
    assert np.allclose(second.matrix().T @ np.asarray(second.matrix()), first.matrix().T @ first.matrix())


@pytest.mark.parametrize("method", ["haar", "hierarchical", "workload", "p-identity", "low-rank-mechanism"])
def test_a_named_method_is_kept_with_its_gap(method, tmp_path, monkeypatch):
    made = selections(monkeypatch)
    W = workload.random_ranges(9, 30, 5)
    first, second = (select(W, method=method, cache=tmp_path) for _ in range(2))
    assert made == [method]
    same(first, second)
    assert second.gap == pytest.approx(first.gap, rel=1e-4, abs=1e-6)


def test_what_the_key_depends_on():
    W = workload.random_ranges(5, 12, 0)
    base = cache.key_of(W, "gaussian", "auto", 1e-3, 1.0)
    assert cache.key_of(Workload(W.span.copy(), W.inner, name="other"), "gaussian", "auto", 1e-3, 1.0) == base
    others = [
        cache.key_of(W, "laplace", "auto", 1e-3, 1.0),
        cache.key_of(W, "gaussian", "optimal", 1e-3, 1.0),
        cache.key_of(W, "gaussian", "auto", 1e-2, 1.0),
        cache.key_of(W, "gaussian", "auto", 1e-3, 2.0),
        cache.key_of(workload.random_ranges(5, 12, 1), "gaussian", "auto", 1e-3, 1.0),
        cache.key_of(workload.weighted(W, 2.0), "gaussian", "auto", 1e-3, 1.0),
        cache.key_of(Workload(W.span, W.inner, groups=np.arange(5)), "gaussian", "auto", 1e-3, 1.0),
        cache.key_of(
            Workload(W.span, W.inner, contributions=sparse.csr_array(2 * np.eye(12, dtype=np.int64))),
            *("gaussian", "auto", 1e-3, 1.0),
        ),
        cache.key_of(workload.kron(workload.prefix(3), workload.prefix(4)), "gaussian", "auto", 1e-3, 1.0),
        cache.key_of(workload.kron(workload.prefix(4), workload.prefix(3)), "gaussian", "auto", 1e-3, 1.0),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_the_key_depends_on_every_module_that_selects():
    names = {path.parts[-2:] for path in cache._selecting()}
    assert {("choose", "best.py"), ("linalg", "inner.py"), ("papers", "pieces.py")} <= names


def test_rows_stored_in_another_order_of_entries_have_one_key():
    a = sparse.csr_array((np.array([1, 2]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
    b = sparse.csr_array((np.array([2, 1]), np.array([0, 2]), np.array([0, 2])), shape=(1, 3))
    inner = workload.total(1).inner
    keys = [cache.key_of(Workload(m, inner), "gaussian", "auto", 1e-3, 1.0) for m in (a, b)]
    assert keys[0] == keys[1]


def test_only_slow_selections_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["dpsql.strategies.selection"], "_WORTH", 60.0)
    select(WORKLOADS["ranges"], cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_selection_cut_short_is_never_kept(tmp_path):
    W = workload.wrelated(40, 100, 12, 1)
    S = select(W, cache=tmp_path, time_limit=1e-9)
    assert S.gap > 1e-3
    assert not list(tmp_path.iterdir())
    full = select(W, cache=tmp_path)
    assert full.gap <= 1e-3
    # Once a whole selection is there, a short time limit gives it.
    assert select(W, cache=tmp_path, time_limit=1e-9).gap <= 1e-3 * (1 + 1e-2)


def test_marginals_are_kept_where_they_are_searched_for(tmp_path, monkeypatch):
    made = selections(monkeypatch)
    W = workload.marginals([3, 4], order=1)
    for _ in range(2):
        select(W, "laplace", cache=tmp_path)
    assert len(made) == 1


def rewritten(path, change):
    """The entry with its head and arrays changed by ``change(head, arrays)``."""
    with np.load(path, allow_pickle=False) as held:
        arrays = dict(held)
    head = json.loads(arrays.pop("head").tobytes())
    change(head, arrays)
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def halved(head, arrays):
    arrays["mixing"] = arrays["mixing"].astype(np.int64) // 2


def rank_lost(head, arrays):
    arrays["mixing"] = np.vstack([arrays["mixing"][:1], *[arrays["mixing"][:1]] * (arrays["mixing"].shape[0] - 1)])


def other_space(head, arrays):
    arrays["basis_data"] = arrays["basis_data"].astype(np.int64)
    arrays["basis_data"][0] += 1


def heavy_bound(head, arrays):
    arrays["weights0"] = arrays["weights0"] * 1e6  # weights are scaled to sum 1: no bound grows


def one_column(head, arrays):
    arrays["weights0"] = np.zeros_like(arrays["weights0"])
    arrays["weights0"][0] = 1.0


def negative_weights(head, arrays):
    arrays["weights0"] = arrays["weights0"].copy()
    arrays["weights0"][0] = -1.0


def nan_weights(head, arrays):
    arrays["weights0"] = arrays["weights0"] * np.nan


def unknown_column(head, arrays):
    arrays["places0"] = arrays["places0"].astype(np.int64) + 10_000


def no_certificate(head, arrays):
    head["certificates"] = 0


def many_certificates(head, arrays):
    head["certificates"] = 10**9


def unknown_method(head, arrays):
    head["method"] = "magic"


def praised(head, arrays):
    head["considered"] = [["optimal", 1e-9]]


def another_key(head, arrays):
    head["key"] = "0" * 64


def another_format(head, arrays):
    head["format"] = 99


def floats(head, arrays):
    arrays["mixing"] = arrays["mixing"].astype(np.float64) + 0.25


def too_large(head, arrays):
    arrays["mixing"] = arrays["mixing"].astype(np.int64) << 40


def overflowing_basis(head, arrays):
    arrays["basis_data"] = arrays["basis_data"].astype(np.int64) << 52


def swollen(head, arrays):
    arrays["basis_data"] = arrays["basis_data"].astype(np.int64) << 51  # a multiple: the same strategy


def bad_indices(head, arrays):
    arrays["basis_indices"] = arrays["basis_indices"].astype(np.int64) + 500


def bad_pointers(head, arrays):
    arrays["basis_indptr"] = arrays["basis_indptr"][::-1].copy()


def wrong_columns(head, arrays):
    arrays["basis_shape"] = arrays["basis_shape"] + np.array([0, 1])


def missing(head, arrays):
    del arrays["mixing"]


@pytest.mark.parametrize(
    "change",
    [
        *(rank_lost, other_space, one_column, negative_weights, nan_weights, unknown_column, no_certificate),
        *(many_certificates, unknown_method, praised, another_key, another_format, floats, too_large),
        *(overflowing_basis, bad_indices, bad_pointers, wrong_columns, missing),
    ],
)
def test_a_poisoned_entry_is_selected_again(change, tmp_path, monkeypatch):
    W = WORKLOADS["ranges"]
    first = select(W, cache=tmp_path)
    path = entry(tmp_path)
    rewritten(path, change)
    poisoned = path.read_bytes()
    made = selections(monkeypatch)
    same(first, select(W, cache=tmp_path))
    assert made == ["auto"]
    assert path.read_bytes() != poisoned  # replaced
    same(first, select(W, cache=tmp_path))
    assert made == ["auto"]


def test_other_integers_have_their_own_exact_sensitivity(tmp_path):
    # A poisoned Laplace entry: B divided by two and rounded. It has no certificate to fail, and keeps the row space.
    W = workload.prefix(12)
    first = select(W, "laplace", method="identity", cache=tmp_path)
    rewritten(entry(tmp_path), lambda head, arrays: arrays.update(mixing=np.diag(np.arange(12) + 2)))
    found = select(W, "laplace", method="identity", cache=tmp_path)
    if not np.array_equal(found.matrix(), first.matrix()):  # it passed: then its figures are its own
        assert found.l1 == 13
    assert found.l1 == int(np.abs(found.matrix()).sum(axis=0).max())
    # Multiples of a strategy are the same strategy; scaled integers are taken with a scaled sensitivity.
    rewritten(entry(tmp_path), lambda head, arrays: arrays.update(mixing=np.eye(12, dtype=np.int64) * 5))
    found = select(W, "laplace", method="identity", cache=tmp_path)
    assert (found.l1, found.l2_squared) == (5, 25)
    assert found.expected == pytest.approx(first.expected)
    assert np.abs(np.asarray(found.reconstruction(W)) @ found.matrix() - W.matrix()).max() < 1e-9


@pytest.mark.parametrize("change", [halved, heavy_bound, swollen])
def test_harmless_changes_leave_honest_figures(change, tmp_path):
    W = WORKLOADS["ranges"]
    select(W, cache=tmp_path)
    rewritten(entry(tmp_path), change)
    S = select(W, cache=tmp_path)
    B = S.matrix()
    sensitivity = np.linalg.norm(B, axis=0).max()
    assert S.sensitivity == pytest.approx(sensitivity, rel=1e-12)
    exact = np.vectorize(int, otypes=[object])(S.mixing) @ S.basis.toarray().astype(object)
    assert S.l2_squared == max((exact * exact).sum(axis=0))
    assert S.l1 == max(np.abs(exact).sum(axis=0))
    M = W.matrix()
    assert S.expected == pytest.approx(
        sensitivity**2 * np.sum((M @ np.linalg.pinv(B / sensitivity, rcond=1e-11) / sensitivity) ** 2), rel=1e-6
    )
    assert S.lower_bound <= select(W, tolerance=1e-6).expected
    assert S.gap <= 1.01e-3


def test_any_weights_prove_a_bound_below_the_least_error():
    rng = np.random.default_rng(3)
    for W in WORKLOADS.values():
        least = select(W, tolerance=1e-5).expected
        parts = W.factors if len(W.factors) > 1 else (W,)
        for _ in range(20):
            found = []
            for part in parts:
                size = part.shape[1] if part.contributions is None else part.contributions.shape[1]
                places = rng.integers(0, size, size=rng.integers(1, 2 * size))
                found.append(Certificate(places, rng.exponential(size=places.size) ** 3))
            whole = Certificate(np.zeros(0, int), np.zeros(0), tuple(found)) if len(parts) > 1 else found[0]
            assert dual_value(W, whole) <= least * (1 + 1e-9)


def test_the_bound_equals_that_of_the_bounds_room():
    from dpsql import bounds

    W = WORKLOADS["count and sum"]
    lam = np.random.default_rng(4).random(12)
    value = dual_value(W, Certificate(np.arange(12), lam))
    assert value == pytest.approx(bounds.dual_bound(W, lam), rel=1e-9)
    assert value <= bounds.dual_bound(W, lam) * (1 + 1e-12)


def test_ill_conditioned_rows_prove_nothing_false():
    # The same row space in rows that are parallel to one part in a million: rounding may only lower the bound.
    from dpsql.linalg.basis import Basis

    W = workload.identity(2)
    rows = sparse.csr_array(np.array([[10**6, 10**6 + 1], [10**6 + 1, 10**6 + 2]]))
    coords = np.linalg.inv(rows.toarray().astype(float))
    certificate = Certificate(np.arange(2), np.ones(2))
    assert dual_value(W, certificate, Basis(rows, coords), sparse.csc_array(rows)) <= 2.0 * (1 + 1e-9)
    assert dual_value(W, certificate) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("certificate", "message"),
    [
        (Certificate(np.arange(3), np.ones(2)), "one weight"),
        (Certificate(np.arange(0), np.ones(0)), "one weight"),
        (Certificate(np.array([5]), np.ones(1)), "between 0 and 3"),
        (Certificate(np.arange(2), np.array([1.0, -1.0])), "not negative"),
        (Certificate(np.arange(2), np.array([1.0, np.inf])), "finite"),
        (Certificate(np.arange(2), np.zeros(2)), "not all zero"),
        (Certificate(np.arange(0), np.ones(0), (Certificate(np.arange(1), np.ones(1)),)), "another product"),
    ],
)
def test_certificates_that_do_not_fit_are_refused(certificate, message):
    with pytest.raises(DataError, match=message):
        dual_value(workload.prefix(4), certificate)


def test_damage_of_any_kind_is_ignored(tmp_path):
    W = WORKLOADS["ranges"]
    first = select(W, "laplace", cache=tmp_path)
    path = entry(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    damaged = [b"", b"PK", b"not a zip file", whole[: len(whole) // 2], whole[:-1], whole * 2]
    for _ in range(40):
        at, value = int(rng.integers(len(whole))), int(rng.integers(256))
        damaged.append(whole[:at] + bytes([value]) + whole[at + 1 :])
    key = path.stem
    known = strategy.CATALOGUE
    for content in damaged:
        path.write_bytes(content)
        found = cache.load(tmp_path, key, W, "laplace", "auto", 1e-3, known)
        if found is not None:
            same(first, found)
        else:
            assert not path.exists()


def test_no_pickle_is_ever_read(tmp_path):
    W = WORKLOADS["ranges"]
    select(W, "laplace", cache=tmp_path)
    path = entry(tmp_path)

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    with path.open("wb") as file:
        np.savez(file, mixing=np.array([Bomb()], dtype=object))
    assert cache.load(tmp_path, path.stem, W, "laplace", "auto", 1e-3, strategy.CATALOGUE) is None
    assert not (tmp_path / "exploded").exists()


def test_a_header_that_asks_for_much_memory_is_refused(tmp_path):
    W = WORKLOADS["ranges"]
    select(W, "laplace", cache=tmp_path)
    path = entry(tmp_path)
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("mixing.npy", content)
    assert cache.load(tmp_path, path.stem, W, "laplace", "auto", 1e-3, strategy.CATALOGUE) is None


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    W = WORKLOADS["ranges"]
    select(W, "laplace", cache=tmp_path)
    path = entry(tmp_path)
    monkeypatch.setattr(cache, "ENTRY_CAP", 64)
    assert cache.load(tmp_path, path.stem, W, "laplace", "auto", 1e-3, strategy.CATALOGUE) is None


def test_a_folder_that_cannot_be_used_is_as_good_as_none(tmp_path):
    W = WORKLOADS["ranges"]
    file = tmp_path / "file"
    file.write_text("a file where the folder should be")
    same(select(W), select(W, cache=file / "below"))
    same(select(W), select(W, cache=file))
    key = cache.key_of(W, "gaussian", "auto", 1e-3, 1.0)
    (tmp_path / f"{key}.npz").mkdir()  # a folder where the entry should be
    same(select(W), select(W, cache=tmp_path))
    same(select(W), select(W, cache="nul\0byte"))


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_folder_without_permission_is_as_good_as_none(tmp_path):
    tmp_path.chmod(0o500)
    same(select(WORKLOADS["ranges"]), select(WORKLOADS["ranges"], cache=tmp_path))
    tmp_path.chmod(0o700)


def test_the_oldest_entries_go_when_the_folder_is_full(tmp_path):
    W = WORKLOADS["ranges"]
    S = select(W, "laplace")
    for number in range(5):
        cache.store(tmp_path, f"{number:064d}", S, None)
        os.utime(tmp_path / f"{number:064d}.npz", ns=(number, number))
    (tmp_path / "deadbeef.part").write_bytes(b"x" * 10)
    os.utime(tmp_path / "deadbeef.part", ns=(0, 0))
    size = (tmp_path / f"{0:064d}.npz").stat().st_size
    cache.store(tmp_path, "f" * 64, S, None, cap=3 * size + 20)
    left = sorted(path.stem for path in tmp_path.iterdir())
    assert left == [f"{3:064d}", f"{4:064d}", "f" * 64]
    cache.store(tmp_path, "e" * 64, S, None, cap=10)  # larger than the whole cap
    assert "e" * 64 not in {path.stem for path in tmp_path.iterdir()}


def test_entries_are_small_and_private(tmp_path):
    select(WORKLOADS["ranges"], cache=tmp_path / "a" / "b")
    path = entry(tmp_path / "a" / "b")
    assert path.stat().st_size < 20_000
    assert path.stat().st_mode & 0o077 == 0


def test_where_the_default_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("DPSQL_CACHE", str(tmp_path))
    assert cache.default_folder() == tmp_path
    monkeypatch.setenv("DPSQL_CACHE", "OFF")
    assert cache.default_folder() is None
    monkeypatch.delenv("DPSQL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / "dpsql" / "strategies"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules say to ignore it
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.default_folder() == tmp_path / ".cache" / "dpsql" / "strategies"


def test_these_tests_keep_away_from_the_users_cache():
    assert "dpsql-strategies-" in os.environ["DPSQL_CACHE"]


def test_a_cache_that_is_no_path_is_refused():
    with pytest.raises(DataError, match="folder's path"):
        select(WORKLOADS["ranges"], cache=5)


PLAN = """
import sys, hashlib
from dpsql import strategy, workload
for noise in ("gaussian", "laplace"):
    S = strategy.select(workload.random_ranges(12, 40, 3), noise)
    B = S.mixing @ S.basis
    print(noise, hashlib.sha256(B.tobytes()).hexdigest())
"""


@pytest.mark.long
def test_two_processes_find_the_same_strategy():
    found = []
    for seed in ("1", "2"):
        settings = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, env=settings, timeout=900)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found[0] == found[1]
    assert found[0].count("\n") == 2


def test_what_a_unit_can_change_is_in_the_key():
    cells = sparse.csc_array(sparse.eye_array(6, dtype=np.int64))
    groups = np.array([0, 0, 1, 1, 2, 2])
    units = [
        None,
        *(Contributions(((Part(cells, *limits),),), 6) for limits in ((1, 1), (1, 2), (2, 1))),
        Contributions(((Part(cells, 1, 2, groups),),), 6),
        Contributions(((Part(cells, 1, 2), Part(cells, 1, 1)),), 6, {0: Tied(cells, cells, groups, 2)}),
    ]
    plain = workload.identity(6)
    keys = [cache.key_of(replace(plain, units=held), "gaussian", "auto", 1e-3, 1.0) for held in units]
    assert None not in keys
    assert len(set(keys)) == len(units)
