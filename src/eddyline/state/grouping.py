"""Equal rows and sorted rows of Arrow tables, in numpy.

Everything runs in the calling thread. For a few hundred rows a library that hands work to threads of its own
takes longer to wake them than to do the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from eddyline.changes import HASH

_INT_MAX = np.iinfo(np.int64).max
_PRODUCT_MAX = 1 << 62
_SAMPLE = 1024
"""Hashes of so many rows tell whether those of all are worth computing; fewer rows aren't worth more than one try."""
_PIECES_MAX = 8
"""Rows in no more sorted pieces are sorted, which takes less time than to number their values."""
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: products are spread


@dataclass(frozen=True, slots=True)
class SortKey:
    """A column to sort by."""

    column: str
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of equal rows of a table, numbered by their first rows.

    Attributes:
        of: for each row the number of its group.
        first: for each group the place of its first row.

    Example:
        >>> groups = group_rows(pa.table({"a": ["x", "y", "x"]}), ["a"])
        >>> groups.of.tolist(), groups.first.tolist(), groups.sums(np.array([1, 2, 3])).tolist()
        ([0, 1, 0], [0, 1], [4, 2])
    """

    of: np.ndarray
    first: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def over(self, of: np.ndarray) -> Groups:
        """Return the same groups for other rows.

        Args:
            of: for each of these the number of its group.
        """
        return Groups(of, self.first)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Add up integers, one for each row, by group, modulo 2^64."""
        total = np.zeros(len(self), np.int64)
        np.add.at(total, self.of, values)
        return total


def group_rows(table: pa.Table, columns: Sequence[str]) -> Groups:
    """Find the rows that are equal in some columns, as `comparable` compares values.

    It takes less time where most rows differ, and where they are sorted by the first column, an integer.
    """
    return _grouped([table[name] for name in columns], table.num_rows)


def _grouped(columns: Sequence[pa.ChunkedArray | pa.Array], rows: int) -> Groups:
    of, count = np.zeros(rows, np.int64), min(rows, 1)
    if rows < 2 or not columns:
        return Groups(of, np.arange(count))
    values = map(comparable, columns)
    left = [next(values)]
    starts = None  # of the groups, where equal rows are neighbours
    hashed = len(columns) > 2  # for fewer it doesn't pay
    if pa.types.is_int64(left[0].type) and not left[0].null_count:
        numbers = left[0].to_numpy()
        descents = int(np.count_nonzero(numbers[1:] < numbers[:-1]))
        if not descents:
            starts = block_starts(numbers)
            of = np.cumsum(starts) - 1
            count = int(of[-1]) + 1
            if count == rows:
                return Groups(of, of)
            left = [*dropwhile(partial(_follows, starts), values)]
        elif descents < _PIECES_MAX and not hashed and rows > 8 * _SAMPLE:
            return _in_order(columns, np.argsort(numbers, kind="stable"))
    left.extend(values)
    if left and hashed:
        alike = _alike(of, left, neighbours=starts is not None)
        if alike is not None:
            return _with_alone(of, left, alike)
    for column in left:
        if count == rows:
            break  # all differ already
        numbers, size = _numbered(column)
        if count > 1:
            if count * size > _PRODUCT_MAX:  # cannot be: both are at most the number of rows
                raise OverflowError(f"{rows} rows are too many to be grouped at once")
            numbers, size = _numbered(pa.array(of * size + numbers))
        of, count = numbers, size
    return Groups(of, np.flatnonzero(block_starts(np.maximum.accumulate(of))))


def _in_order(columns: Sequence[pa.ChunkedArray | pa.Array], order: np.ndarray) -> Groups:
    """Group rows that `order` sorts by the first column."""
    places = pa.array(order)
    groups = _grouped([column.take(places) for column in columns], len(order))
    firsts = np.empty_like(order)
    firsts[order] = order[groups.first][groups.of]
    return _with_firsts(firsts)


def _with_alone(of: np.ndarray, columns: Sequence[pa.Array], alike: np.ndarray) -> Groups:
    """Group rows by their numbers and columns; only those at some places may be equal."""
    firsts = np.arange(len(of))
    if len(alike):
        places = pa.array(alike)
        few = [pa.array(of[alike]), *(column.take(places) for column in columns)]
        groups = _grouped(few, len(alike))
        firsts[alike] = alike[groups.first][groups.of]
    return _with_firsts(firsts)


def _with_firsts(firsts: np.ndarray) -> Groups:
    """Return groups, given for each row the place of the first row of its group."""
    begins = firsts == np.arange(len(firsts))
    return Groups((np.cumsum(begins) - 1)[firsts], np.flatnonzero(begins))


