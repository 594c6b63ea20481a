"""Decodes the messages of PostgreSQL's output plugin pgoutput (protocol version 1), many at once.

A message is a change of one row. Its columns are consecutive texts with their lengths, so the position of a column
follows from the columns before it. The positions are computed for all messages of a batch at once, column by
column; Arrow then takes the values from the batch's bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.errors import DataError
from eddyline.source.log_files import LogColumn

OP, LSN, SEQ, COMMITTED_AT = "_op", "_lsn", "_seq", "_committed_at"
ADDED = pa.schema(
    [
        (OP, pa.string()),
        (LSN, pa.int64()),
        (SEQ, pa.int64()),
        (COMMITTED_AT, pa.timestamp("us", "UTC")),
    ]
)
"""What is added to the columns of the table."""

SNAPSHOT = "snapshot"
_OPS = pa.array(["insert", "update", "delete", "truncate"])
_INSERT, _UPDATE, _DELETE, _TRUNCATE = range(4)

_B, _C, _R, _I, _U, _D, _T, _N, _O = b"BCRIUDTNO"
_NULL, _UNCHANGED = b"nu"
_EPOCH_2000_US = 946_684_800_000_000
_PAD = bytes(8)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    """A column of a table of PostgreSQL.

    Attributes:
        name: its name.
        type_id, modifier: its type, as pgoutput names it.
        type_name: its type, as SQL names it; empty if it is known from messages only.
    """

    name: str
    type_id: int
    modifier: int
    type_name: str


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of PostgreSQL, as described at some time.

    Attributes:
        schema, name: its names.
        id: its oid, which differs from that of another table of the same name.
        columns: all columns that pgoutput sends.
        key: names of the columns that identify a row.
    """

    schema: str
    name: str
    id: int
    columns: tuple[PublishedColumn, ...]
    key: tuple[str, ...]

    @property
    def shown(self) -> str:
        """Its name for people."""
        return f"{self.schema}.{self.name}"


class UndecodableError(Exception):
    """A change can't be decoded.

    Attributes:
        error: says why.
        before: the end of the last transaction before it; 0 if none was decoded.
    """

    def __init__(self, error: DataError, before: int) -> None:
        super().__init__(str(error))
        self.error, self.before = error, before


