"""Results as messages: what their columns are, and their rows, in the forms that the client asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from pygwire.messages import CopyData, DataRow, FieldDescription, RowDescription

from dpsql.driver.result_sets import ResultSet
from dpsql.errors import DataError, NotSupportedError
from dpsql.extensions.server.protocol.pg_types import BINARY, TEXT, Encoder, encoder, type_of


def forms_of(result: ResultSet, forms: Sequence[int]) -> list[int]:
    """The form of each column, text (0) or binary (1): one for all, or one each. Raises DataError."""
    count = len(result.names)
    if any(form not in (TEXT, BINARY) for form in forms):
        raise DataError("a result form is neither 0, for text, nor 1, for binary; ask for one of them")
    if len(forms) <= 1:
        return [*(forms or [TEXT])] * count
    if len(forms) != count:
        raise DataError(f"{len(forms)} result forms are given for {count} columns; give one each")
    return list(forms)


def description(result: ResultSet, forms: Sequence[int]) -> RowDescription:
    """The columns of a result."""
    fields = []
    for name, kind, form in zip(result.names, result.kinds, forms_of(result, forms), strict=True):
        held = type_of(kind)
        fields.append(
            FieldDescription(
                # No name of a client's may end the text of the message.
                name=name.replace("\0", ""),
                type_oid=held.oid,
                type_size=held.size,
                type_modifier=held.modifier,
                format_code=form,
            )
        )
    return RowDescription(fields=fields)


def encoders(result: ResultSet, forms: Sequence[int]) -> list[Encoder]:
    """What writes the values of each column. Raises DataError, NotSupportedError."""
    return [encoder(type_of(kind), form) for kind, form in zip(result.kinds, forms_of(result, forms), strict=True)]


def data_row(row: Sequence[object], written: Sequence[Encoder]) -> DataRow:
    """One row. Raises DataError for a value that its binary form cannot hold."""
    try:
        return DataRow(columns=[None if v is None else write(v) for v, write in zip(row, written, strict=True)])
    except (struct.error, OverflowError, ValueError, TypeError, AttributeError):
        pass
    raise DataError("a value of the result does not fit the binary form of its type; ask for text")


# -- COPY (SELECT ...) TO STDOUT -----------------------------------------------------------------------

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0)
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def copied(result: ResultSet, form: str, *, header: bool) -> Iterable[CopyData]:
    """The rows of a result as COPY writes them: "text", "csv" or "binary". Raises DataError, NotSupportedError."""
    if form not in ("text", "csv", "binary"):
        raise NotSupportedError(f"COPY writes text, csv or binary, not {form[:40]}; choose one of them")
    if form == "binary":
        yield from _binary(result)
        return
    written = encoders(result, [TEXT])
    one = _csv_line if form == "csv" else _text_line
    if header:
        yield CopyData(data=one([name.encode() for name in result.names]))
    for row in result.rows:
        yield CopyData(data=one(data_row(row, written).columns))


def _binary(result: ResultSet) -> Iterable[CopyData]:
    written = encoders(result, [BINARY])
    head = _SIGNATURE
    for row in result.rows:
        parts = [struct.pack("!h", len(written))]
        for value in data_row(row, written).columns:
            parts.append(struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value)
        yield CopyData(data=head + b"".join(parts))
        head = b""
    yield CopyData(data=head + struct.pack("!h", -1))


def _text_line(values: Sequence[bytes | None]) -> bytes:
    shown = ["\\N" if value is None else value.decode().translate(_ESCAPED) for value in values]
    return ("\t".join(shown) + "\n").encode()


def _csv_line(values: Sequence[bytes | None]) -> bytes:
    shown = []
    for value in values:
        text = "" if value is None else value.decode()
        quoted = value is not None and (not text or any(c in text for c in ',"\r\n'))
        shown.append('"' + text.replace('"', '""') + '"' if quoted else text)
    return (",".join(shown) + "\n").encode()