def _follows(starts: np.ndarray, values: pa.Array) -> bool:
    """Return whether a value that differs from the one before it begins a group."""
    if isinstance(values, pa.ChunkedArray) or pa.types.is_nested(values.type) or values.null_count:
        return False
    if pa.types.is_integer(values.type):
        numbers = values.to_numpy()
        differ = numbers[1:] != numbers[:-1]
    else:
        differ = pc.not_equal(values[1:], values[:-1]).to_numpy(zero_copy_only=False)
    return bool((starts[1:] >= differ).all())


def _alike(of: np.ndarray, columns: Sequence[pa.Array], *, neighbours: bool) -> np.ndarray | None:
    """Return the places of rows with the same hash as another; None if there are too many to save time.

    Args:
        of: for each row a number, which is hashed with its columns; some types of these aren't.
        neighbours: whether equal rows are close to each other.
    """
    rows = len(of)
    if rows > 8 * _SAMPLE:
        hashes = _hashes(of[:_SAMPLE], [one[:_SAMPLE] for one in columns])
        if len(_repeated(hashes)) > _SAMPLE // (8 if neighbours else 64):
            return None
    hashes = _hashes(of, columns)
    again = _repeated(hashes)
    if not len(again):
        return np.empty(0, np.int64)
    if len(again) > rows // 8 or rows < _SAMPLE:
        return None
    return places_among(hashes, again)


def _hashes(of: np.ndarray, columns: Sequence[pa.Array]) -> np.ndarray:
    """Return a hash of each row's number and of its integers and decimals."""
    total = of.astype(np.uint64)
    for column in columns:
        words = _words(column)
        if words is not None:
            total *= _ODD  # first, as small numbers would cancel out
            total ^= words.astype(np.uint64)
    return total


def _repeated(values: np.ndarray) -> np.ndarray:
    """Return the values that come more than once, sorted, each once less than it comes."""
    values = np.sort(values)
    found: np.ndarray = values[1:][values[1:] == values[:-1]]
    return found


def _words(values: pa.Array) -> np.ndarray | None:
    """Return integers, or the lower halves of decimals; None for other types, and where there is a null."""
    if isinstance(values, pa.ChunkedArray) or values.null_count:
        return None
    if pa.types.is_integer(values.type):
        found: np.ndarray = values.to_numpy()
        return found
    if pa.types.is_decimal128(values.type):
        words = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset :: 2]
        return words[: len(values)]
    return None


def sorted_places(
    table: pa.Table, identity: Sequence[str], order: Sequence[SortKey] = ()
) -> np.ndarray:
    """Return the places of rows sorted by hash, then by `order`, then by identity, which makes it deterministic."""
    hashes = table[HASH].to_numpy()
    places = np.argsort(hashes, kind="stable")
    starts = block_starts(hashes[places])
    keys = [(table[key.column], key.descending, key.nulls_last) for key in order]
    keys += [(table[name], False, False) for name in identity]
    for number, (column, descending, nulls_last) in enumerate(keys):
        tied = _tied(starts)
        if not tied.any():
            break
        # only rows that are equal so far are compared further
        block = np.cumsum(starts)[tied]
        at = places[tied]
        part = pa.chunked_array([column]) if isinstance(column, pa.Array) else column
        part = part.take(pa.array(at))
        if number >= len(order):
            part = comparable(part)
        ranks = ranked(part, descending=descending, nulls_last=nulls_last)
        inner = np.lexsort((ranks, block))
        places[tied] = at[inner]
        starts[tied] = block_starts(block[inner]) | block_starts(ranks[inner])
    return places


@dataclass(frozen=True, slots=True)
class MergedRows:
    """The distinct rows of several tables, in order.

    Attributes:
        places: the places of all rows, in order; equal ones are neighbours.
        starts: where in `places` each distinct row begins.
        number: for each row the number of its distinct row, in order.
    """

    places: np.ndarray
    starts: np.ndarray
    number: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """The place of the first copy of each distinct row."""
        found: np.ndarray = self.places[self.starts]
        return found

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Add up integers, one for each row, by distinct row."""
        if not len(self.starts):
            return values
        total: np.ndarray = np.add.reduceat(values[self.places], self.starts)
        return total


def merged(table: pa.Table, identity: Sequence[str], order: Sequence[SortKey]) -> MergedRows:
    """Put rows in the order of `sorted_places`, and find equal ones."""
    places = sorted_places(table, identity, order)
    begins = block_starts(group_rows(table, [HASH, *identity]).of[places])
    number = np.empty(len(places), np.int64)
    number[places] = np.cumsum(begins) - 1
    return MergedRows(places, np.flatnonzero(begins), number)


def ranked(
    column: pa.ChunkedArray | pa.Array, *, descending: bool = False, nulls_last: bool = False
) -> np.ndarray:
    """Return for each value a number that sorts as the values do in Spark; equal values have equal numbers.

    NaN is the largest number and equals itself, -0.0 equals 0.0, and text is compared byte by byte.
    """
    array = _one(column)
    if pa.types.is_nested(array.type):
        return _ranks_of_nested(array, descending, nulls_last)
    numbers = _ordered_numbers(array)
    if descending:
        numbers = ~numbers
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        dense = np.unique(numbers[~null], return_inverse=True)[1]
        numbers = np.full(len(array), len(dense) + 1 if nulls_last else 0, np.int64)
        numbers[~null] = dense + 1
    return numbers


def comparable(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Convert a column so that two values are equal if and only if Spark stores the same.

    Floating point numbers become their bits, so -0.0 and 0.0 differ and NaN equals NaN. Maps become
    lists of entries. Nested types are rebuilt around their converted children.
    """
    array = _one(column)
    if isinstance(array, pa.ChunkedArray):  # too large for one chunk
        return pa.chunked_array([_comparable(chunk) for chunk in array.chunks])
    return _comparable(array)


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _comparable(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_floating(kind):
        bits = pa.int64() if kind == pa.float64() else pa.int32()
        one_nan = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), kind), array)
        return one_nan.view(bits)
    if pa.types.is_struct(kind):
        children = [_comparable(child) for child in array.flatten()]
        names = [f"f{i}" for i in range(len(children))]
        if not children:
            return pc.is_valid(array)
        return pa.StructArray.from_arrays(children, names=names, mask=pc.is_null(array))
    if pa.types.is_map(kind):
        # the offsets stay valid over the whole child arrays of a sliced map
        entries = pa.StructArray.from_arrays(
            [_comparable(array.keys), _comparable(array.items)], names=["k", "v"]
        )
        return _list_over(array, entries)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_over(array, _comparable(array.values))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return array


