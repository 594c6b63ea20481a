"""The command `warm-up`: keep the classes that Spark loads in an archive, so that it starts faster."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eddyline.cli.arguments import Commands, add_command
from eddyline.cli.output import Output, add_format
from eddyline.cli.text import size
from eddyline.errors import EngineError

SCRIPT = """
CREATE TABLE shops (id INT, country STRING);
INSERT INTO shops VALUES (1, 'de'), (2, 'fr');
CREATE STREAM sales (ts TIMESTAMP, shop INT, item STRING, price DOUBLE) USING json OPTIONS (path '{data}');
CREATE VIEW by_country AS SELECT country, count(*) AS n, sum(price) AS total, count(DISTINCT item) AS items
FROM sales JOIN shops ON shop = id WHERE price > 0 GROUP BY country;
CREATE VIEW newest AS SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY shop ORDER BY ts DESC) AS r FROM sales) WHERE r <= 2;
CREATE VIEW best AS SELECT country, n FROM by_country WHERE n >= (SELECT avg(n) FROM by_country) ORDER BY n DESC LIMIT 3;
"""
"""Views of the common kinds."""

SALES = """\
{"ts": "2026-01-01 10:00:00", "shop": 1, "item": "tea", "price": 3.5}
{"ts": "2026-01-01 10:00:04", "shop": 1, "item": "milk", "price": 1.25}
{"ts": "2026-01-01 11:00:04", "shop": 2, "item": "tea", "price": 3.75}
"""

_RECORD = "import sys; from eddyline.cli.warm_up import record; sys.exit(record(sys.argv[1]))"


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "keep the classes that Spark loads in an archive, with which Spark starts some seconds faster"
    parser = add_command(commands, "warm-up", _warm_up, purpose)
    add_format(parser)


def _warm_up(args: argparse.Namespace) -> int:
    from eddyline.spark.class_archive import archive_path, archives_of_this_spark, make_base_archive
    from eddyline.spark.java import provide_java

    provide_java()
    path = archive_path()
    if path is None:
        raise _refusal("the JVM has no lib/server/libjvm.so", "set JAVA_HOME")
    if " " in str(path):  # it would end the option of the JVM
        raise _refusal(
            f"its path {path} has spaces", "use an environment without spaces in its path"
        )
    out = Output(args.format)
    out.say(
        "Spark runs some views and records which classes it loads. This takes less than a minute."
    )
    began = time.monotonic()
    try:
        make_base_archive()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".recorded-", dir=path.parent) as folder:
            _record_into(Path(folder, path.name))
            Path(folder, path.name).replace(path)
        for older in archives_of_this_spark(path):
            if older != path:
                older.unlink(missing_ok=True)
    except OSError as error:
        way_out = "call it as the owner of this environment, or use a virtual environment"
        raise _refusal(f"{error.strerror}: {error.filename}", way_out) from error
    took, stored = time.monotonic() - began, path.stat().st_size
    out.say(
        f"{path}: {size(stored)}, in {took:.0f} s", "class archive",
        path=str(path), bytes=stored, seconds=round(took, 1),
    )  # fmt: skip
    return 0


def _record_into(path: Path) -> None:
    """Let a process of its own write the archive, as whole as it must be: a JVM ends at one that is cut off."""
    command = [sys.executable, "-c", _RECORD, str(path)]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    if done.returncode or not path.exists():
        said = [line for line in (done.stdout + done.stderr).splitlines() if "rror: " in line]
        raise _refusal(said[-1] if said else "Java has written none", "see `eddyline doctor`")
    with path.open("rb") as archive:
        os.fsync(archive.fileno())


def record(path: str) -> int:
    """Let the JVM of this process load the classes of views of common kinds, and write an archive of them when it ends.

    Returns:
        the exit code of the JVM.
    """
    from eddyline.api.engine import Engine
    from eddyline.options import Options
    from eddyline.spark.class_archive import recording_options
    from eddyline.spark.jvm import end_jvm, java_settings, logging_options, start_jvm

    start_jvm(java_settings(logging_options(), recording_options(Path(path))))
    for rows in (Options().short_lane_rows, 0):  # epochs in the driver, and as jobs
        with tempfile.TemporaryDirectory(prefix="eddyline-warm-up-") as folder:
            Path(folder, "sales.json").write_text(SALES)
            with Engine(Path(folder, "storage"), options=Options(short_lane_rows=rows)) as engine:
                engine.execute(SCRIPT.format(data=folder))
                engine.advance()
                engine.sql("SELECT * FROM best").collect()
    return end_jvm()


def _refusal(reason: str, way_out: str) -> EngineError:
    return EngineError(
        f"no archive of Spark's classes can be made: {reason}",
        condition="NO_CLASS_ARCHIVE",
        hint=f"{way_out}; without it Spark starts as before",
    )
