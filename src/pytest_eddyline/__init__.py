"""Fixtures for tests of live views. pytest finds them where Eddyline is installed.

Example:
    >>> def test_counts(live):
    ...     live.table("clicks", [{"url": "/"}, {"url": "/"}], "url STRING")
    ...     live.view("counts", "SELECT url, count(*) AS n FROM clicks GROUP BY url")
    ...     live.assert_live("counts", [{"url": "/", "n": 2}])
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pytest_eddyline.live import Live

# What needs Spark is imported by the fixtures: pytest loads this module in every project.


@pytest.fixture(scope="session")
def eddyline_spark() -> SparkSession:
    """The Spark session of all tests: the present one of the process, or a local one with two threads."""
    from eddyline.spark.session import local_session

    return local_session()


@pytest.fixture
def live(tmp_path: Path, eddyline_spark: SparkSession) -> Iterator[Live]:
    """An engine on an empty storage, with what a test needs around it."""
    from pytest_eddyline.live import Live

    with Live(tmp_path / "eddyline", eddyline_spark) as found:
        yield found
