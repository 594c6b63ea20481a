"""Refusals are reported once, by Eddyline: PySpark's own log of them is kept out."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col

from eddyline import Engine
from eddyline.errors import DataError, QueryError
from eddyline.spark.query_errors import LOGGERS
from eddyline.spark.session import local_session


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path, local_session()) as engine:
        engine.table("t", "a INT")
        yield engine


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What PySpark logs about failed queries."""
    handler = logging.StreamHandler(io.StringIO())
    for name in LOGGERS:
        logging.getLogger(name).addHandler(handler)
    yield handler.stream
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.spark
def test_refusals_are_not_logged_by_pyspark(
    engine: Engine, logged: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "eddyline.spark")
    with pytest.raises(QueryError, match="nope"):
        engine.view("v", "SELECT nope FROM t")
    with pytest.raises(QueryError, match="nope"):
        engine.sql("SELECT nope FROM t")
    with pytest.raises(QueryError, match="nope"):
        engine.execute("DELETE FROM t WHERE nope > 1")
    with pytest.raises(DataError, match="BAD_SCHEMA"):
        engine.table("u", "a NOPE")
    assert logged.getvalue() == ""
    found = [record for record in caplog.records if record.name == "eddyline.spark"]
    assert len(found) >= 3
    assert all(record.levelno == logging.DEBUG for record in found)


@pytest.mark.spark
def test_the_users_own_queries_are_logged_as_before(engine: Engine, logged: io.StringIO) -> None:
    with pytest.raises(AnalysisException):
        engine.spark.range(1).select(col("nope")).collect()
    with pytest.raises(AnalysisException):
        engine.spark.sql("SELECT nope FROM range(1)")
    assert "nope" in logged.getvalue()
