"""Runs statements of Flink SQL in an interpreter that has PyFlink: a request a line comes in, a line goes out.

`eddyline_bench.flink` starts it. A request is JSON: `settings` of the table environment and `statements`, of
which each is waited for. The answer is `{}`, or `{"error": text}`.
"""

from __future__ import annotations

import json
import sys

from pyflink.common import Configuration  # type: ignore[import-not-found]
from pyflink.table import (  # type: ignore[import-not-found]
    EnvironmentSettings,
    TableEnvironment,
)


def _run(settings: dict[str, str], statements: list[str]) -> None:
    configuration = Configuration()
    for name, value in settings.items():
        configuration.set_string(name, value)
    built = EnvironmentSettings.new_instance().in_streaming_mode()
    environment = TableEnvironment.create(built.with_configuration(configuration).build())
    for statement in statements:
        environment.execute_sql(statement).wait()


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        try:
            _run(**json.loads(line))
            answer = {}
        except Exception as error:  # noqa: BLE001 - the other process raises it
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
