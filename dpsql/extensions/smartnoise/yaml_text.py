"""SmartNoise's YAML read safely: values, the line of every key, and refusals that name their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpsql.common.extras import install_command
from dpsql.errors import InterfaceError, PolicyError
from dpsql.policy.values import kind_of

if TYPE_CHECKING:
    import yaml

MAX_TEXT = 2_000_000
MAX_COLUMNS = 20_000
_DEPTH = 5  # collection, schema, table, column, attribute


@dataclass(frozen=True)
class Place:
    """Where something stands: the keys that lead to it, and its line where the text tells it."""

    document: Document
    path: tuple[object, ...]

    def refuse(self, reason: str) -> PolicyError:
        shown_path = ".".join(str(part) if part != "" else '""' for part in self.path)
        line = self.document.lines.get(self.path)
        place = "" if line is None else f" (line {line})"
        return PolicyError(f"SmartNoise metadata, {one_line(shown_path) or 'top'}{place}: {reason}")

    def under(self, key: object) -> Place:
        return Place(self.document, (*self.path, key))


@dataclass(frozen=True)
class Document:
    """What YAML says, and in which line each key of it stands."""

    value: object
    lines: Mapping[tuple[object, ...], int]

    def at(self, *path: object) -> Place:
        return Place(self, path)


def read_yaml(text: str) -> Document:
    """What ``text`` says, by YAML's safe loader, which makes plain values only.

    Raises InterfaceError where PyYAML is missing, PolicyError with the line where the text is no YAML, too long,
    or has a key twice.
    """
    try:
        import yaml
    except ImportError:
        raise InterfaceError(f"YAML needs PyYAML; install it with: {install_command('yaml')}") from None
    if len(text) > MAX_TEXT:
        raise PolicyError(f"SmartNoise metadata: the text has {len(text):,} characters, at most {MAX_TEXT:,} are read")
    reason, line = "", None
    try:
        value = yaml.safe_load(text)
        lines = _lines(yaml.compose(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        reason = str(error.problem or error.context or "unreadable")
        line = None if error.problem_mark is None else error.problem_mark.line + 1
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a timestamp that is none, or an integer of thousands of digits.
        reason = "it nests too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0][:200]
    else:
        return Document(value, lines)
    place = "" if line is None else f" (line {line})"
    raise PolicyError(f"SmartNoise metadata is not YAML{place}: {one_line(reason)}; correct it there")


def _lines(node: yaml.Node) -> dict[tuple[object, ...], int]:
    """The line of every key down to the attributes of columns. A key that stands twice is refused.

    Shared parts (aliases) are read where they stand; each is entered once a place, down to five levels.
    """
    found: dict[tuple[object, ...], int] = {}
    stack: list[tuple[tuple[object, ...], yaml.Node]] = [((), node)]
    while stack:
        path, part = stack.pop()
        if not isinstance(getattr(part, "value", None), list) or len(path) == _DEPTH or part.tag.endswith(":seq"):
            continue
        if len(found) > 50 * MAX_COLUMNS:
            raise PolicyError("SmartNoise metadata: too many keys, counting what aliases repeat; write fewer")
        seen: set[str] = set()
        for key, value in part.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in seen:
                raise PolicyError(
                    f"SmartNoise metadata, {one_line(name)} (line {line}): the key stands twice; keep one of them"
                )
            seen.add(name)
            found[*path, name] = line
            stack.append(((*path, name), value))
    return found


def mapping(value: object, where: Place) -> dict[str, object]:
    """``value`` as a mapping from names."""
    if not isinstance(value, dict):
        shown_kind = "nothing" if value is None else kind_of(value).replace("table", "mapping")
        raise where.refuse(f"it is {shown_kind}; write a mapping, name: ...")
    for key in value:
        if not isinstance(key, str):
            raise where.refuse(f"the key {one_line(str(key))} is {kind_of(key)}; quote it to make it a name")
    return dict(value)


def one_line(text: str) -> str:
    """``text`` as part of one line."""
    return "".join(c if c.isprintable() else " " for c in text)[:200]
