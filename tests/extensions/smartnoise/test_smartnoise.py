"""SmartNoise's metadata as a policy: what carries over, what is left to decide, what is refused and where."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import InterfaceError, PolicyError
from dpsql.extensions.smartnoise.metadata import policy_from_smartnoise
from dpsql.policy import Policy
from dpsql.surfaces.cli import main

pytest.importorskip("yaml")

FULL = """\
engine: postgres
Finance:
  PUMS:
    PUMS:
      rows: 1000
      rows_exact: 1234
      max_ids: 3
      sample_max_ids: False
      clamp_columns: false
      censor_dims: true
      clamp_counts: true
      use_dpsu: false
      age: {type: int, lower: 0, upper: 100, nullable: false}
      income: {type: float, lower: 0, upper: 500000.5, sensitivity: 10}
      rate: {type: float, lower: "-1e-3", upper: 0.1}
      married: {type: boolean, bounded: true}
      educ: {type: string, cardinality: 13, missing_value: none}
      name: {type: string, name: name}
      half: {type: int, lower: 3}
      free: {type: int}
      secret: {type: unknown}
      when: {type: datetime}
      pid: {type: int, private_id: True}
    '"Back log"':
      row_privacy: true
      '`Sale-Amount`': {type: float, lower: -1, upper: 1}