def _list_over(array: pa.Array, values: pa.Array) -> pa.Array:
    large = pa.types.is_large_list(array.type)
    make = pa.LargeListArray if large else pa.ListArray
    offsets = pa.array(
        array.offsets.to_numpy()
    )  # those of a slice, as Arrow takes none with a mask
    return make.from_arrays(offsets, values, mask=pc.is_null(array))


def _numbered(array: pa.Array) -> tuple[np.ndarray, int]:
    """Number the values of a column by their first occurrence; return the number of each, and how many."""
    if pa.types.is_nested(array.type):
        array = pa.array(_ranks_of_nested(array, descending=False, nulls_last=False))
    numbers, known = _dictionary(array)
    return numbers, len(known)


def _dictionary(array: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Return the number of each value, and the values by their numbers; null is one of them."""
    found = pc.dictionary_encode(array, null_encoding="encode")
    if isinstance(found, pa.ChunkedArray):
        found = found.unify_dictionaries().combine_chunks()
    return found.indices.to_numpy().astype(np.int64), found.dictionary


def _ordered_numbers(array: pa.Array) -> np.ndarray:
    """Return integers in the order of the values of a column; for nulls any integer."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _filled(array.cast(pa.int64()), 0)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _filled(_comparable(array).cast(pa.int64()), 0)
    if pa.types.is_floating(kind):
        return ordered_doubles(_filled(array.cast(pa.float64()), 0.0))
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64)
    numbers, known = _dictionary(array)
    ranks = np.empty(len(known), np.int64)
    ranks[pc.sort_indices(known).to_numpy()] = np.arange(len(known))
    found: np.ndarray = ranks[numbers]
    return found


def ordered_doubles(values: np.ndarray) -> np.ndarray:
    """Return integers in the order of doubles: NaN is the largest, and -0.0 equals 0.0."""
    values = values + 0.0  # no -0.0
    bits = values.view(np.int64)
    ordered: np.ndarray = np.where(np.isnan(values), _INT_MAX, bits ^ ((bits >> 63) & _INT_MAX))
    return ordered


def _filled(array: pa.Array, value: float) -> np.ndarray:
    filled = array.fill_null(value) if array.null_count else array
    found: np.ndarray = filled.to_numpy(zero_copy_only=False)
    return found


def _ranks_of_nested(array: pa.Array, descending: bool, nulls_last: bool) -> np.ndarray:
    frame = pl.DataFrame({"x": pl.Series(array)})
    order = pl.arg_sort_by("x", descending=descending, nulls_last=nulls_last)
    places = frame.select(order).to_series()
    values = frame["x"].gather(places)
    starts = values.ne_missing(values.shift(1)).to_numpy().copy()
    if len(starts):
        starts[0] = True
    ranks = np.empty(len(array), np.int64)
    ranks[places.to_numpy()] = np.cumsum(starts)
    return ranks


def places_among(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the places of the values that are among others, at least one, which are sorted."""
    at = np.searchsorted(known, values)
    at[at == len(known)] = 0
    return np.flatnonzero(known[at] == values)


def block_starts(values: np.ndarray) -> np.ndarray:
    """Return where a value differs from the one before it; the first always does."""
    found = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found


def _tied(starts: np.ndarray) -> np.ndarray:
    """Return which rows share their block with others, given where blocks start."""
    ends = np.ones(len(starts), bool)
    ends[:-1] = starts[1:]
    return ~(starts & ends)
