"""Live equals offline for random queries over random changes; a failing one is printed as a script."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

import random_sql

pytestmark = [pytest.mark.spark, pytest.mark.timeout(7200)]

RANDOM = settings(
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


def run(script: str) -> None:
    exec(compile(script, "random_sql_case.py", "exec"), {})


def run_as_printed(case: random_sql.Case) -> None:
    """Run the case as the script that is printed when it fails."""
    script = random_sql.script(case)
    note(script)
    run(script)


@given(case=random_sql.cases())
@settings(RANDOM, max_examples=3)
def test_a_few_random_queries_equal_offline_at_every_epoch(case):
    run_as_printed(case)


@pytest.mark.slow
@given(case=random_sql.cases())
@settings(RANDOM, max_examples=300)
def test_many_random_queries_equal_offline_at_every_epoch(case):
    run_as_printed(case)


def test_a_printed_script_fails_where_live_and_offline_differ():
    change = ("t0", "insert", [(1,)])
    case = random_sql.Case({"t0": "c0 BIGINT"}, {"result": "SELECT c0 FROM t0"}, [[change]], "None")
    script = random_sql.script(case)
    run(script)
    wrong = script.replace("offline.view(name, query)", "offline.view(name, query + ' LIMIT 0')")
    with pytest.raises(AssertionError, match="result, epoch 1"):
        run(wrong)
