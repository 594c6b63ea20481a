"""Generate input: 20-field records of network traffic, in NDJSON files."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl

SCHEMA = (
    "timestamp TIMESTAMP, sip STRING, type STRING, dip STRING, sp INT, dp INT, pr INT, "
    "n BIGINT, ib BIGINT, ob BIGINT, ip INT, op INT, fl INT, tt INT, tos INT, d INT, "
    "vl INT, v INT, st STRING, ok BOOLEAN"
)
"""The 20 fields as Spark types."""

TYPES = ("dns", "ftp", "http", "icmp", "ntp", "smtp", "ssh", "tls")
SOURCES = 1000
SPAN_SECONDS = 600
START = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())


def tuples(first: int, rows: int, total: int, seed: int = 0) -> pl.DataFrame:
    """Generate records `first` to `first + rows - 1` of `total`.

    All `total` records together span ten minutes of event time, in order. The same arguments give the
    same records.
    """
    random = np.random.default_rng([seed, first])
    number = np.arange(first, first + rows)
    second = START + number * SPAN_SECONDS // total
    # Log-uniform: few addresses send most of the records.
    source = np.exp(random.uniform(0, np.log(SOURCES), rows)).astype(np.int64)
    small = random.integers(0, 10, rows)
    columns = pl.DataFrame(
        {
            "second": second,
            "source": source,
            "kind": random.integers(0, len(TYPES), rows),
            "small": small,
            "port": random.integers(1024, 65536, rows),
            "bytes": random.integers(40, 1500, rows),
            "number": number,
        }
    )
    return columns.select(
        pl.from_epoch("second").dt.strftime("%Y-%m-%dT%H:%M:%SZ").alias("timestamp"),
        pl.format("10.0.{}.{}", pl.col("source") // 256, pl.col("source") % 256).alias("sip"),
        pl.Series(TYPES).gather(columns["kind"]).alias("type"),
        pl.format("10.1.0.{}", "small").alias("dip"),
        pl.col("port").alias("sp"),
        (pl.col("small") + 80).alias("dp"),
        pl.lit(6).alias("pr"),
        pl.col("number").alias("n"),
        pl.col("bytes").alias("ib"),
        (pl.col("bytes") // 2).alias("ob"),
        (pl.col("small") + 1).alias("ip"),
        pl.col("small").alias("op"),
        (pl.col("bytes") % 64).alias("fl"),
        pl.lit(64).alias("tt"),
        pl.lit(0).alias("tos"),
        (pl.col("bytes") % 100).alias("d"),
        (pl.col("small") % 4).alias("vl"),
        pl.lit(4).alias("v"),
        pl.lit("e").alias("st"),
        (pl.col("small") < 9).alias("ok"),
    )


def write_tuples(folder: Path, rows: int, files: int, total: int | None = None) -> int:
    """Write `rows` records into `files` NDJSON files, in order; return the number of bytes.

    Args:
        total: number of records that span ten minutes of event time; `rows` by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    edges = [rows * i // files for i in range(files + 1)]
    written = 0
    for number, (first, end) in enumerate(pairwise(edges)):
        path = folder / f"part-{number:05d}.json"
        tuples(first, end - first, total or rows).write_ndjson(path)
        written += path.stat().st_size
    return written
