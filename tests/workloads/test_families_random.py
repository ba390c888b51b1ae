import numpy as np
import pytest

from dpsql import workload
from dpsql.errors import DataError


def boxes(W, shape):
    """(first, last) of every row per axis, checking that each row is a full box of ones."""
    found = []
    for row in W.matrix().reshape(W.shape[0], *shape):
        place = np.argwhere(row)
        low, high = place.min(axis=0), place.max(axis=0)
        assert row.sum() == np.prod(high - low + 1)
        assert set(np.unique(row)) <= {0.0, 1.0}
        found.append((tuple(low), tuple(high)))
    return found


@pytest.mark.parametrize("bias", [0.0, 4.0, -4.0])
@pytest.mark.parametrize("shape", [(9,), (4, 5), (3, 2, 3)])
def test_sampled_ranges_are_distinct_boxes(shape, bias):
    W = workload.sampled_ranges(40, shape, 3, bias=bias)
    assert len(set(boxes(W, shape))) == 40
    again = workload.sampled_ranges(40, shape, 3, bias=bias)
    assert np.array_equal(W.matrix(), again.matrix())
    assert not np.array_equal(W.matrix(), workload.sampled_ranges(40, shape, 4, bias=bias).matrix())


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_a_sample_of_all_is_all(bias):
    shape = (4, 3)
    W = workload.sampled_ranges(60, shape, 1, bias=bias)
    assert workload.equivalent(W, workload.all_range(shape))


def test_bias_moves_centres_outwards_or_inwards():
    def mean_distance(bias):
        ends = boxes(workload.sampled_ranges(600, 64, 7, bias=bias), (64,))
        return np.mean([abs(low[0] + high[0] - 63) / 63 for low, high in ends])

    # All 2080 ranges have a mean of 1/3 and a standard deviation of 1/sqrt(18) about it.
    slack = 5 / np.sqrt(18 * 600)
    assert abs(mean_distance(0.0) - 1 / 3) < slack
    assert mean_distance(4.0) > 1 / 3 + slack
    assert mean_distance(-4.0) < 1 / 3 - slack


@pytest.mark.long
def test_uniform_samples_are_uniform():
    counts = np.zeros((6, 6))
    for seed in range(700):
        for (low,), (high,) in boxes(workload.sampled_ranges(3, 6, seed), (6,)):
            counts[low, high] += 1
    drawn = counts[np.triu_indices(6)]
    assert counts.sum() == drawn.sum() == 2100
    # 21 ranges, 100 each; without replacement the variance is below that of a multinomial.
    assert ((drawn - 100) ** 2 / 100).sum() < 62  # chi-square, 20 degrees of freedom: 3e-6


@pytest.mark.parametrize("coverage", [0.02, 0.3, 0.9, 1.0])
def test_coverage_over_one_axis_is_exact_to_half_a_cell(coverage):
    W = workload.covering_ranges(50, 200, coverage, 5)
    boxes(W, (200,))
    assert np.abs(W.matrix().mean(axis=1) - coverage).max() <= 0.5 / 200 + 1e-12


@pytest.mark.parametrize("shape", [(32, 32), (16, 8, 8)])
@pytest.mark.parametrize("coverage", [0.05, 0.25, 0.6])
def test_coverage_over_several_axes_is_near(shape, coverage):
    W = workload.covering_ranges(300, shape, coverage, 6)
    boxes(W, shape)
    assert W.matrix().mean() == pytest.approx(coverage, rel=0.1)


def test_names_print_the_parameters():
    assert workload.wdiscrete(4, 6, 2, p=0.5).name == "wdiscrete(m=4, n=6, p=0.5, seed=2)"
    assert workload.wrange(4, 6, 2).name == "random_ranges(m=4, n=6, seed=2)"
    assert workload.wrelated(4, 6, 2, 9).name == "wrelated(m=4, n=6, s=2, seed=9)"
    assert workload.sampled_ranges(4, (6, 3), 2).name == "sampled_ranges(m=4, shape=6x3, bias=0, seed=2)"
    assert workload.covering_ranges(4, 6, 0.5, 2).name == "covering_ranges(m=4, shape=6, coverage=0.5, seed=2)"


def test_random_ranges_have_uniform_ends():
    W = workload.random_ranges(4000, 10, 1)
    counts = np.zeros((10, 10))
    for (low,), (high,) in boxes(W, (10,)):
        counts[low, high] += 1
    expected = np.where(np.eye(10, dtype=bool), 40.0, 80.0)[np.triu_indices(10)]
    drawn = counts[np.triu_indices(10)]
    assert ((drawn - expected) ** 2 / expected).sum() < 114  # chi-square, 54 degrees of freedom: 3e-6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: workload.sampled_ranges(7, 3, 0), "there are 6"),
        (lambda: workload.sampled_ranges(2, (), 0), "axis"),
        (lambda: workload.sampled_ranges(2, 5, 0, bias=np.nan), "finite"),
        (lambda: workload.sampled_ranges(2, 10**5, 0, bias=1.0), "too many"),
        (lambda: workload.sampled_ranges(0, 5, 0), "at least 1"),
        (lambda: workload.covering_ranges(2, 5, 0.0, 0), "coverage"),
        (lambda: workload.covering_ranges(2, 5, 1.5, 0), "coverage"),
        (lambda: workload.covering_ranges(10**6, 1000, 0.9, 0), "cover more"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(DataError, match=message):
        make()
