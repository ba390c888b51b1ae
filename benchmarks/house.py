"""Claim: the house stays small enough to read: no circles, few rooms, one protocol for strategies.

    python benchmarks/house.py [checkout] [--against checkout]
    python benchmarks/house.py --write           and writes figures into benchmarks/results/house.json
    python benchmarks/house.py --gate            fails where a figure of benchmarks/house.json has risen
    python benchmarks/house.py --gate --write    and writes those that fell, and no others, into it

Counts, from the text of dpsql/ alone: nothing is imported or run. A room is a folder of the package, with all that is
inside, or a file beside them other than `__init__`; imports under TYPE_CHECKING and inside functions count like others.
Times of tests and of planning are not counted here (`make test`, `.ci/run`, benchmarks/batch_error.py print them).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

PACKAGE = "dpsql"
_FACES = ("bounds", "strategy", "workload", "local", "local.device", "surfaces.plots", "surfaces.report")
ROOT = frozenset(f"{PACKAGE}.{name}" for name in ("composition", *_FACES))
"""The composition root and the public faces: they stand above the extensions."""


@dataclass(frozen=True)
class House:
    """The modules of a checkout: their text, their trees, and for each the modules that it imports."""

    texts: Mapping[str, str]
    trees: Mapping[str, ast.Module]
    packages: frozenset[str]
    imports: Mapping[str, frozenset[str]]

    def folder(self, module: str) -> str:
        """The innermost folder of a module, by its package's name; a file of the root is one of its own."""
        if module in ROOT:
            return f"{PACKAGE}.composition"
        if module in self.packages:
            return module
        parent = module.rpartition(".")[0]
        return module if parent == PACKAGE else parent

    def room(self, module: str) -> str:
        """The folder of the root that a module is in, or the file of the root that it is."""
        if module in ROOT:
            return f"{PACKAGE}.composition"
        parts = module.split(".")
        return ".".join(parts[: 3 if parts[1:2] == ["extensions"] else 2])

    def between(self, place: Callable[[str], str]) -> dict[str, set[str]]:
        """The rooms (or folders) that each of them imports."""
        inside = [module for module in self.texts if module != PACKAGE]
        found: dict[str, set[str]] = {place(module): set() for module in inside}
        for module in inside:
            others = {place(other) for other in self.imports[module] if other != PACKAGE}
            found[place(module)] |= others - {place(module)}
        return found


def house_of(checkout: Path, parsed: Callable[[Path], ast.Module] | None = None) -> House:
    """The package under ``checkout``; ``parsed``: the tree of a file, where somebody has it."""
    files = sorted((checkout / PACKAGE).rglob("*.py"))
    texts, trees, packages = {}, {}, set()
    for file in files:
        parts = file.relative_to(checkout).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        texts[name] = file.read_text(encoding="utf-8")
        trees[name] = ast.parse(texts[name]) if parsed is None else parsed(file)
        if parts[-1] == "__init__":
            packages.add(name)
    imports = {
        name: frozenset(found for found in _imported(name, tree, texts, packages) if found != name)
        for name, tree in trees.items()
    }
    return House(texts, trees, frozenset(packages), imports)


