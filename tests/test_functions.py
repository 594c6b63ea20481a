"""Each built-in function of Spark is live, or refused as `docs/coverage.md` says."""

from __future__ import annotations

import json

import pytest

import eddyline as el
import functions
from eddyline.spark.session import local_session

FOUND = functions.read()
LIVE = [function for function in FOUND if function.outcome == "live"]
REFUSED = [function for function in FOUND if function.outcome == "refused"]


@pytest.fixture(scope="module")
def spark():
    return functions.session(local_session())


def test_the_page_is_made_from_what_was_found():
    version = json.loads(functions.FOUND.read_text())["spark"]
    assert functions.PAGE.read_text() == functions.page(FOUND, version), "run `make coverage`"


def test_nothing_that_spark_runs_is_wrong():
    assert [
        one.name for one in FOUND if one.outcome not in ("live", "refused", "unavailable")
    ] == []
    assert len(LIVE) > 500


@pytest.mark.spark
def test_every_function_of_this_spark_is_in_the_file(spark):
    names = set(functions.known(spark))
    found = {function.name for function in FOUND}
    assert (names - found, found - names) == (set(), set()), "run `make coverage`"


@pytest.mark.spark
def test_refused_functions_are_refused_with_reason_and_way_out(spark, tmp_path):
    with el.Engine(str(tmp_path), spark=spark) as engine:
        engine.table("t", functions.COLUMNS)
        for function in REFUSED:
            with pytest.raises(el.QueryError) as error:
                engine.view("refused", function.queries[0])
            assert str(error.value).startswith(function.why[:60]), function
            assert error.value.hint


def differing(spark, chosen):
    trial = functions.Trial(spark, functions.packs(chosen))
    try:
        return trial.differing()
    finally:
        trial.close()


@pytest.mark.spark
def test_a_sample_of_functions_equals_offline_at_every_epoch(spark):
    assert differing(spark, LIVE[::25]) == {}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_every_live_function_equals_offline_at_every_epoch(spark):
    assert differing(spark, LIVE) == {}