@dataclass(slots=True)
class PgoutputDecoder:
    """Decodes messages, which come in batches, in order, to rows.

    Attributes:
        stream: name of the stream, for errors.
        table: the table; changes of others are skipped. Columns that were added to the stream later are added
            here once a message has them.
        wanted: the columns of the rows.
        confirmed: transactions that were committed before this LSN are skipped.
        sequence: number of the next row.
        end: the end of the last whole transaction; 0 for none.
    """

    stream: str
    table: PublishedTable
    wanted: Sequence[LogColumn]
    confirmed: int
    sequence: int
    end: int = 0
    _commit: tuple[int, int] = (0, 0)  # LSN and time of the transaction that has begun
    _layout: list[str] = field(default_factory=list)  # names of the columns of a message

    def rows(self, messages: Sequence[bytes]) -> pa.Table:
        """Return the rows of the next messages.

        Raises:
            UndecodableError: the table has changed, or a value is missing or doesn't fit its type.
        """
        if not messages:
            return self._none()
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        text = b"".join([*messages, _PAD])
        batch = np.frombuffer(text, np.uint8)
        starts = np.cumsum(sizes) - sizes
        kinds = batch[starts]
        begins, ends = starts[kinds == _B], starts[kinds == _C]
        commits = np.concatenate([[self._commit[0]], _integers(batch, begins + 1, 8)])
        times = np.concatenate([[self._commit[1]], _integers(batch, begins + 9, 8)])
        transaction = np.cumsum(kinds == _B)
        relations = {
            int(at): text[starts[at] : starts[at] + sizes[at]]
            for at in np.flatnonzero(kinds == _R)
            if _relation_id(text, int(starts[at])) == self.table.id
            or _relation_name(text, int(starts[at])) == (self.table.schema, self.table.name)
        }

        def undecodable(error: DataError, bad: int) -> UndecodableError:
            passed = ends[ends < (begins[bad - 1] if bad else 0)]
            before = _integers(batch, passed[-1:] + 10, 8)[0] if len(passed) else self.end
            return UndecodableError(error, int(before))

        tables, first = [], 0
        for stop in [*relations, len(messages)]:
            own = slice(first, stop)
            part = text, starts[own], commits[transaction[own]], times[transaction[own]]
            try:
                tables.append(self._part(*part))
            except DataError as error:
                raise undecodable(error, self._first_bad(part, transaction[own])) from None
            if stop in relations:
                try:
                    self._layout = self._checked(relations[stop])
                except DataError as error:
                    raise undecodable(error, int(transaction[stop])) from None
            first = stop
        self._commit = int(commits[-1]), int(times[-1])
        if len(ends):
            self.end = int(_integers(batch, ends[-1:] + 10, 8)[0])
        return pa.concat_tables(tables)

    def _first_bad(self, part: tuple[bytes, Ints, Ints, Ints], transaction: Ints) -> int:
        """Return the first transaction of a part that can't be decoded, by bisection."""
        text, starts, lsn, times = part
        numbers, sequence = np.unique(transaction), self.sequence
        low, high = 0, len(numbers) - 1
        while low < high:
            middle = (low + high) // 2
            some = transaction <= numbers[middle]
            try:
                self._part(text, starts[some], lsn[some], times[some])
                low = middle + 1
            except DataError:
                high = middle
            self.sequence = sequence
        return int(numbers[low])

    def _part(self, text: bytes, starts: Ints, lsn: Ints, times: Ints) -> pa.Table:
        """Return the rows of consecutive messages with the same columns of the table."""
        batch = np.frombuffer(text, np.uint8)
        own = (lsn >= self.confirmed) & np.isin(batch[starts], (_I, _U, _D))
        own[own] = _integers(batch, starts[own] + 1, 4) == self.table.id
        truncates = [
            at
            for at in np.flatnonzero((batch[starts] == _T) & (lsn >= self.confirmed))
            if self.table.id in _truncated(text, int(starts[at]))
        ]
        if not own.any() and not truncates:
            return self._none()
        at = np.flatnonzero(own)
        kinds, tags = batch[starts[at]], batch[starts[at] + 5]
        with_old = tags != _N
        old = _Tuples.parsed(batch, starts[at[with_old]] + 6, len(self._layout))
        new_starts = starts[at] + 6
        new_starts[with_old] = old.end + 1
        with_new = kinds != _D
        new = _Tuples.parsed(batch, new_starts[with_new], len(self._layout))

        # places of a message's tuples among all, in the order of the bytes
        both = np.concatenate([old.start, new.start])
        order = np.argsort(both)
        rank = np.empty(len(both), np.int64)
        rank[order] = np.arange(len(both))
        old_at, new_at = np.full((2, len(at)), -1)
        old_at[with_old], new_at[with_new] = rank[: len(old.start)], rank[len(old.start) :]
        pieces = _Pieces(text, old, new, order)

        moved = (kinds == _U) & with_old
        if moved.any():
            moved[moved] = self._key_differs(pieces, old_at[moved], new_at[moved])
        gone = moved | (kinds == _D)
        # a row whose key changes is another row from then on
        operation = np.where((kinds == _I) | moved, _INSERT, _UPDATE)[with_new]
        message = np.concatenate([at[gone], at[with_new], np.array(truncates, np.int64)])
        second = np.concatenate([np.zeros(gone.sum()), np.ones(with_new.sum() + len(truncates))])
        place = np.lexsort([second, message])
        none = np.full(len(truncates), -1)
        source = np.concatenate([old_at[gone], new_at[with_new], none])[place]
        instead = np.concatenate([np.full(gone.sum(), -1), old_at[with_new], none])[place]
        whole = np.zeros(len(at), bool)
        whole[with_old] = tags[with_old] == _O
        known = np.concatenate([whole[gone], whole[with_new], none == 0])[place]
        operations = np.concatenate(
            [np.full(gone.sum(), _DELETE), operation, np.full(len(truncates), _TRUNCATE)]
        )[place]

        columns = {}
        for one in self.wanted:
            if one.name in ADDED.names:
                continue
            values = self._values(pieces, one.name, source, instead, known)
            columns[one.place] = self._converted(values, one)
        return self._with_added(
            columns, _OPS.take(pa.array(operations)), lsn[message[place]], times[message[place]]
        )

    def snapshot(self, texts: pa.Table) -> pa.Table:
        """Return the rows of a snapshot from a table of its columns as texts."""
        size = texts.num_rows
        columns = {
            one.place: self._converted(texts[one.name].combine_chunks(), one)
            for one in self.wanted
            if one.name not in ADDED.names
        }
        operations = pa.repeat(pa.scalar(SNAPSHOT), size)
        return self._with_added(columns, operations, np.full(size, self.confirmed), None)

    def _with_added(
        self, columns: dict[str, pa.Array], operations: pa.Array, lsn: Ints, times: Ints | None
    ) -> pa.Table:
        size = len(operations)
        kind = ADDED.field(COMMITTED_AT).type
        added = {
            OP: operations,
            LSN: pa.array(lsn, pa.int64()),
            SEQ: pa.array(np.arange(self.sequence, self.sequence + size)),
            COMMITTED_AT: pa.nulls(size, kind)
            if times is None
            else pa.array(times + _EPOCH_2000_US, pa.int64()).view(kind),
        }
        self.sequence += size
        arrays = [columns.get(one.place, added.get(one.name)) for one in self.wanted]
        return pa.table(arrays, schema=self._schema)

    def _values(
        self, pieces: _Pieces, name: str, source: Ints, instead: Ints, known: npt.NDArray[np.bool_]
    ) -> pa.Array:
        """Return the texts of a column.

        Args:
            source: the tuple of each row; -1 for one without values.
            instead: the tuple before the change, if there is one, for values that the message omits.
            known: whether that one has all columns, not just the key.
        """
        if (source < 0).all() or name not in self._layout:  # the table got the column later
            return pa.nulls(len(source), pa.string())
        column = self._layout.index(name)
        kinds = pieces.kinds(column)
        unsent = (source >= 0) & (kinds[source] == _UNCHANGED)
        if unsent.any():
            usable = (instead >= 0) & (known | (name in self.table.key))
            if (unsent & ~usable).any():
                raise self._changed(
                    f"column {name} was not sent with an update that left it as it was, because "
                    "PostgreSQL stores long values apart",
                    f"ALTER TABLE {self.table.shown} REPLICA IDENTITY FULL,",
                )
            source = np.where(unsent, instead, source)
        return pieces.texts(column, source, (source < 0) | (kinds[source] == _NULL))

    def _key_differs(self, pieces: _Pieces, old: Ints, new: Ints) -> npt.NDArray[np.bool_]:
        """Return which updates change the key of their row."""
        differs = np.zeros(len(old), bool)
        for name in self.table.key:
            column = self._layout.index(name)
            kinds = pieces.kinds(column)
            sent = kinds[new] != _UNCHANGED
            before = pieces.texts(column, old, kinds[old] == _NULL)
            after = pieces.texts(column, new, kinds[new] == _NULL)
            same = pc.or_(
                pc.fill_null(pc.equal(before, after), False),
                pc.and_(pc.is_null(before), pc.is_null(after)),
            )
            differs |= sent & ~same.to_numpy(zero_copy_only=False)
        return differs

    def _converted(self, texts: pa.Array, wanted: LogColumn) -> pa.Array:
        try:
            return converted(texts.cast(pa.string()), wanted.type)
        except (pa.ArrowInvalid, pl.exceptions.PolarsError) as error:
            why = str(error).split("\n")[0]
            raise self._changed(
                f"a value of column {wanted.name} doesn't fit its type {wanted.type}: {why}",
                f"declare the column as {wanted.name} STRING,",
            ) from None

    def _checked(self, message: bytes) -> list[str]:
        """Return the names of the columns in a Relation message; raise DataError if they don't fit the table."""
        found_id, columns = _relation(message)
        if found_id != self.table.id:
            raise self._changed("another table has taken its name", "")
        known = []
        for one in self.table.columns:
            same = columns.get(one.name) == (one.type_id, one.modifier)
            needed = one.name in self.table.key or any(one.name == w.name for w in self.wanted)
            if needed and not same:
                gone = one.name not in columns
                what = "is gone" if gone else "has another type"
                way_out = "ALTER STREAM can go on without the column; else" if gone else ""
                raise self._changed(f"its column {one.name} {what}", way_out)
            if same:
                known.append(one)
        more = columns.keys() - {one.name for one in known}
        new = [w.name for w in self.wanted if w.name in more]
        known += [PublishedColumn(name, *columns[name], "") for name in new]
        self.table = replace(self.table, columns=tuple(known))
        return list(columns)

    def _changed(self, what: str, first: str) -> DataError:
        steps = f"{first} " if first else ""
        return DataError(
            f"stream {self.stream} can't go on with table {self.table.shown}: {what}",
            condition="SOURCE_CHANGED",
            stream=self.stream,
            hint=f"{steps}drop the stream with its views and create them again: it begins with a new "
            "snapshot. What was received before stays readable until then",
        )

    @property
    def _schema(self) -> pa.Schema:
        return pa.schema([(one.place, one.type) for one in self.wanted])

    def _none(self) -> pa.Table:
        return self._schema.empty_table()


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Where the values of tuples lie in the bytes of a batch, by column and tuple.

    Attributes:
        start: of each tuple.
        kinds, begin, stop: of the values.
        end: of each tuple.
    """

    start: Ints
    kinds: Bytes
    begin: Ints
    stop: Ints
    end: Ints

    @staticmethod
    def parsed(batch: Bytes, start: Ints, columns: int) -> _Tuples:
        shape = (columns, len(start))
        kinds, begin, stop = (np.empty(shape, kind) for kind in (np.uint8, np.int64, np.int64))
        at = start + 2  # behind the number of columns
        for column in range(columns):
            kinds[column] = batch[at]
            sent = (kinds[column] != _NULL) & (kinds[column] != _UNCHANGED)
            begin[column] = at + 1 + 4 * sent
            at = begin[column] + np.where(sent, _integers(batch, at + 1, 4), 0)
            stop[column] = at
        return _Tuples(start, kinds, begin, stop, at)


class _Pieces:
    """The values of all tuples of a batch, those before and those after a change, in order."""

    def __init__(self, text: bytes, old: _Tuples, new: _Tuples, order: Ints) -> None:
        self._buffer = pa.py_buffer(text)
        self._old, self._new, self._order = old, new, order

    def kinds(self, column: int) -> Bytes:
        return np.concatenate([self._old.kinds[column], self._new.kinds[column]])[self._order]

    def texts(self, column: int, tuples: Ints, null: npt.NDArray[np.bool_]) -> pa.Array:
        """Return the values of a column in some tuples, as bytes."""
        begin = np.concatenate([self._old.begin[column], self._new.begin[column]])[self._order]
        stop = np.concatenate([self._old.stop[column], self._new.stop[column]])[self._order]
        # values and the gaps between them, as one array of bytes that isn't copied
        bounds = np.empty(2 * len(begin) + 1, np.int32)
        bounds[:-1:2], bounds[1::2], bounds[-1] = begin, stop, stop[-1]
        buffers = [None, pa.py_buffer(bounds), self._buffer]
        pieces = pa.Array.from_buffers(pa.binary(), 2 * len(begin), buffers)
        return pieces.take(pa.array(2 * tuples, mask=null))


def converted(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse texts as PostgreSQL writes them into values of a type.

    Dates are in ISO style, times in UTC.

    Raises:
        pa.ArrowInvalid, pl.exceptions.PolarsError: a text is no such value.

    Example:
        >>> converted(pa.array(["t", None]), pa.bool_()).to_pylist()
        [True, None]
    """
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        hexadecimal = pl.Series(pc.utf8_slice_codeunits(texts, 2), dtype=pl.String)
        return hexadecimal.str.decode("hex").to_arrow().cast(kind)
    return texts.cast(kind)