"""


def confirmed(text: str) -> Policy:
    return Policy.parse(text.replace("# confirm: ", ""))


def one(table: str) -> str:
    """A collection of one table, its body indented below line 3."""
    return f'"":\n  "":\n    t:\n{table}'


def test_everything_that_has_a_counterpart_carries_over() -> None:
    text, tables = policy_from_smartnoise(FULL)
    assert tables == ["PUMS.PUMS", "PUMS.Back log"]
    policy = confirmed(text)
    assert policy.dataset == "Finance-1"
    people, log = policy.table("pums.pums"), policy.table("PUMS.Back log")
    assert (people.unit, people.max_rows_per_unit, people.expected_rows) == ("pid", 3, 1000)
    assert (log.unit, log.max_rows_per_unit) == ("row", None)
    age, income, rate = (people.column(name) for name in ("age", "income", "rate"))
    assert (age.lower, age.upper, age.nulls) == (0, 100, False)
    assert (income.lower, income.upper, income.nulls) == (0, Fraction("500000.5"), True)
    assert (rate.lower, rate.upper) == (Fraction("-0.001"), Fraction("0.1"))
    assert people.column("married").values == (False, True)
    assert set(people.columns) == {"age", "income", "rate", "married", "educ", "name", "half", "free", "when"}
    assert log.column("sale-amount").upper == 1
    for column in ("educ", "name", "half", "free", "when"):
        assert people.column(column).domain() is None


def test_what_has_no_counterpart_is_named_for_the_custodian() -> None:
    text, _ = policy_from_smartnoise(FULL)
    comments = [line for line in text.splitlines() if line.startswith("#")]
    for what in (
        "engine postgres",
        "max_ids: how many rows",
        "sample_max_ids was false",
        "clamp_columns was false",
        "rows_exact is not carried over",
        "# confirm: expected_rows = 1000",
        "# confirm: epsilon = 1.0",
        "column income: sensitivity is not carried over",
        "column educ: cardinality 13",
        "column educ: missing_value is not carried over",
        "column half: lower is 3, upper is missing",
        "column free: no bounds",
        "secret has type unknown",
        "pid is the unit",
        "censor_dims",
    ):
        assert any(what in line for line in comments), what
    assert "1234" not in text


def test_the_budget_is_the_custodians_until_it_is_given() -> None:
    text, _ = policy_from_smartnoise(FULL)
    with pytest.raises(PolicyError, match="epsilon"):
        Policy.parse(text)
    text, _ = policy_from_smartnoise(FULL, "people-2", epsilon="2.5", delta="1e-9")
    policy = Policy.parse(text)  # nothing that a policy needs is open
    assert policy.dataset == "people-2"
    assert (policy.budget.epsilon, policy.budget.delta) == (Fraction("2.5"), Fraction(1, 10**9))
    assert Policy.parse(policy.to_toml()) == policy
    for figures, message in (
        ({"delta": "1e-9"}, "without epsilon"),
        ({"epsilon": "-1"}, "epsilon is -1"),
        ({"epsilon": "nan"}, "finite"),
        ({"epsilon": "one"}, "such as 1.0"),
        ({"epsilon": "1", "delta": "2"}, "below 1"),
    ):
        with pytest.raises(PolicyError, match=message):
            policy_from_smartnoise(FULL, **figures)


def test_the_unit_is_a_decision_where_the_metadata_leave_it_open() -> None:
    none, _ = policy_from_smartnoise(one("      a: {type: int}\n"), epsilon="1")
    two, _ = policy_from_smartnoise(
        one("      a: {type: int, private_id: true}\n      b: {type: int, private_id: true}\n"), epsilon="1"
    )
    dotted, _ = policy_from_smartnoise(one('      "a.b": {type: int, private_id: true}\n'), epsilon="1")
    for text, said in (
        (none, "no private_id and no row_privacy"),
        (two, "private_id is set on a, b"),
        (dotted, "no dot"),
    ):
        assert said in text
        with pytest.raises(PolicyError, match="unit is missing"):
            Policy.parse(text)
        assert confirmed(text).table("t").unit == "row"
    assert set(confirmed(two).table("t").columns) == {"a", "b"}
    both, _ = policy_from_smartnoise(
        one("      row_privacy: true\n      a: {type: int, private_id: true}\n"), epsilon="1"
    )
    assert Policy.parse(both).table("t").unit == "row"
    assert "private_id a is not used" in both


def test_max_ids_is_one_by_default_and_has_a_second_name() -> None:
    key = "      id: {type: string, private_id: true}\n      a: {type: int}\n"
    for setting, limit in (("", 1), ("      max_ids: 4\n", 4), ("      max_contributions: 5\n", 5)):
        text, _ = policy_from_smartnoise(one(setting + key), epsilon="1")
        assert Policy.parse(text).table("t").max_rows_per_unit == limit


def test_names_of_any_kind_stay_names() -> None:
    names = ['we"ird', "new\nline", "# confirm: x", "confirm", "a.b", "é", "tab\t", "[x", "it's"]
    body = "".join(f"      {json.dumps(name)}: {{type: string}}\n" for name in names)
    text, _ = policy_from_smartnoise(one("      row_privacy: true\n" + body), epsilon="1")
    assert set(Policy.parse(text).table("t").columns) == set(names)
    assert set(confirmed(text).table("t").columns) >= set(names) - {"# confirm: x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is nothing"),
        ("- a\n", "it is a list"),
        ("a: {}\nb: {}\n", "one collection is read at a time, and it holds a, b"),
        ("engine: x\n", "it holds nothing"),
        ("engine: [x]\na: {}\n", "engine is a list"),
        ("a: {}\n", "no table is described"),
        ("a:\n  b: 7\n", r"a\.b \(line 2\): it is an integer"),
        ("a:\n  b:\n    c:\n", r"a\.b\.c \(line 3\): it is nothing"),
        ("a:\n  b:\n    c: {}\n", r"line 3\): a table needs at least one column"),
        ("a:\n  no:\n    c: {}\n", r"the key False is a boolean; quote it"),
        ("a: {b: {1: {}}}\n", "the key 1 is an integer"),
        ("a: {b: {c: 2, c: 3}}\n", r"c \(line 1\): the key stands twice"),
        ("a: {b\n", r"is not YAML \(line"),
        ("a: *b\n", r"is not YAML \(line 1\)"),
        ("a: !!python/object:os.system {}\n", r"is not YAML \(line 1\)"),
        ("a: 2020-99-99\n", "is not YAML"),
        pytest.param("[" * 5_000, "nests too deeply|is not YAML", marks=pytest.mark.long),
        (" " * 2_000_001, "2,000,000 are read"),
        ("a: {b: {T: {x: {type: int}}, t: {x: {type: int}}}}\n", "b.t is described twice|described twice"),
        (one("      x: {lower: 0}\n"), r"t\.x \(line 4\): type is missing"),
        (one("      x: {type: integer}\n"), r"t\.x\.type \(line 4\): integer is not a type; did you mean int"),
        (one("      x: {type: int, uper: 3}\n"), r"x\.uper \(line 4\).*did you mean upper"),
        (one("      x: {type: int, name: y}\n"), "not the name above it"),
        (one("      x: {type: int, lower: 5, upper: 4}\n"), r"x\.lower \(line 4\): lower 5 is above upper 4"),
        (one("      x: {type: int, lower: 0.5, upper: 4}\n"), "no bound of an int"),
        (one("      x: {type: float, lower: .nan, upper: 4}\n"), "finite number"),
        (one("      x: {type: float, lower: 0, upper: .inf}\n"), "finite number"),
        (one("      x: {type: float, lower: 0, upper: true}\n"), "finite number"),
        (one("      x: {type: float, lower: 2020-01-01, upper: 4}\n"), "it is a date"),
        (one("      x: {type: float, lower: low, upper: 4}\n"), "low is not a number"),
        (one("      x: {type: float, lower: 0, upper: 1.0e+200}\n"), "magnitude out of reach"),
        (one("      x: {type: string, lower: a}\n"), "bounds are for int and float, not for string"),
        (one("      x: {type: string, cardinality: -1}\n"), "whole number"),
        (one("      x: {type: int, nullable: maybe}\n"), r"x\.nullable \(line 4\): it is maybe"),
        (one("      x: {type: int, private_id: 1}\n"), "write true or false"),
        (one("      row_privacy: 7\n      x: {type: int}\n"), r"row_privacy \(line 4\)"),
        (one("      max_ids: 0\n      x: {type: int}\n"), "whole number from 1 on"),
        (one("      max_ids: 2.5\n      x: {type: int}\n"), "whole number from 1 on"),
        (one("      rows: -1\n      x: {type: int}\n"), "whole number from 0 on"),
        (one("      max_ids: 2\n      row_privacy: true\n      x: {type: int}\n"), "with row_privacy it is 1"),
        (one("      max_ids: 2\n      max_contributions: 3\n      x: {type: int}\n"), "differs from max_ids"),
        (one("      max_id: 2\n      x: {type: int}\n"), "no setting of a table.*did you mean max_ids"),
        (one("      x:\n"), "write its type below it"),
        (one("      x: {type: int}\n      X: {type: int}\n"), "two columns for one"),
        ('"": {"": {"": {x: {type: int}}}}\n', "a table needs a name"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message) as caught:
        policy_from_smartnoise(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.long
def test_shared_parts_cannot_grow_without_bound() -> None:
    columns = ", ".join(f"c{i}: &x {{type: int}}" if i == 0 else f"c{i}: *x" for i in range(150))
    tables = ", ".join(f"t{i}: &t {{{columns}}}" if i == 0 else f"t{i}: *t" for i in range(300))
    with pytest.raises(PolicyError, match=r"more than 20,000 columns"):
        policy_from_smartnoise(f"a: {{b: {{{tables}}}}}\n")
    schemas = ", ".join(f"b{i}: &b {{{tables}}}" if i == 0 else f"b{i}: *b" for i in range(300))
    with pytest.raises(PolicyError, match=r"too many keys"):
        policy_from_smartnoise(f"a: {{{schemas}}}\n")


def test_without_pyyaml_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InterfaceError, match="install 'pyyaml>="):
        policy_from_smartnoise(FULL)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "people.yaml"
    file.write_text(FULL, encoding="utf-8")
    assert main(["policy", "import", str(file)]) == 0
    assert capsys.readouterr().out == policy_from_smartnoise(FULL)[0]
    assert main(["policy", "import", str(file), "--dataset", "d", "--epsilon", "1", "--delta", "1e-9", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tables"] == ["PUMS.PUMS", "PUMS.Back log"]
    assert Policy.parse(shown["policy"]).budget.epsilon == 1
    assert main(["policy", "import", str(tmp_path / "none.yaml")]) == 1
    assert "metadata file" in capsys.readouterr().err
    file.write_text("a: {b: {c: {x: {type: int, lower: 2, upper: 1}}}}", encoding="utf-8")
    assert main(["policy", "import", str(file)]) == 1
    assert "a.b.c.x.lower (line 1): lower 2 is above upper 1" in capsys.readouterr().err


def test_yaml_is_read_only_when_it_is_needed() -> None:
    code = "import sys, dpsql.extensions.smartnoise.metadata; print('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.stdout.strip() == "False", done.stderr
