"""Estimates of the input of an epoch before it is read: number and length of the rows."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable

from eddyline.source.compression import is_compressed
from eddyline.source.segments import BUCKET_RUNS, LOG, NDJSON, NEXMARK, RUN, Segment
from eddyline.state.manifest import Manifest
from eddyline.storage.files import Files

UNKNOWN = 1 << 62  # rows of a segment that can't be estimated

_BYTES_A_ROW = 100  # of a file whose rows aren't counted

SHORT_ROW_BYTES, FEW_BYTES = 1 << 10, 1 << 27
"""Rows of up to so many bytes on average are short; so is an input of so many bytes in all."""

_PLAIN = frozenset((RUN, BUCKET_RUNS, LOG, NDJSON, NEXMARK))  # kinds whose bytes aren't compressed

_CALL = re.compile(r"([A-Za-z_]\w*)\(")
_OWN = re.compile(r"(leaf|op)\d+|(Leaf|Shared)\w+")
_NAMES = """
    abs avg between bround cast ceil ceiling checkoverflowinsum coalesce concat concat_ws contains convert_timezone
    count date_add date_format date_sub date_trunc datediff day dayofmonth dayofweek dayofyear decimal
    decimaldividewithoverflowcheck decimaltype dense_rank divide element_at endswith floor from_unixtime
    get_json_object gettimestamp greatest hash hashaggregate hashpartitioning hour if in initcap instr isnan
    isnotnull isnull knownfloatingpointnormalized knownnotnull knownnullable lag lead least left length like list
    lower ltrim max md5 merge_avg merge_count merge_max merge_min merge_sum min minute mod month months_between
    named_struct nanvl normalizenanandzero not nullif parse_url partial_avg partial_bit_xor partial_count
    partial_max partial_min partial_sum pmod pow power precisetimestampconversion quarter rank regexp_extract
    regexp_like right rlike round row_number rtrim second sha1 sha2 shiftleft shiftright sign some sort_array
    sortaggregate spark_partition_id specifiedwindowframe split split_part sqlquerycontext sqrt startswith
    stringsplitsql struct substr substring substring_index sum timestamp_micros timestamp_millis timestamp_seconds
    timestampadd timestampdiff to_date to_timestamp translate trim trunc try_cast try_divide unix_date unix_micros
    unix_millis unix_seconds unix_timestamp upper weekday weekofyear windowspecdefinition xxhash64 year
"""
_KEEP_SHORT = frozenset(_NAMES.split())
"""What a plan may call so that no row becomes much longer than the rows that it is made of."""


def keeps_rows_short(plan: str) -> bool:
    """Return whether no output row of a plan can be much longer than the input rows that it is computed from.

    Args:
        plan: the text of Spark's physical plans.

    Example:
        >>> keeps_rows_short("Project [upper(a#1) AS b#2]"), keeps_rows_short("Project [repeat(a#1, 9)]")
        (True, False)
    """
    if "UDF" in plan or "EvalPython" in plan:
        return False
    called = {name.lower() for name in _CALL.findall(plan) if not _OWN.fullmatch(name)}
    return called <= _KEEP_SHORT


def rows_of(segments: Iterable[Segment]) -> int:
    """Return the number of rows of some segments; an estimate for files."""
    return sum(map(_rows, segments))


def has_short_rows(files: Files, segments: Iterable[Segment]) -> bool:
    """Return whether any selection of many rows of some segments fits into memory."""
    counted, bytes_of_counted, others = 0, 0, 0
    for segment in segments:
        if segment.kind not in _PLAIN or (segment.kind == NDJSON and is_compressed(segment.file)):
            return False
        size = bytes_of(files, segment)
        if segment.rows or segment.kind == BUCKET_RUNS:
            counted, bytes_of_counted = counted + _rows(segment), bytes_of_counted + size
        else:
            others += size
    if bytes_of_counted + others <= FEW_BYTES:
        return True
    return others <= FEW_BYTES and bytes_of_counted <= SHORT_ROW_BYTES * counted


def has_short_state(manifest: Manifest, node: str) -> bool:
    """Return whether any selection of many rows of each arrangement of a view fits into memory: an epoch may read them all."""
    return all(
        sum(run.bytes for run in runs)
        <= max(FEW_BYTES, SHORT_ROW_BYTES * sum(run.rows for run in runs))
        for runs in manifest.of(node).values()
    )


def _rows(segment: Segment) -> int:
    if segment.kind == BUCKET_RUNS:
        return sum(rows for _, rows, *_ in json.loads(segment.file))
    if segment.rows or not segment.bytes:
        return segment.rows or UNKNOWN
    return segment.bytes // _BYTES_A_ROW


def bytes_of(files: Files, segment: Segment) -> int:
    """Return the bytes of a segment, by its file or files; 0 for generated rows."""
    if segment.bytes:
        return segment.bytes
    names = [segment.file]
    if segment.kind == BUCKET_RUNS:
        names = [name for name, *_ in json.loads(segment.file)]
    total = 0
    for name in names:
        try:
            total += os.path.getsize(files.path(name))
        except OSError:
            continue  # generated rows have no file; for a missing file the reader raises the error
    return total
