"""What every key answers: whether its groups are listed, their labels, which one is OTHER, and where each lies."""

from __future__ import annotations

from dpsql.workloads.expr.batch import CaseKey, RangeKey
from dpsql.workloads.expr.conditions import TRUE, LineAtom
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.regions import KeyDomain, LabelColumn

ONE, TWO = ((0, 0), (1, 0)), ((1, 0), (2, 0))
LOW, HIGH = LineAtom("k", (ONE,)), LineAtom("k", (TWO,))


def test_a_domain_has_one_label_with_other_and_null_after_its_values() -> None:
    key = KeyDomain("k", "INTEGER", (1, 2), (ONE, TWO), other=True)
    assert key.listed
    assert key.has_other
    assert key.labels == (LabelColumn("k", "INTEGER", (1, 2, None, None)),)
    assert key.others == (False, False, True, False)
    assert key.atoms == (LOW, HIGH, None, LineAtom("k", (), True))
    assert not KeyDomain("k", "VARCHAR", ("a",), (ONE,), other=True, other_label="rest").has_other


def test_groups_of_conditions_lie_in_a_column_where_all_do() -> None:
    key = CaseKey("k > 1", (LabelColumn("k > 1", "BOOLEAN", (False, True)),), (LOW, HIGH))
    assert key.listed
    assert not key.has_other
    assert key.others == (False, False)
    assert key.atoms == (LOW, HIGH)
    labels = (LabelColumn("g", "VARCHAR", ("a", None)), LabelColumn("other", "BOOLEAN", (False, True)))
    marked = CaseKey("g", labels, (LOW, LineAtom("j", (TWO,))))
    assert marked.has_other
    assert marked.others == (False, True)
    assert marked.atoms == ()
    assert CaseKey("g", labels[:1], (LOW, TRUE)).atoms == ()


def test_the_groups_of_a_long_line_are_not_listed() -> None:
    key = RangeKey("dp_ranges(k)", "ranges", "k", "INTEGER", line_of("INTEGER"), ("from", "to"), range(9), 0)
    assert not key.listed
    assert not key.has_other
    assert [label.name for label in key.labels] == ["from", "to"]
    assert len(key) == 45
