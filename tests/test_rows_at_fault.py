"""The search for rows at fault: how it cuts the input, without Spark."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eddyline.runtime import rows_at_fault
from eddyline.runtime.pieces import in_two
from eddyline.source import lines as source_lines
from eddyline.source import segments
from eddyline.source.segment_readers import READERS
from eddyline.source.segments import BUCKET_RUNS, NDJSON, PARQUET, RUN, Segment, Wanted
from eddyline.storage.files import Files

WANTED = Wanted((0,), pa.schema([("id", pa.int64())]))


def ids(files: Files, segment: Segment) -> list[int]:
    found = list(READERS[segment.kind](files, segment, WANTED))
    assert sum(rows for _, rows in found) == sum(table.num_rows for table, _ in found)
    return [one for table, _ in found for one in table["id"].to_pylist()]


def leaves_of(files: Files, segment: Segment) -> list[Segment]:
    """Return the smallest parts of a segment, in order."""
    parts = in_two(files, segment)
    return [one for part in parts for one in leaves_of(files, part)] or [segment]


@pytest.mark.parametrize("module", [rows_at_fault, segments])
def test_examples(module: object) -> None:
    result = doctest.testmod(module)
    assert result.attempted
    assert result.failed == 0


@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_a_json_file_is_cut_down_to_its_lines(tmp_path: Path, last: str) -> None:
    lines = [json.dumps({"id": i, "pad": "x" * (i % 7)}) for i in range(23)]
    path = tmp_path / "1.json"
    path.write_text("\n".join(lines) + last)
    files, size = Files(tmp_path), path.stat().st_size
    middle = size // 2  # within a line
    for start, length in ((0, 0), (0, size), (0, middle), (middle, size - middle)):
        whole = Segment(NDJSON, str(path), 0, start, 0, length)
        parts = [ids(files, one) for one in leaves_of(files, whole)]
        assert max(map(len, parts)) == 1
        assert [one for part in parts for one in part] == ids(files, whole)
    whole = Segment(NDJSON, str(path.rename(tmp_path / "1.json.gz")), 0, 0, 0, size)
    assert in_two(files, whole) == []


def test_a_part_that_ends_within_a_line_keeps_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.json"
    path.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(23)))
    files, size = Files(tmp_path), path.stat().st_size
    middle = size // 2 + 3  # within a line
    assert path.read_bytes()[middle - 1 : middle] != b"\n"
    monkeypatch.setattr(source_lines, "PART_BYTES", middle)
    found = []
    for start, length in ((0, middle), (middle, size - middle)):
        whole = Segment(NDJSON, str(path), 0, start, 0, length)
        parts = [ids(files, one) for one in leaves_of(files, whole)]
        assert [one for part in parts for one in part] == ids(files, whole)
        found += parts
    assert found == [[i] for i in range(23)]


def test_a_parquet_file_is_cut_down_to_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"id": range(23)}), path, row_group_size=5)
    files, whole = Files(tmp_path), Segment(PARQUET, str(path), 0, 0, 0, path.stat().st_size)
    assert [ids(files, one) for one in leaves_of(files, whole)] == [[i] for i in range(23)]
    empty = replace_rows(path, 0)
    assert in_two(files, empty) == []
    [(table, rows)] = READERS[PARQUET](
        files, Segment(PARQUET, str(replace_rows(path, 9).file), 4, 3), Wanted((), pa.schema([]))
    )
    assert rows == 4
    assert table.num_columns == 0


def replace_rows(path: Path, rows: int) -> Segment:
    pq.write_table(pa.table({"id": pa.array(range(rows), pa.int64())}), path)
    return Segment(PARQUET, str(path), 0, 0, 0, path.stat().st_size)


def test_the_runs_of_a_bucket_are_cut_between_hashes(tmp_path: Path) -> None:
    files = Files(tmp_path)
    runs = []
    for number, hashes in enumerate(([3, 3, 5, 9], [3, 4, 9, 9, 11], [2**40])):
        table = pa.table({"h": pa.array(hashes, pa.int64())})
        with pa.ipc.new_file(str(tmp_path / f"{number}.arrow"), table.schema) as writer:
            writer.write_table(table)
        runs.append([f"{number}.arrow", len(hashes)])
    whole = Segment(BUCKET_RUNS, json.dumps(runs), 0)
    found = [json.loads(one.file) for one in leaves_of(files, whole)]
    assert found == [
        [["0.arrow", 2, 0], ["1.arrow", 1, 0]],
        [["1.arrow", 1, 1]],
        [["0.arrow", 1, 2]],
        [["0.arrow", 1, 3], ["1.arrow", 2, 2]],
        [["1.arrow", 1, 4]],
        [["2.arrow", 1, 0]],
    ]
    assert in_two(files, Segment(RUN, "0.arrow", 1)) == []
