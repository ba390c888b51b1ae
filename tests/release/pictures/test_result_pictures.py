"""Pictures of released tables say what the tables say."""

from __future__ import annotations

import datetime as dt
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpsql.errors import InterfaceError
from dpsql.release import Result
from dpsql.release.columns import Numbers
from dpsql.release.pictures import picture_bytes, plot_ranges, plot_result, results_picture
from dpsql.release.pictures.tables import read


def numbers(name: str, values: list[float | None], reach: float = 2.0) -> list[tuple[str, str, list[float | None]]]:
    """A private column with its companions."""
    ends = [[None if v is None else v + side * reach for v in values] for side in (-1, 1)]
    return [
        (name, "DOUBLE", values),
        (f"{name}_stderr", "DOUBLE", [None if v is None else reach / 1.96 for v in values]),
        (f"{name}_low", "DOUBLE", ends[0]),
        (f"{name}_high", "DOUBLE", ends[1]),
    ]


TOWNS = Result.from_columns(
    [
        ("town", "VARCHAR", ["here", "there $x_1$", None]),
        ("town_other", "BOOLEAN", [False, False, True]),
        *numbers("n", [10.0, -3.0, None]),
    ]
)
PAIRS = [(a, b) for a in ("x", "y", "z") for b in (False, True)]
GROUPED = Result.from_columns(
    [
        ("a", "VARCHAR", [a for a, _ in PAIRS]),
        ("b", "BOOLEAN", [b for _, b in PAIRS]),
        *numbers("n", [float(i) for i in range(6)]),
    ]
)


def drawn(figure: Figure) -> None:
    """It can be written without a warning."""
    assert picture_bytes(figure).startswith(b"<?xml")


def test_keys_and_numbers_of_a_table() -> None:
    shape = read(TOWNS)
    assert [key.name for key in shape.keys] == ["town"]
    assert shape.keys[0].shown == ["here", "there $x_1$", "other"]
    (number,) = shape.numbers
    assert number.arms.tolist() == [[2, 2, 0], [2, 2, 0]]
    # No intervals: standard errors give them; no errors at all: plain numbers.
    only = read(Result.from_columns([("k", "INTEGER", [1]), ("p", "DOUBLE", [4.0]), ("p_stderr", "DOUBLE", [1.0])]))
    assert only.numbers[0].high[0] == pytest.approx(5.96, abs=1e-3)
    assert [number.name for number in only.numbers] == ["p"]
    bare = read(Result.from_columns([("k", "VARCHAR", ["a"]), ("s", "DECIMAL(9,2)", [4.0]), ("t", "DOUBLE", [1.0])]))
    assert [number.name for number in bare.numbers] == ["s", "t"]
    assert not bare.numbers[0].bounded
    whole = read(Result(["k", "i"], ["VARCHAR", "BIGINT"], [("a", 3)]))
    assert [number.name for number in whole.numbers] == ["i"]
    # A DOUBLE before the first private number is a key.
    keyed = read(Result.from_columns([("dose", "DOUBLE", [0.5]), *numbers("n", [1.0])]))
    assert [key.name for key in keyed.keys] == ["dose"]


def test_bars_have_the_intervals_of_the_table() -> None:
    figure = plot_result(TOWNS)
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [10, -3, 0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["here", r"there \$x_1\$", "other"]
    (arms,) = [c for c in axes.collections if hasattr(c, "get_segments")]
    assert [segment[:, 0].tolist() for segment in arms.get_segments()][:2] == [[8, 12], [-5, -1]]
    assert any("NULL" in text.get_text() for text in axes.texts)
    drawn(figure)


def test_two_keys_are_grouped_and_many_a_heat_map() -> None:
    figure = plot_result(GROUPED)
    (axes,) = figure.axes
    assert sorted(bar.get_width() for bar in axes.patches) == [0, 1, 2, 3, 4, 5]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["false", "true"]
    drawn(figure)
    wide = Result.from_columns(
        [("a", "VARCHAR", ["u"] * 9 + ["v"] * 8), ("b", "INTEGER", [*range(9), *range(8)]),
         *numbers("n", [float(i) for i in range(17)])]
    )  # fmt: skip
    figure = plot_result(wide)
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (2, 9)
    assert image[1, 7] == 16
    assert np.isnan(np.asarray(image)[1, 8])  # no row of the table
    assert figure.axes[0].get_title(loc="left") == "n, each within ±2"
    drawn(figure)


def test_a_long_ordered_key_is_a_curve_with_a_band() -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=i) for i in range(20)]
    for kind, keys in (("DATE", [*days, None]), ("INTEGER", [*range(20), None])):
        values = [float(i % 7) for i in range(21)]
        figure = plot_result(Result.from_columns([("k", kind, keys), *numbers("n", values)]))
        (axes,) = figure.axes
        assert list(axes.lines[0].get_ydata()) == values[:20]
        assert len(axes.collections) == 1  # the band
        assert any("NULL" in text.get_text() for text in axes.texts)
        drawn(figure)


