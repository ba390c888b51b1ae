"""The JSON Schema of the policy is what its generator writes; it accepts every policy here, and no misspelt key."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from snippets import snippets

from dpsql import Policy
from dpsql.errors import PolicyError

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "policy.schema.json"
WHOLE = (r"^dataset = ", r"^\[budget\]", r"^\[tables\.")
LEFT_OUT = {".venv", ".git", "build", "dist", "site", "demo", "tutorial"}


@cache
def generator() -> Any:
    spec = importlib.util.spec_from_file_location("policy_schema", ROOT / "docs" / "policy_schema.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def validator() -> Draft7Validator:
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft7Validator.check_schema(found)
    return Draft7Validator(found)


def policies() -> dict[str, str]:
    """Every policy of the repository: files, and blocks of pages that are whole policies."""
    texts = {}
    for file in sorted(ROOT.rglob("*.toml")):
        place = file.relative_to(ROOT)
        if not LEFT_OUT & set(place.parts) and place.name != "pyproject.toml":
            texts[str(place)] = file.read_text(encoding="utf-8")
    for page in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]):
        for block in snippets(page.read_text(encoding="utf-8")):
            if block.language == "toml" and all(re.search(begins, block.text, re.MULTILINE) for begins in WHOLE):
                texts[f"{page.relative_to(ROOT)}:{block.line}"] = block.text
    return texts


POLICIES = policies()


def as_json(toml: str) -> Any:
    """A policy as an editor shows it to a schema: dates are strings."""
    return json.loads(json.dumps(tomllib.loads(toml), default=lambda moment: moment.isoformat()))


def test_the_file_is_what_the_generator_writes() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == generator().text(), "run `make policy-schema`"


def test_there_are_policies_of_each_kind() -> None:
    assert len(POLICIES) > 8
    assert any(name.startswith("docs/") for name in POLICIES)
    keys = {key for text in POLICIES.values() for table in as_json(text)["tables"].values() for key in table}
    assert {"unit", "max_rows_per_unit", "public", "key", "references", "columns"} <= keys


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_the_repository_is_accepted(name: str) -> None:
    assert [error.message for error in validator().iter_errors(as_json(POLICIES[name]))] == []


EVERY_KEY = """
dataset = "every-key-1"
database = "visits.duckdb"
anchor = "anchor"
[budget]
epsilon = 4.0
delta = 1e-9
pure_epsilon = 0
local_epsilon = 1
discovery_delta = 5e-10
max_epsilon_per_release = 1
max_local_epsilon_per_release = 0.5
losses = 0.02
approval = true
private_releases = false
[tables.visits]
unit = "patient"
max_rows_per_unit = 5
at_most = [{ rows = 1, groups = 3, per = "month(day)" }, { sum = "cost", lower = 0, upper = 20.5, per = "ward" }]
expected_rows = 1000
minimum = 10
rows_public = false
public = false
source = "visits.csv"
references = { ward = "wards.ward" }
periods = { column = "day", every = "1 month", first = 2024-01-01, wait = 3 }
max_periods_per_unit = 2
largest_unit = 400
[tables.visits.columns]
patient = { type = "INTEGER", public = false }
ward = { values = [1, 2], other = true, nulls = false, type = "INTEGER" }
state = { values = ["NY", "NJ"], other = "(other)", type = "VARCHAR" }
cost = { lower = 0, upper = 10.5, step = 0.5, type = "DOUBLE" }
day = { lower = 2024-01-01, upper = 2024-12-31, type = "DATE" }
word = { groups = "discover", type = "VARCHAR" }
[tables.wards]
public = true
key = ["ward"]
source = "wards.parquet"
[tables.counted]
counts = "people"
[views.recent]
sql = "SELECT * FROM visits WHERE day >= DATE '2024-06-01'"
"""


def objects(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all keys of a policy that are settings, not names that the custodian chose."""
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from objects(part, (*path, str(i)))
    if not isinstance(value, dict):
        return
    names = path in {("tables",), ("views",)} or path[2:] in {("columns",), ("references",)}
    for key, part in value.items():
        if not names:
            yield (*path, key)
        yield from objects(part, (*path, key))


SETTINGS = list(objects(as_json(EVERY_KEY)))


def test_a_policy_with_every_key_but_rho_is_accepted() -> None:
    Policy.parse(EVERY_KEY)
    assert validator().is_valid(as_json(EVERY_KEY))
    last = {(path[-2] if path[-1].isdigit() else path[-1]) for path in SETTINGS}
    wanted = {key for sentences in generator().SENTENCES.values() for key in sentences}
    assert wanted - last == {"rho", "max_rho_per_release"}
    assert validator().is_valid(as_json('dataset = "a"\n[budget]\nrho = 0.1\n[tables.t]\nunit = "row"'))


@pytest.mark.parametrize("path", SETTINGS, ids=".".join)
def test_a_misspelt_key_is_refused(path: tuple[str, ...]) -> None:
    document = copy.deepcopy(as_json(EVERY_KEY))
    place = document
    for step in path[:-1]:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[path[-1] + "x"] = place.pop(path[-1])
    assert not validator().is_valid(document)


@pytest.mark.parametrize(
    ("of", "to"),
    [
        ("epsilon = 4.0", 'epsilon = "4.0"'),
        ("epsilon = 4.0", "epsilon = 4.0\nrho = 0.1"),
        ("max_rows_per_unit = 5", "max_rows_per_unit = 5.5"),
        ("max_rows_per_unit = 5", "max_rows_per_unit = 0"),
        ("nulls = false", 'nulls = "no"'),
        ("lower = 0, upper", "upper"),
        ('"discover"', '"find"'),
        ('key = ["ward"]', 'key = "ward"'),
        ('"wards.ward"', '"ward"'),
        ('per = "month(day)"', "per = 1"),
        ('counts = "people"', "minimum = 5"),
        ("lower = 2024-01-01", 'lower = "first"'),
        ("wait = 3", "wait = 400"),
    ],
)
def test_what_dpsql_refuses_for_its_type_is_refused(of: str, to: str) -> None:
    assert of in EVERY_KEY
    changed = EVERY_KEY.replace(of, to)
    assert not validator().is_valid(as_json(changed))
    with pytest.raises(PolicyError):
        Policy.parse(changed)
