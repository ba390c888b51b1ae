"""Build the tpch_*.parquet files: small invented data of TPC-H's schema, the same on every run.

    python build_tpch.py [folder]

DuckDB's own generator is an extension that is not bundled with its Python package. Distributions follow clause
4.2.3 of the TPC-H specification where a query looks at them (dates, prices, flags, keys, a third of the customers
without an order); texts are short. 150 customers, 1,500 orders, about 6,000 lineitems.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

CUSTOMERS, ORDERS, PARTS, SUPPLIERS = 150, 1_500, 200, 100
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
# Clause 4.2.3: the nations by key, and the region of each.
NATIONS = (
    "ALGERIA ARGENTINA BRAZIL CANADA EGYPT ETHIOPIA FRANCE GERMANY INDIA INDONESIA IRAN IRAQ JAPAN JORDAN KENYA "
    "MOROCCO MOZAMBIQUE PERU CHINA ROMANIA SAUDI_ARABIA VIETNAM RUSSIA UNITED_KINGDOM UNITED_STATES"
).replace("_", "~").split()  # fmt: skip
REGION_OF = (0, 1, 1, 1, 4, 0, 3, 3, 2, 2, 4, 4, 2, 4, 0, 0, 0, 1, 2, 3, 4, 2, 3, 3, 1)
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
TYPES = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
    ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER"),
)
CONTAINERS = (("SM", "MED", "LG", "JUMBO", "WRAP"), ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"))
COLOURS = ("almond", "azure", "forest", "green", "ivory", "lemon", "navy", "plum", "rose", "salmon")
FIRST, LAST, TODAY = (np.datetime64(day) for day in ("1992-01-01", "1998-08-02", "1995-06-17"))

Columns = dict[str, Any]


def _texts(values: Any) -> Any:
    return np.array(list(values), dtype=object)


def _picked(rng: np.random.Generator, *lists: tuple[str, ...], size: int, between: str = " ") -> Any:
    return _texts(between.join(words) for words in zip(*(rng.choice(words, size) for words in lists), strict=True))


def _phones(rng: np.random.Generator, nations: Any) -> Any:
    digits = rng.integers(100, 999, (len(nations), 2))
    return _texts(f"{n + 10}-{a}-{b}-{a + b}" for n, (a, b) in zip(nations, digits, strict=True))


def _retail(part: Any) -> Any:
    """Retail price of a part in cents."""
    return 90_000 + (part // 10) % 20_001 + 100 * (part % 1_000)


def tables(seed: int = 22) -> dict[str, Columns]:
    """Columns of every table by name; those that end in _cents are hundredths."""
    rng = np.random.default_rng(seed)
    region = {"r_regionkey": np.arange(5), "r_name": _texts(REGIONS), "r_comment": _texts("-" * 5)}
    nation = {
        "n_nationkey": np.arange(25),
        "n_name": _texts(name.replace("~", " ") for name in NATIONS),
        "n_regionkey": np.array(REGION_OF),
        "n_comment": _texts("-" * 25),
    }
    key = np.arange(1, SUPPLIERS + 1)
    homes = rng.integers(0, 25, SUPPLIERS)
    supplier = {
        "s_suppkey": key,
        "s_name": _texts(f"Supplier#{k:09d}" for k in key),
        "s_address": _texts(f"{k} Dock Road" for k in key),
        "s_nationkey": homes,
        "s_phone": _phones(rng, homes),
        "s_acctbal_cents": rng.integers(-99_999, 1_000_000, SUPPLIERS),
        "s_comment": _texts("Customer Complaints" if k % 40 == 0 else "-" for k in key),
    }
    parts = np.arange(1, PARTS + 1)
    maker = rng.integers(1, 6, PARTS)
    part = {
        "p_partkey": parts,
        "p_name": _picked(rng, COLOURS, COLOURS, size=PARTS),
        "p_mfgr": _texts(f"Manufacturer#{m}" for m in maker),
        "p_brand": _texts(f"Brand#{m}{n}" for m, n in zip(maker, rng.integers(1, 6, PARTS), strict=True)),
        "p_type": _picked(rng, *TYPES, size=PARTS),
        "p_size": rng.integers(1, 51, PARTS),
        "p_container": _picked(rng, *CONTAINERS, size=PARTS),
        "p_retailprice_cents": _retail(parts),
        "p_comment": _texts("-" * PARTS),
    }
    partsupp = {
        "ps_partkey": np.repeat(parts, 4),
        "ps_suppkey": np.concatenate([_supplier(p, np.arange(4)) for p in parts]),
        "ps_availqty": rng.integers(1, 10_000, 4 * PARTS),
        "ps_supplycost_cents": rng.integers(100, 100_001, 4 * PARTS),
        "ps_comment": _texts("-" * 4 * PARTS),
    }
    customers = np.arange(1, CUSTOMERS + 1)
    homes = rng.integers(0, 25, CUSTOMERS)
    customer = {
        "c_custkey": customers,
        "c_name": _texts(f"Customer#{k:09d}" for k in customers),
        "c_address": _texts(f"{k} Main Street" for k in customers),
        "c_nationkey": homes,
        "c_phone": _phones(rng, homes),
        "c_acctbal_cents": rng.integers(-99_999, 1_000_000, CUSTOMERS),
        "c_mktsegment": _picked(rng, SEGMENTS, size=CUSTOMERS),
        "c_comment": _texts("-" * CUSTOMERS),
    }
    orders, lineitem = _sales(rng, customers)
    return {
        "region": region, "nation": nation, "supplier": supplier, "part": part, "partsupp": partsupp,
        "customer": customer, "orders": orders, "lineitem": lineitem,
    }  # fmt: skip


def _supplier(part: Any, number: Any) -> Any:
    """The four suppliers of a part."""
    return (part + number * (SUPPLIERS // 4 + (part - 1) // SUPPLIERS)) % SUPPLIERS + 1


def _sales(rng: np.random.Generator, customers: Any) -> tuple[Columns, Columns]:
    keys = np.arange(1, ORDERS + 1)
    dates = FIRST + rng.integers(0, (LAST - FIRST).astype(int) + 1, ORDERS)
    lines = rng.integers(1, 8, ORDERS)
    at = np.repeat(np.arange(ORDERS), lines)
    n = len(at)
    parts = rng.integers(1, PARTS + 1, n)
    quantity = rng.integers(1, 51, n)
    discount, tax = rng.integers(0, 11, n), rng.integers(0, 9, n)
    price = quantity * _retail(parts)
    shipped = dates[at] + rng.integers(1, 122, n)
    received = shipped + rng.integers(1, 31, n)
    is_open = shipped > TODAY
    returned = np.where(received <= TODAY, rng.choice(["R", "A"], n), "N")
    open_lines = np.bincount(at, is_open, ORDERS)
    total = np.bincount(at, price * (100 + tax) / 100 * (100 - discount) / 100, ORDERS)
    lineitem = {
        "l_orderkey": keys[at],
        "l_partkey": parts,
        "l_suppkey": _supplier(parts, rng.integers(0, 4, n)),
        "l_linenumber": np.concatenate([np.arange(1, count + 1) for count in lines]),
        "l_quantity_cents": 100 * quantity,
        "l_extendedprice_cents": price,
        "l_discount_cents": discount,
        "l_tax_cents": tax,
        "l_returnflag": _texts(returned),
        "l_linestatus": _texts(np.where(is_open, "O", "F")),
        "l_shipdate": shipped,
        "l_commitdate": dates[at] + rng.integers(30, 91, n),
        "l_receiptdate": received,
        "l_shipinstruct": _picked(rng, INSTRUCTIONS, size=n),
        "l_shipmode": _picked(rng, MODES, size=n),
        "l_comment": _texts("-" * n),
    }
    orders = {
        "o_orderkey": keys,
        "o_custkey": rng.choice(customers[customers % 3 != 0], ORDERS),
        "o_orderstatus": _texts(np.where(open_lines == 0, "F", np.where(open_lines == lines, "O", "P"))),
        "o_totalprice_cents": np.rint(total).astype(np.int64),
        "o_orderdate": dates,
        "o_orderpriority": _picked(rng, PRIORITIES, size=ORDERS),
        "o_clerk": _texts(f"Clerk#{k:09d}" for k in rng.integers(1, 11, ORDERS)),
        "o_shippriority": np.zeros(ORDERS, dtype=np.int64),
        "o_comment": _texts("special requests" if k else "-" for k in rng.random(ORDERS) < 0.05),
    }
    return orders, lineitem


def create(con: duckdb.DuckDBPyConnection) -> None:
    """Create and fill the eight tables in ``con``, with the types of the specification."""
    for name, columns in tables().items():
        # DuckDB reads numpy's microseconds, not its days.
        con.register("made", {c: v.astype("M8[us]") if v.dtype.kind == "M" else v for c, v in columns.items()})
        items = ", ".join(_typed(column, values) for column, values in columns.items())
        con.execute(f"CREATE TABLE {name} AS SELECT {items} FROM made")  # noqa: S608
        con.unregister("made")


def _typed(column: str, values: Any) -> str:
    if column.endswith("_cents"):
        name = column.removesuffix("_cents")
        return f"({column}::DECIMAL(17, 2) / 100)::DECIMAL(15, 2) AS {name}"
    kind = {"M": "DATE", "O": "VARCHAR"}.get(values.dtype.kind, "INTEGER")
    return f"{column}::{kind} AS {column}"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    with duckdb.connect() as con:
        con.execute("SET threads = 1")
        create(con)
        for name in tables():
            con.table(name).write_parquet(str(folder / f"tpch_{name}.parquet"), compression="zstd")
            [(rows,)] = con.execute(f"SELECT count(*) FROM {name}").fetchall()  # noqa: S608
            print(f"{name}: {rows} rows")


if __name__ == "__main__":
    main()