@pytest.mark.long
def test_three_keys_and_long_tables_are_cut() -> None:
    rows = [(a, b, c) for a in "ab" for b in "cd" for c in range(15)]
    table = Result.from_columns(
        [(name, "VARCHAR", [str(row[at]) for row in rows]) for at, name in enumerate("xyz")] + numbers("n", [1.0] * 60)
    )
    figure = plot_result(table)
    assert len(figure.axes[0].patches) == 40
    assert "first 40 of 60 rows" in figure.axes[0].get_title(loc="left")
    assert figure.axes[0].get_yticklabels()[0].get_text() == "a, c, 0"
    drawn(figure)


def test_a_single_row_has_a_line_for_each_number() -> None:
    table = Result.from_columns([*numbers("n", [20000.0], 35.0), *numbers("mean", [2.9], 0.1), *numbers("x", [None])])
    figure = plot_result(table)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["n: 20,000 ±35", "mean: 2.9 ±0.1", "x: NULL"]
    drawn(figure)


def test_panels_values_and_axes_of_the_caller() -> None:
    two = Result.from_columns([("k", "VARCHAR", ["a", "b"]), *numbers("n", [1.0, 2.0]), *numbers("s", [5.0, 6.0])])
    assert len(plot_result(two).axes) == 2
    (axes,) = plot_result(two, value="S").axes
    assert [bar.get_width() for bar in axes.patches] == [5, 6]
    mine = Figure()
    place = mine.subplots(1, 2)
    assert plot_result(two, place[1], value="n") is mine
    assert [bar.get_width() for bar in place[1].patches] == [1, 2]
    assert not place[0].patches
    with pytest.raises(InterfaceError, match="no number 'z' to draw; the result has n, s"):
        plot_result(two, value="z")


RANGES = [(a, b) for a in range(5) for b in range(a, 5)]


def test_ranges_are_a_curve_from_one_value_on() -> None:
    table = Result.from_columns(
        [
            ("age_from", "INTEGER", [a for a, _ in RANGES]),
            ("age_to", "INTEGER", [b for _, b in RANGES]),
            *numbers("n", [float(10 * (b - a + 1)) for a, b in RANGES]),
        ]
    )
    for figure, expected in ((plot_result(table), [10, 20, 30, 40, 50]), (plot_ranges(table, start=3), [10, 20])):
        (axes,) = figure.axes
        assert list(axes.lines[0].get_ydata()) == expected
        assert axes.get_xlabel() == "age"
        drawn(figure)
    with pytest.raises(InterfaceError, match="no range of the result begins at 9"):
        plot_ranges(table, start=9)
    prefixes = Result.from_columns([("age_to", "INTEGER", [0, 1, 2]), *numbers("n", [1.0, 4.0, 9.0])])
    assert list(plot_ranges(prefixes).axes[0].lines[0].get_ydata()) == [1, 4, 9]
    with pytest.raises(InterfaceError, match="leave start out"):
        plot_ranges(prefixes, start=1)
    with pytest.raises(InterfaceError, match="has no ranges"):
        plot_ranges(TOWNS)


def test_what_has_no_numbers_is_refused() -> None:
    for table in (Result(["k"], ["VARCHAR"], [("a",)]), Result(["n"], ["DOUBLE"], []), Result([], [], [])):
        with pytest.raises(InterfaceError, match="no numbers to draw"):
            plot_result(table)
    with pytest.raises(InterfaceError, match="no result of the release"):
        results_picture([("a", Result(["k"], ["VARCHAR"], [("a",)]))])


def test_several_results_share_a_figure() -> None:
    figure = results_picture([("towns", TOWNS), ("words", Result(["k"], ["VARCHAR"], [("a",)])), ("groups", GROUPED)])
    assert [axes.get_title(loc="left").split(":")[0] for axes in figure.axes] == ["towns", "groups"]
    drawn(figure)


def test_packed_columns_are_drawn_as_well() -> None:
    table = Result.from_columns([("k", "INTEGER", list(range(30))), ("n", "DOUBLE", Numbers(np.arange(30.0)))])
    assert list(plot_result(table).axes[0].lines[0].get_ydata()) == list(range(30))


def test_a_notebook_shows_it_and_pyplot_does_not_know_it() -> None:
    figure = TOWNS.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert picture_bytes(TOWNS.plot()) == picture_bytes(TOWNS.plot())
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or pyplot.get_fignums() == []


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InterfaceError, match="install 'matplotlib>="):
        TOWNS.plot()
