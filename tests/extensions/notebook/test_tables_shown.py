"""Tables as they are shown: intervals, digits, cuts, and nothing that a front end could take for HTML."""

import datetime as dt
from html.parser import HTMLParser

from dpsql.extensions.notebook.results import Note, NotebookResult, Results, error_text
from dpsql.extensions.notebook.tables import MOST_COLUMNS, Look, grid_of
from dpsql.release import Result

NAMES = ("g", "n", "n_stderr", "n_low", "n_high")
KINDS = ("VARCHAR", "DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE")
ROWS = [("a", 100.4, 5.0, 90.4, 110.4), ("b", -3.0, 5.0, -13.0, 7.0)]
TABLE = Result(NAMES, KINDS, ROWS)


class Page(HTMLParser):
    """The tags of a page and the texts between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_a_number_with_errors_is_one_cell():
    grid = grid_of(TABLE, Look(), "95 %")
    assert grid.heads == ("g", "n ± (95 %)")
    assert grid.cells == (("a", "100.4 ± 10.0"), ("b", "-3.0 ± 10.0"))
    assert grid.right == (False, True)
    assert grid.text("by_g").splitlines() == [
        *("by_g", "g    n ± (95 %)", "-  ------------", "a  100.4 ± 10.0", "b   -3.0 ± 10.0", "(2 rows)")
    ]


def test_a_near_exact_number_keeps_its_error():
    grid = grid_of(Result(NAMES, KINDS, [("a", 100.0, 5e-20, 100.0 - 2**-46, 100.0 + 2**-46)]), Look())
    assert grid.cells == (("a", "100 ± 1.4e-14"),)


def test_columns_style_shows_every_column():
    grid = grid_of(TABLE, Look(style="columns"))
    assert grid.heads == NAMES
    assert grid.cells[0] == ("a", "100.4", "5.0", "90.4", "110.4")


def test_intervals_that_are_no_plus_minus():
    rows = [(3.0, 0.5, 2.0, 5.0), (None, None, None, None), (1.0, 0.5, None, 2.0)]
    grid = grid_of(Result(("r", "r_stderr", "r_low", "r_high"), ("DOUBLE",) * 4, rows), Look())
    assert [row[0] for row in grid.cells] == ["3.00 (2.00 to 5.00)", "NULL", "1.00 (NULL to 2.00)"]
    day = dt.date(2020, 1, 1)
    dates = Result(("d", "d_stderr", "d_low", "d_high"), ("DATE", "DOUBLE", "DATE", "DATE"), [(day, 1.0, day, day)])
    assert grid_of(dates, Look()).cells == (("2020-01-01 (2020-01-01 to 2020-01-01)",),)


def test_a_user_column_that_ends_like_an_error_stays():
    grid = grid_of(Result(("n", "n_low"), ("BIGINT", "BIGINT"), [(1, 2)]), Look())
    assert grid.heads == ("n", "n_low")


def test_rows_and_columns_are_cut_and_say_so():
    long = Result(("i",), ("BIGINT",), [(i,) for i in range(1_000)])
    grid = grid_of(long, Look(row_limit=3))
    assert [row[0] for row in grid.cells] == ["0", "1", "2"]
    assert grid.note == "1,000 rows, the first 3 shown; .df() has them all"
    wide = Result([f"c{i}" for i in range(50)], ["BIGINT"] * 50, [range(50)])
    grid = grid_of(wide, Look())
    assert len(grid.heads) == MOST_COLUMNS
    assert grid.note == "1 row; 10 more columns in .columns"
    assert grid_of(Result(("a",), ("BIGINT",), []), Look()).note == "0 rows"


def test_no_text_becomes_html():
    evil = "<img src=x onerror=alert(1)>"
    result = Result((evil, "n"), ("VARCHAR", "BIGINT"), [("</td><script>alert(1)</script>", 1), ("a & 'b' \"c\"", 2)])
    page = Page(grid_of(result, Look()).html("<script>"))
    assert {tag for tag, _ in page.tags} == {"div", "table", "caption", "b", "thead", "tbody", "tr", "th", "td", "p"}
    assert {name for _, given in page.tags for name in given} <= {"class", "style"}
    assert evil in page.texts
    assert "</td><script>alert(1)</script>" in page.texts
    assert "<script>" in page.texts
    whole = Results([NotebookResult.of(result, evil)] * 2, evil)
    assert {tag for tag, _ in Page(whole._repr_html_()).tags} <= {tag for tag, _ in page.tags} | {"div"}
    assert "<script>" not in Note("<script>")._repr_mimebundle_()["text/html"]
    assert "<script>" not in Note("two lines\n<script>")._repr_mimebundle_()["text/html"]


def test_control_characters_do_not_reach_a_terminal():
    result = Result(("a\x1b[31m",), ("VARCHAR",), [("b\x1b]0;x\x07\nc",)])
    assert not set(grid_of(result, Look()).text()) & {"\x1b", "\x07"}
    assert len(grid_of(result, Look()).text().splitlines()) == 4


def test_the_error_of_the_footer():
    def named(name, *columns):
        kinds = [kind for _ in columns for kind in KINDS[1:]]
        heads = [f"{c}{part}" for c, _ in columns for part in ("", "_stderr", "_low", "_high")]
        row = [v for _, half in columns for v in (10.0, half / 2, 10 - half, 10 + half)]
        return NotebookResult.of(Result(heads, kinds, [row]), name, "95 %")

    assert error_text([named("q1", ("n", 4.0))]) == "95 % error ±4.00"
    assert error_text([named("q1", ("n", 4.0), ("s", 50.0))]) == "95 % error ±4.00 (n), ±50.0 (s)"
    many = [named("a", ("n", 4.0), ("s", 50.0)), named("b", ("n", 3.0), ("s", 60.0))]
    assert error_text(many) == "95 % error ±3.00 (b.n) to ±60.0 (b.s)"
    assert error_text([NotebookResult.of(Result(("a",), ("BIGINT",), [(1,)]), "q1")]) == ""
