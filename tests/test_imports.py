"""The rooms of dpsql: who may import whom, who may draw noise, who may spend."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from package_trees import PACKAGE, modules, nodes, parsed

from dpsql.measure.adaptive import AdaptiveJob
from dpsql.measure.job import Job

# What each room may import. A room stands below everything that names it, so the table is a proof
# that dependencies point one way; a new room must be entered here.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "registry": {"common", "errors"},
    "common": {"errors"},
    "free_sql": {"common", "errors"},
    "linalg": {"common", "errors"},
    "privacy": {"common", "errors"},
    "policy": {"common", "errors"},
    "release": {"common", "errors", "free_sql", "privacy", "policy"},
    "workloads": {"common", "errors", "linalg", "policy"},
    "engines": {"common", "errors", "workloads"},
    "reconstruct": {"common", "errors", "linalg", "workloads"},
    "measure": {"common", "errors", "engines", "privacy", "policy", "workloads"},
    "sql": {"common", "errors", "free_sql", "policy", "workloads"},
    "strategies": {"common", "errors", "linalg", "reconstruct", "registry", "workloads"},
    "lower_bounds": {"common", "errors", "linalg", "workloads", "strategies"},
    "planning": {
        *("common", "errors", "linalg", "registry", "privacy", "policy", "reconstruct", "release", "workloads", "sql"),
        *("strategies", "lower_bounds"),
    },
    "running": {
        *("common", "errors", "linalg", "registry", "privacy", "policy", "reconstruct", "release", "workloads"),
        *("measure", "sql", "strategies", "planning"),
    },
    # Released noise drawn again by its law, from public seeds: above running/, so that measure/ reaches none of it.
    "replicates": {
        *("common", "errors", "registry", "privacy", "reconstruct", "release", "workloads", "sql", "running"),
    },
    "driver": {
        *("common", "errors", "free_sql", "registry", "privacy", "policy", "release", "measure", "sql", "planning"),
        *("running", "replicates"),
    },
    "surfaces": {
        *("__init__", "common", "errors", "registry", "privacy", "policy", "release", "sql", "planning", "driver"),
    },
    "__main__": {"surfaces"},
    # The composition root and the public faces: they alone of the kernel may import extensions.
    "composition": {"driver", "errors", "planning", "registry"},
    "__init__": {"composition", "driver", "errors", "planning", "policy", "registry", "release"},
    "bounds": {"composition", "lower_bounds"},
    "strategy": {"strategies"},
    "workload": {"composition", "workloads"},
    "local": set(),
}
FACES = {
    *("__init__.py", "composition.py", "bounds.py", "strategy.py", "workload.py", "local/device.py"),
    *("surfaces/plots.py", "surfaces/report.py"),
}
"""Modules of the kernel that may import extensions."""
KERNEL = ROOMS.keys() - {"composition", "bounds", "strategy", "workload", "local", "__main__"}
# An extension imports the kernel by rule, but for engines (Spark is one), and of other extensions those that are named
# here, by their public face.
EXTENSIONS: dict[str, set[str]] = {
    "advice": {"adaptive", "discovery"},
    "papers": {"adaptive"},
    "reports": {"advice", "periods"},
    "synthetic": {"adaptive"},
}
ALLOWED_ON_A_DEVICE = {
    *("numpy", "scipy"),
    *("__future__", "collections", "dataclasses", "datetime", "decimal", "enum", "functools", "math", "typing"),
}
CORE = {"duckdb", "sqlglot", "numpy", "scipy"}
# Optional packages may be imported in the rooms that show results (yaml: that read policies; pyspark: that read
# tables), inside functions only.
OPTIONAL = {
    *("pandas", "polars", "pyarrow", "matplotlib", "IPython", "traitlets", "yaml", "pyspark"),
    *("pygwire", "mcp", "uvicorn"),
}


def room_at(parts: tuple[str, ...]) -> str:
    """The room of a module by the parts of its path: a folder or file of the root, or an extension."""
    if parts[0] != "extensions":
        return parts[0]
    if parts[1:3] == ("local", "device"):
        return "device"
    return "/".join(parts[:2])


def files() -> list[tuple[str, Path]]:
    """(room, path) of every module."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(room_at(path.relative_to(PACKAGE).with_suffix("").parts), path) for path in paths]


@cache
def sources() -> list[tuple[str, Path, ast.Module]]:
    """(room, path, tree) of every module."""
    trees = dict(modules())
    return [(room, path, trees[path]) for room, path in files()]


