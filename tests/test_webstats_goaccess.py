"""GoAccess counts the same hits, visitors and bytes in a log as the web statistics do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from eddyline_apps import demo
from eddyline_apps.traffic import Traffic
from test_web_statistics import DATA, LOGS, truth
from test_webstats_views import offline, session  # noqa: F401
from waiting import PATIENCE_S

UNPACKED = Path(__file__).parents[1] / ".goaccess"
GOACCESS = shutil.which("goaccess") or next(map(str, UNPACKED.glob("usr/bin/goaccess")), None)


def goaccess(log, log_format, folder):
    """Run GoAccess over a log; return its report. It counts whoever got a 4xx only if asked to, and hosts that are names."""
    libraries = ":".join(map(str, UNPACKED.glob("usr/lib/*")))
    command = [
        GOACCESS, log, "--log-format", log_format, "--no-global-config", "--no-ip-validation",
        "--4xx-to-unique-count", "-o", folder / "report.json",
    ]  # fmt: skip
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
    subprocess.run(
        command,
        check=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment,
    )
    return json.loads((folder / "report.json").read_text())


def made_up():
    """The lines of the busiest made-up site, without its name: GoAccess counts all sites together."""
    lines = (
        line
        for batch in Traffic(lines=6000, days=3, seed=2, malformed_share=0).batches(6000)
        for line in batch
    )
    return [line.partition(" ")[2] for line in lines if line.startswith("www.harbour.")]


@pytest.mark.spark
@pytest.mark.parametrize(
    "name",
    ["made up", pytest.param("nasa_19950801_fullday", marks=pytest.mark.slow), "elastic_apache"],
)
def test_goaccess_counts_the_same(name, offline, tmp_path):  # noqa: F811
    if GOACCESS is None:
        pytest.skip("GoAccess is not installed: `make goaccess` fetches it from apt")
    if name == "made up":
        lines = made_up()
    else:
        truth(name)  # skips without the log
        lines = list(demo.read_log(DATA / LOGS[name]))
    if name == "elastic_apache":  # GoAccess takes the line whose last quote is missing
        lines = [line for line in lines if line.endswith('"')]
    log = tmp_path / "access.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    report = goaccess(log, "COMMON" if name.startswith("nasa") else "COMBINED", tmp_path)
    assert (report["general"]["valid_requests"], report["general"]["failed_requests"]) == (len(lines), 0)  # fmt: skip

    theirs = {
        row["data"]: (row["hits"]["count"], row["visitors"]["count"], row["bytes"]["count"])
        for row in report["visitors"]["data"]
    }
    query = """
        SELECT date_format(day, 'yyyyMMdd'), sum(pv), sum(uv), sum(bytes) FROM daily_statistics GROUP BY day
    """
    assert {day: tuple(figures) for day, *figures in offline(lines, query)} == theirs
    hours = {row["data"]: row["hits"]["count"] for row in report["visit_time"]["data"]}
    query = "SELECT lpad(hour, 2, '0'), sum(pv) FROM hourly_statistics GROUP BY hour"
    assert dict(offline(lines, query)) == hours
    statuses = {
        item["data"][:3]: item["hits"]["count"]
        for group in report["status_codes"]["data"]
        for item in group["items"]
    }
    query = "SELECT value, sum(requests) FROM day_values WHERE kind = 'status' GROUP BY value"
    assert dict(offline(lines, query)) == statuses