def _imported(name: str, tree: ast.Module, known: Mapping[str, str], packages: Iterable[str]) -> Iterator[str]:
    """The modules of the package that a module imports; of ``from a import b`` the module b, if it is one."""
    package = name if name in packages else name.rpartition(".")[0]
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found = f"{base}.{alias.name}"
                if found in known:
                    yield found
                elif base in known:
                    yield base


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements, with what is between, such as handlers and cases, without expressions: they hold most nodes."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += [part for part in ast.iter_child_nodes(node) if not isinstance(part, ast.expr)]


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of more than one node that reach each other (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            members = stack[at:]
            del stack[at:]
            if len(members) > 1:
                found.append(sorted(members))

    for node in edges:
        if node not in number:
            visit(node)
    return found


def strategies(house: House) -> tuple[list[str], list[str]]:
    """The classes that stand for a strategy, and those of them that do not inherit the protocol ``Strategy``."""
    classes = {
        node.name: node
        for module, tree in house.trees.items()
        if module.startswith(f"{PACKAGE}.strategy")
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and (node.name == "Mwem" or node.name.endswith("Strategy"))
    }
    bases = {name: {ast.unparse(base).split("[")[0] for base in node.bases} for name, node in classes.items()}
    protocol = next((name for name, held in bases.items() if "Protocol" in held), None)

    def inherits(name: str) -> bool:
        return name == protocol or any(inherits(base) for base in bases.get(name, ()) if base in classes)

    return sorted(classes), sorted(name for name in classes if protocol is None or not inherits(name))


def figures(house: House) -> dict[str, int]:
    """The rows of the table."""
    rooms, folders = house.between(house.room), house.between(house.folder)
    imported_by: dict[str, set[str]] = defaultdict(set)
    for module, others in house.imports.items():
        for other in others:
            imported_by[other].add(module)
    return {
        "lines in dpsql/": sum(text.count("\n") for text in house.texts.values()),
        "modules": len(house.texts),
        "modules at the root": sum(name.count(".") == 1 and name not in house.packages for name in house.texts) + 1,
        "longest module, lines": max(text.count("\n") for text in house.texts.values()),
        "modules past 400 lines": sum(text.count("\n") > 400 for text in house.texts.values()),
        "circles of modules": len(circles(house.imports)),
        "circles of rooms": len(circles(rooms)),
        "rooms": len(rooms),
        "imports between rooms": sum(map(len, rooms.values())),
        "folders, and files of the root": len(folders),
        "imports between these": sum(map(len, folders.values())),
        "circles of these": len(circles(folders)),
        "strategy classes that share no protocol": len(strategies(house)[1]),
        "Any": sum(len(re.findall(r"\bAny\b", text)) for text in house.texts.values()),
        "modules with one importer": sum(len(imported_by[name]) == 1 for name in house.texts),
    }


KINDS = frozenset({
    *("Compiled", "Structured", "Lined", "Boxes", "SparseCounts"),
    *("MatrixStrategy", "MarginalStrategy", "StructuredStrategy", "LevelStrategy", "RangeStrategy", "LinedStrategy"),
    *("BoxStrategy", "AdaptiveMarginals", "Mwem", "SparseHistogram", "CombinedPlan", "AdaptivePlan", "SparsePlan"),
    *("Job", "AdaptiveJob", "SparseJob", "RangeTable", "RangeKey", "RangeErrors", "LineAnswers", "Marginals"),
})  # fmt: skip
"""Classes of which code should not ask which one a value is: batches, strategies, plans, jobs, tables of ranges."""
PRIVATE_WORDS = frozenset({
    *("held", "found", "known", "asked", "apart", "kept", "moved", "own", "wanted", "said", "alike", "told"),
})  # fmt: skip
"""Everyday words that had become names with a meaning of their own."""
_TUNED = ("strategies", "workloads", "planning", "reconstruct")
_PARAMETERS, _LONG = 8, 40
_LOWER_ONLY = Path(__file__).with_suffix(".json")


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def _code_lines(function: Function) -> int:
    """The lines of a function below its docstring."""
    first = function.body[1] if ast.get_docstring(function) and len(function.body) > 1 else function.body[0]
    return (function.end_lineno or 0) - first.lineno + 1


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a module declares: functions, classes, parameters, and fields of classes."""
    for node in nodes:
        if isinstance(node, Function):
            yield node.name
            yield from (a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        elif isinstance(node, ast.ClassDef):
            yield node.name
            yield from (
                f.target.id for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)
            )


def _asks_for_kind(nodes: Iterable[ast.AST]) -> int:
    """How often a module asks which of ``KINDS`` a value is."""
    count = 0
    for node in nodes:
        asked: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            asked = node.args[1]
        elif isinstance(node, ast.MatchClass):
            asked = node.cls
        if asked is not None:
            count += any(isinstance(part, ast.Name) and part.id in KINDS for part in ast.walk(asked))
    return count


def _constants(tree: ast.Module) -> int:
    """How many numbers a module sets at its top."""
    count = 0
    for node in tree.body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        count += sum(
            isinstance(one, ast.Constant | ast.BinOp | ast.UnaryOp)
            and any(isinstance(part, ast.Constant) and type(part.value) in (int, float) for part in ast.walk(one))
            and not any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in ast.walk(one))
            for one in values
        )
    return count


def _branches(checkout: Path) -> int:
    """What ruff counts as too many branches, returns, arguments or statements of a function."""
    rules = "C901,PLR0911,PLR0912,PLR0913,PLR0915"
    command = [sys.executable, "-m", "ruff", "check", "--select", rules, "--output-format", "concise", "--exit-zero"]
    done = subprocess.run([*command, PACKAGE], cwd=checkout, capture_output=True, text=True, check=True)
    return sum(": C901 " in line or ": PLR09" in line for line in done.stdout.splitlines())


def gate_figures(house: House, checkout: Path) -> dict[str, int]:
    """The figures that may only fall."""
    lines = {name: text.count("\n") for name, text in house.texts.items()}
    extensions: dict[str, int] = defaultdict(int)
    kernel = {name for name in house.texts if not name.startswith(f"{PACKAGE}.extensions") and name not in ROOT}
    for name in house.texts.keys() - kernel - ROOT:
        extensions[(*name.split("."), "__init__")[2]] += lines[name]
    rooms = {house.room(name) for name in kernel} - {PACKAGE, f"{PACKAGE}.__main__"}
    tuned = [t for name, t in house.trees.items() if name.split(".")[1:2] and name.split(".")[1] in _TUNED]
    nodes = [node for tree in house.trees.values() for node in ast.walk(tree)]
    every = [node for node in nodes if isinstance(node, Function)]
    text = "\n".join(house.texts.values())
    words = [name.strip("_").lower().split("_") for name in _names(nodes)]
    return {
        "lines, kernel": sum(lines[name] for name in kernel),
        "lines, all": sum(lines.values()),
        **{f"lines, extension {name}": count for name, count in sorted(extensions.items()) if name != "__init__"},
        "modules": len(house.texts),
        "rooms of the kernel": len(rooms),
        "imports from kernel to extensions": sum(
            other.startswith(f"{PACKAGE}.extensions") for name in kernel - {PACKAGE} for other in house.imports[name]
        ),
        "circles": len(circles(house.imports)) + len(circles(house.between(house.room))),
        f"functions over {_LONG} lines": sum(_code_lines(function) > _LONG for function in every),
        "functions with too many branches, returns, arguments or statements": _branches(checkout),
        f"functions with {_PARAMETERS} parameters or more": sum(
            len([*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]) >= _PARAMETERS for f in every
        ),
        "isinstance on kinds": _asks_for_kind(nodes),
        "tuned constants": sum(map(_constants, tuned)),
        "assert": sum(isinstance(node, ast.Assert) for node in nodes),
        "type: ignore": text.count("# type: ignore"),
        "noqa": text.count("# noqa"),
        "fmt: skip": text.count("# fmt: skip"),
        "names with a private word": sum(any(word in PRIVATE_WORDS for word in name) for name in words),
        "files at the root of tests/": sum(1 for file in (checkout / "tests").glob("*.*") if file.is_file()),
    }


def gate(house: House, checkout: Path, *, write: bool) -> int:
    """Hold the figures to those that were reached before; 1 where one has risen. ``write`` keeps those that fell."""
    found, reached = gate_figures(house, checkout), json.loads(_LOWER_ONLY.read_text(encoding="utf-8"))
    risen = {name: value for name, value in found.items() if value > reached.get(name, value if write else -1)}
    fallen = {name: value for name, value in found.items() if value < reached.get(name, value)}
    for name, value in risen.items():
        print(f"risen: {name}: {value:,}, at most {reached.get(name, 0):,}")
    for name, value in fallen.items():
        print(
            f"fallen: {name}: {value:,}, was {reached.get(name, value):,}"
            + ("" if write else "; write it down: --write")
        )
    if write:
        kept = {name: min(value, reached.get(name, value)) for name, value in found.items()}
        _LOWER_ONLY.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 1 if risen else 0


def _record(counts: Mapping[str, int]) -> None:
    """Write the figures that have a goal."""
    from record import Figure, requested, write  # where this file is imported as a module, record is not beside it

    requested(sys.argv)
    lines, uses, single = (counts[name] for name in ("lines in dpsql/", "Any", "modules with one importer"))
    modules, rooms = counts["circles of modules"], counts["circles of rooms"]
    found = [
        Figure("house-lines", "lines in dpsql/", f"{lines:,}", "50,000", lines <= 50_000),
        Figure(
            "house-circles",
            "circular imports of modules; of rooms (packages of dpsql)",
            f"{modules}; {rooms}",
            "0; 0",
            modules + rooms == 0,
        ),
        Figure("house-any", "uses of Any", f"{uses}", "250", uses <= 250),
        Figure("house-importers", "modules that only one module imports", f"{single}", "75", single <= 75),
    ]
    write("house", found)


def main() -> None:
    """Print the figures, and below them what the circles and the strategies without a protocol are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--against", type=Path, help="an older checkout, for a second column")
    parser.add_argument("--gate", action="store_true", help="fail where a figure has risen")
    parser.add_argument("--write", action="store_true", help="keep the figures; with --gate those that fell")
    given = parser.parse_args()
    now = house_of(given.checkout)
    if given.gate:
        sys.exit(gate(now, given.checkout, write=given.write))
    columns = [figures(house_of(given.against))] if given.against else []
    columns.append(figures(now))
    if given.write:
        _record(columns[-1])
    for name in columns[0]:
        print(f"{name:<42}" + "".join(f"{column[name]:>9,}" for column in columns))
    for what, edges in (
        ("modules", now.imports),
        ("rooms", now.between(now.room)),
        ("folders", now.between(now.folder)),
    ):
        for members in circles(edges):
            print(f"circle of {what}: {', '.join(members)}")
    apart = strategies(now)[1]
    if apart:
        print("strategies without the protocol:", ", ".join(apart))


if __name__ == "__main__":
    main()