def _integers(batch: Bytes, at: Ints, size: int) -> Ints:
    """Return the integers of 4 bytes (oids and lengths) or 8 at some places."""
    kind = ">u4" if size == 4 else ">i8"
    found: Ints = batch[at[:, None] + np.arange(size)].view(kind)[:, 0].astype(np.int64)
    return found


def _relation_id(text: bytes, at: int) -> int:
    return int(struct.unpack_from(">I", text, at + 1)[0])


def _relation_name(text: bytes, at: int) -> tuple[str, str]:
    schema_end = text.index(0, at + 5)
    name_end = text.index(0, schema_end + 1)
    return text[at + 5 : schema_end].decode(), text[schema_end + 1 : name_end].decode()


def _relation(message: bytes) -> tuple[int, dict[str, tuple[int, int]]]:
    """Return the id of a Relation message, and type and modifier of its columns by name."""
    schema, name = _relation_name(message, 0)
    at = 5 + len(schema.encode()) + 1 + len(name.encode()) + 1 + 1
    (count,) = struct.unpack_from(">H", message, at)
    at, columns = at + 2, {}
    for _ in range(count):
        end = message.index(0, at + 1)
        columns[message[at + 1 : end].decode()] = struct.unpack_from(">Ii", message, end + 1)
        at = end + 9
    return _relation_id(message, 0), columns


def _truncated(text: bytes, at: int) -> tuple[int, ...]:
    (count,) = struct.unpack_from(">I", text, at + 1)
    return struct.unpack_from(f">{count}I", text, at + 6)