@cache
def imported(tree: ast.AST, path: Path) -> tuple[str, ...]:
    """Dotted names of what a module imports, under TYPE_CHECKING too, relative imports resolved."""
    return tuple(_imported(tree, path))


def _imported(tree: ast.AST, path: Path) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = ("dpsql", *path.relative_to(PACKAGE).parent.parts)
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@cache
def room_of(name: str) -> str | None:
    """The room that a dotted name belongs to, None where it is no module of dpsql."""
    parts = name.split(".")
    if parts[0] != "dpsql":
        return None
    if parts[1:2] == ["extensions"]:
        return room_at(tuple(parts[1:]))
    if len(parts) > 1 and ((PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()):
        return parts[1]
    return "__init__"


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """(name or attribute called, node) of every call."""
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                yield function.attr, node
            elif isinstance(function, ast.Name):
                yield function.id, node


def test_the_table_has_no_circle() -> None:
    placed: set[str] = set()
    while len(placed) < len(ROOMS):
        free = {room for room, needs in ROOMS.items() if room not in placed and needs <= placed}
        assert free, f"these rooms import each other in a circle: {sorted(set(ROOMS) - placed)}"
        placed |= free


KERNEL_ROOMS = sorted({room for room, _ in files() if "/" not in room and room not in ("device", "extensions")})


def test_the_kernel_imports_no_extension() -> None:
    """Not even inside a function, nor under TYPE_CHECKING."""
    for room, path, tree in sources():
        where = path.relative_to(PACKAGE).as_posix()
        if room in KERNEL_ROOMS and where not in FACES:
            named = [name for name in imported(tree, path) if name.startswith("dpsql.extensions")]
            assert named == [], where
            texts = [
                node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            loaded = [text for text in texts if text.startswith("dpsql.extensions.") and " " not in text]
            assert loaded == [], where


def test_an_extension_imports_the_kernel_and_few_others() -> None:
    for room, path, tree in sources():
        if room.startswith("extensions/") or room == "device":
            own = "local" if room == "device" else room.removeprefix("extensions/")
            for name in imported(tree, path):
                target = room_of(name)
                if target is None or target in (room, f"extensions/{own}", "device"):
                    continue
                if target.startswith("extensions/"):
                    assert target.removeprefix("extensions/") in EXTENSIONS.get(own, set()), f"{path}: {name}"
                else:
                    assert target in KERNEL, f"{path}: {name}"
                    assert target != "engines" or own == "spark", f"{path}: {name}"


def test_extensions_name_each_other_in_no_circle() -> None:
    placed: set[str] = set()
    while len(placed) < len(EXTENSIONS):
        free = {
            name for name, needs in EXTENSIONS.items() if name not in placed and needs & EXTENSIONS.keys() <= placed
        }
        assert free
        placed |= free


@pytest.mark.parametrize("room", KERNEL_ROOMS)
def test_a_room_imports_only_what_is_below_it(room: str) -> None:
    assert room in ROOMS, f"{room} is a new room: say in ROOMS what it may import"
    for _, path, tree in (source for source in sources() if source[0] == room):
        for name in imported(tree, path):
            target = room_of(name)
            if target is not None and target != room and not target.startswith("extensions") and target != "device":
                assert target in ROOMS[room], f"{path.relative_to(PACKAGE)} imports {name}"


def test_no_module_no_room_and_no_folder_imports_itself_in_a_circle() -> None:
    """Imports under TYPE_CHECKING and inside functions count."""
    at = PACKAGE.parent / "benchmarks" / "house.py"
    spec = importlib.util.spec_from_file_location("house", at)
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    sys.modules["house"] = house  # dataclasses look a class's module up there
    spec.loader.exec_module(house)
    found = house.house_of(at.parent.parent, parsed)
    assert len(found.texts) > 300
    for edges in (found.imports, found.between(found.room), found.between(found.folder)):
        assert house.circles(edges) == []
    assert house.circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c"]]


def test_only_measure_reaches_an_engine() -> None:
    rooms = {room for room, path, tree in sources() for name in imported(tree, path) if room_of(name) == "engines"}
    assert rooms - {"engines"} == {"measure", "extensions/spark"}


def test_only_measure_draws_noise_and_spends() -> None:
    drawn, spent, recorded = set(), set(), set()
    for room, path, tree in sources():
        for name, node in calls(tree):
            if name in ("sample", "sample_from", "offsets_from"):
                drawn.add(room)
            if name == "charge" and isinstance(node.func, ast.Attribute):
                spent.add(room)
            if name == "record" and isinstance(node.func, ast.Attribute):
                recorded.add(room)
        for name in imported(tree, path):
            if name.endswith((".sample_from", ".offsets_from", ".urandom")) or name.split(".")[0] == "secrets":
                drawn.add(room)
    assert "measure" in drawn
    # local/device/ draws on a person's own device, for a record that the caller hands over.
    assert drawn <= {"measure", "privacy", "device"}
    assert spent == {"measure"}
    assert recorded == {"measure"}


def test_the_room_that_draws_on_a_device_reaches_no_database() -> None:
    """local/device/ draws and charges nobody, which is right only where no private table can be read."""
    drawing = set()
    for _, path, tree in (source for source in sources() if source[0] == "device"):
        for name in imported(tree, path):
            assert room_of(name) in (None, "device", "errors", "policy", "privacy"), name
            if room_of(name) == "privacy":  # of the room that also holds the ledger: the law and exact numbers
                assert name.startswith(("dpsql.privacy.response.", "dpsql.privacy.amounts.")), name
            top = name.split(".")[0]
            assert top == "dpsql" or top in ALLOWED_ON_A_DEVICE, f"{path.relative_to(PACKAGE)} imports {name}"
        for name, _ in calls(tree):
            assert name not in ("open", "exec", "eval", "connect", "__import__", "import_module"), path
            if name in ("sample", "offsets_from"):
                drawing.add(path.name)
    assert drawing == {"local.py"}


def test_questions_to_a_local_release_use_only_the_text_of_scans() -> None:
    for room, path, tree in sources():
        if room != "extensions/local" or path.name in ("local_release.py", "local_questions.py"):
            continue
        for name in imported(tree, path):
            if room_of(name) == "measure":
                texts = ("scan_sql", "region_sql", "from_sql")
                assert name.startswith(tuple(f"dpsql.measure.{text}." for text in texts)), name
            if room_of(name) == "privacy":
                assert name.startswith(("dpsql.privacy.response.", "dpsql.privacy.amounts.")), name


def test_lies_are_drawn_after_the_charge_and_before_the_rows_are_read() -> None:
    assert steps_of("local.py", "observe", "opened _count sample _observe") == "opened _count sample _observe"


def test_noise_is_drawn_once_and_before_the_scan() -> None:
    assert steps_of("job.py", "observe", "sample observed") == "sample observed"
    assert steps_of("cells.py", "observed", "sample cells_of") == "cells_of"


def test_what_a_mechanism_checks_before_a_charge() -> None:
    for file, steps in (
        ("job.py", "check_schemas check_sensitivity check_periods _check_over"),
        ("sparse.py", "check_schemas check_noise check_periods"),
    ):
        assert steps_of(file, "check", steps) == steps
    assert AdaptiveJob.check is Job.check  # which has what rounds have in place of one sensitivity


def test_only_the_room_measure_has_mechanisms() -> None:
    for room, path, tree in sources():
        observing = [node.name for node in ast.walk(tree) if getattr(node, "name", "") == "observe"]
        assert room == "measure" or not observing, path


def test_every_mechanism_is_checked_then_charged_then_observed_then_recorded_in_one_place() -> None:
    order = "refuse_failed check charge shielded noting_failure record"
    assert steps_of("__init__.py", "measure", order) == order
    # Nothing else charges for what is measured, or records it; a part of delta is charged by itself.
    for called, where in (("charge", {"__init__.py", "discovery.py"}), ("record", {"__init__.py"})):
        files = {
            path.name for room, path, tree in sources() if room == "measure" for c, _ in calls(tree) if c == called
        }
        assert files == where


def steps_of(file: str, function: str, steps: str) -> str:
    """Those of the ``steps`` that a function of the room ``measure`` calls, in order.

    By where a call ends: what is an argument of another call runs before it.
    """
    (tree,) = [tree for room, path, tree in sources() if room == "measure" and path.name == file]
    (node,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function and n.body[1:]]
    order = sorted(calls(node), key=lambda c: (c[1].end_lineno, c[1].end_col_offset))
    return " ".join(name for name, _ in order if name in steps.split())


def test_what_sees_rows_or_draws_noise_reaches_no_replicate() -> None:
    """Replicates are drawn from a public seed, which protects nobody."""
    for start in ("measure", "privacy", "engines"):
        reached, pending = set(), {start}
        while pending:
            room = pending.pop()
            reached.add(room)
            pending |= ROOMS[room] - reached
        assert "replicates" not in reached
    used = {room for room, _, tree in sources() for name, _ in calls(tree) if name == "Generator"}
    assert used == {"replicates"}


def test_no_generator_but_seeded_ones_over_public_numbers() -> None:
    for room, path, tree in sources():
        where = str(path.relative_to(PACKAGE))
        for name in imported(tree, path):
            assert name.split(".")[0] != "random", where
            assert not name.startswith(("numpy.random", "scipy.stats")), where
        for node in nodes(tree):
            if isinstance(node, ast.Attribute) and node.attr == "random" and isinstance(node.value, ast.Name):
                # On public numbers only: projections, hashes and starting points under a fixed seed, and
                # the random workloads of the papers under the caller's, and replicates of what was released.
                rooms = ("linalg", "strategies", "lower_bounds", "extensions/adaptive", "extensions/papers")
                public = (
                    room in rooms
                    or where
                    in (
                        "linalg",
                        "strategies",
                        "lower_bounds",
                        "extensions/adaptive",
                        "extensions/papers",
                    )
                    or where
                    in (
                        "extensions/papers/random_families.py",
                        "replicates/noise.py",
                    )
                )
                assert node.value.id not in ("np", "numpy") or public, f"numpy's generator in {where}"
        for name, call in calls(tree):
            assert name not in ("rvs", "shuffle", "seed"), where
            if name == "default_rng":
                assert len(call.args) == 1, f"an unseeded generator in {where}"
                seed = call.args[0]
                fixed = isinstance(seed, ast.Name) and seed.id.endswith("SEED")
                assert fixed or where == "extensions/papers/random_families.py", (
                    f"a generator without a fixed seed in {where}"
                )


def test_the_core_needs_four_packages() -> None:
    for room, path, tree in sources():
        for name in imported(tree, path):
            top = name.split(".")[0]
            if top == "dpsql" or top in sys.stdlib_module_names or top in CORE:
                continue
            if name == "typing_extensions.TypeIs":  # for the checker alone, which has it: the next test blocks it
                continue
            assert top in OPTIONAL, f"{path.relative_to(PACKAGE)} imports {name}"
            shown = ("surfaces", "driver", "release", "planning", "extensions/reports", "extensions/notebook")
            shown = (*shown, "extensions/advice")
            rooms = {
                "yaml": ("extensions/smartnoise",),
                "pyspark": ("extensions/spark",),
                "pyarrow": (*shown, "extensions/server", "extensions/spark"),
                **dict.fromkeys(("pygwire", "mcp", "uvicorn"), ("extensions/server",)),
            }.get(top, shown)
            assert room in rooms, f"{path.relative_to(PACKAGE)} imports {name}"
        for node in tree.body:  # at the top of a module an optional package would become a core one
            if isinstance(node, ast.Import | ast.ImportFrom) and room not in (
                "surfaces",
                "extensions/server",
                "extensions/notebook",
            ):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not {name.split(".")[0] for name in names} & OPTIONAL, path


BLOCKED = """
import importlib.abc, pkgutil, sys

class Block(importlib.abc.MetaPathFinder):
    allowed = {"duckdb", "_duckdb", "sqlglot", "numpy", "scipy", "dpsql", "adbc_driver_duckdb"}
    allowed |= set(sys.stdlib_module_names)
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in self.allowed and not top.startswith("_"):
            raise ModuleNotFoundError(name, name=name)
        return None

sys.meta_path.insert(0, Block())
OF_EXTRAS = (["extensions", "server"], ["extensions", "notebook"])
import dpsql
for module in pkgutil.walk_packages(dpsql.__path__, "dpsql."):
    parts = module.name.split(".")[1:]
    if parts[0] not in ("surfaces", "__main__") and parts[:2] not in OF_EXTRAS:
        __import__(module.name)
print(sorted({name.partition(".")[0] for name in sys.modules} - Block.allowed - {"__main__"}))
"""


def test_the_core_runs_with_everything_else_blocked() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", BLOCKED], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    strangers = {name for name in ast.literal_eval(done.stdout) if not name.startswith("_")}
    assert strangers <= {"cython_runtime"}  # a name that compiled modules of scipy register
