"""Cuts the input of a new view into pieces, each of which is computed on top of those before it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from eddyline.changes import HASH
from eddyline.operators.aggregate import Reduce
from eddyline.operators.recompute import Regroup
from eddyline.operators.running import Running
from eddyline.runtime.plans import EpochPlan
from eddyline.runtime.sizes import UNKNOWN, bytes_of, rows_of
from eddyline.source.lines import line_starts, part_end
from eddyline.source.parquet import rows_in_parquet
from eddyline.source.segments import BUCKET_RUNS, NDJSON, PARQUET, RUN, Segment, cut_at, read_arrow
from eddyline.state.kernels import distinct_values
from eddyline.state.slices import spans_between, spans_of_hashes
from eddyline.storage.files import Files

Piece = dict[str, list[Segment]]
"""By name of a leaf the segments that it reads."""


def grows_with_pieces(plan: EpochPlan) -> bool:
    """Return whether an operator of a plan reads or writes a whole group at each change of it.

    Each piece would change most groups, so the work would grow with the number of pieces. Such a plan gets
    all rows at once.
    """
    operators = [part.operator for part in plan.parts]
    return any(
        isinstance(one, Regroup | Running) or (isinstance(one, Reduce) and bool(one.fractions))
        for one in operators
    )


def in_pieces(
    files: Files,
    inputs: Mapping[str, Sequence[Segment]],
    most: int,
    earlier: Mapping[str, frozenset[str]],
) -> list[Piece]:
    """Cut the input of a view into pieces of about equal numbers of rows.

    Leaves come in the order of their numbers of rows, the largest last, so that a join can match its rows as they
    come, but none before its earlier ones. A table or view is cut by ranges of the key hash in every bucket, other
    inputs by segments. Segments with an unknown number of rows come in the first piece that reads their leaf.

    Args:
        inputs: by name of a leaf its segments.
        most: about how many rows a piece has; 0 for no limit.
        earlier: for leaves the ones that come before them, where that is possible.

    Returns:
        At least one piece; each segment's rows are in exactly one of them.
    """
    rows = {leaf: sum(map(_known_rows, own)) for leaf, own in inputs.items()}
    total = sum(rows.values())
    count = -(-total // most) if most else 1
    if count <= 1:
        return [{leaf: list(own) for leaf, own in inputs.items()}]
    pieces: list[Piece] = [{} for _ in range(count)]
    passed = 0
    for leaf in _in_order(rows, earlier):
        shares = math.ceil(rows[leaf] * count / total)
        for segment in _atoms(files, inputs[leaf], shares, -(-total // count)):
            own = _known_rows(segment)
            place = (2 * passed + own) * count // (2 * total)  # of its middle
            pieces[min(place, count - 1)].setdefault(leaf, []).append(segment)
            passed += own
    return [piece for piece in pieces if piece]


def _in_order(rows: Mapping[str, int], earlier: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield the leaves: of those whose earlier ones have come the smallest, or of all if there is a circle."""
    left = sorted(rows, key=rows.__getitem__)
    while left:
        ready = (leaf for leaf in left if earlier.get(leaf, frozenset()).isdisjoint(left))
        chosen = next(ready, left[0])
        left.remove(chosen)
        yield chosen


def _known_rows(segment: Segment) -> int:
    rows = rows_of([segment])
    return 0 if rows >= UNKNOWN else rows


def _atoms(files: Files, segments: Sequence[Segment], shares: int, most: int) -> Iterator[Segment]:
    """Yield the smallest parts in order; of stored state share by share, each over all buckets."""
    if shares <= 1:
        yield from segments
        return
    stored = [_shares(files, one, shares) for one in segments if one.kind in (RUN, BUCKET_RUNS)]
    for number in range(max(map(len, stored), default=0)):
        yield from (own[number] for own in stored if number < len(own))
    for segment in (one for one in segments if one.kind not in (RUN, BUCKET_RUNS)):
        yield from _evenly(files, segment, -(-segment.rows // most))


def _evenly(files: Files, segment: Segment, parts: int) -> list[Segment]:
    """Cut a segment into parts of about equal numbers of rows; return it whole if its row count is unknown."""
    if parts <= 1:
        return [segment]
    sized = replace(segment, bytes=bytes_of(files, segment))
    return list(cut_at(sized, (segment.rows * n // parts for n in range(parts + 1))))


def _shares(files: Files, segment: Segment, shares: int) -> list[Segment]:
    """Cut the rows of a bucket at some key hashes, so that a row and its retraction stay together."""
    if segment.kind == RUN:
        return _evenly(files, segment, shares)
    runs, hashes = _runs_and_hashes(files, segment)
    return _at_spans(files, segment, runs, spans_of_hashes(hashes, shares))


def in_two(files: Files, segment: Segment) -> list[Segment]:
    """Cut a segment into two parts of about equal size; return none if it can't be cut.

    The runs of a bucket are cut at a key hash, as `in_pieces` does, JSON files at a line end. A compressed JSON
    file, a single row, and rows with the same key hash stay together.

    Raises:
        OSError, EddylineError, pyarrow.ArrowException: its file can't be read.
    """
    if segment.kind == BUCKET_RUNS:
        runs, hashes = _runs_and_hashes(files, segment)
        every = distinct_values(np.concatenate(hashes))
        spans = spans_between(hashes, every[len(every) // 2 :][:1])
        parts = _at_spans(files, segment, runs, spans)
    elif segment.kind == NDJSON:
        starts = line_starts(segment.file, segment.start, segment.bytes)
        if len(starts) < 2:
            return []
        middle = int(starts[len(starts) // 2])
        end = part_end(segment.file, segment.start, segment.bytes)
        parts = [
            replace(segment, bytes=middle - segment.start),
            replace(segment, start=middle, bytes=max(end - middle, 0)),
        ]
    else:
        if segment.kind == PARQUET and not segment.rows:
            segment = replace(segment, rows=rows_in_parquet(segment.file))
        parts = list(cut_at(segment, (0, segment.rows // 2, segment.rows)))
    return parts if len(parts) > 1 else []


def _runs_and_hashes(files: Files, segment: Segment) -> tuple[list[Segment], list[np.ndarray]]:
    """Return the runs of a bucket's segment, and the key hashes of each, which are sorted."""
    runs = [Segment(RUN, *run) for run in json.loads(segment.file)]
    return runs, [read_arrow(files, run)[HASH].to_numpy() for run in runs]


def _at_spans(
    files: Files,
    segment: Segment,
    runs: Sequence[Segment],
    cuts: Iterable[Sequence[tuple[int, int]]],
) -> list[Segment]:
    """Cut a bucket's segment; return the parts with rows.

    Args:
        cuts: for each part where it begins and ends in each run.
    """
    size, total = bytes_of(files, segment), max(sum(run.rows for run in runs), 1)
    found = []
    for spans in cuts:
        parts = [
            (run.file, end - start, run.start + start)
            for run, (start, end) in zip(runs, spans, strict=True)
            if end > start
        ]
        rows = sum(part[1] for part in parts)
        if rows:
            found.append(replace(segment, file=json.dumps(parts), bytes=size * rows // total))
    return found
