"""A real schema registry for slow tests: Apicurio, with the interface of Confluent's, in memory and on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from eddyline_apps.processes import SHORT_LIVED, free_port

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".registry"
START_SECONDS_MAX = 120.0


class SchemaRegistry:
    """What tests ask of the registry at `url`."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def add(self, subject: str, schema: Any, **more: Any) -> int:
        """Register a version of a subject; return the number of its schema."""
        document = {"schema": json.dumps(schema), "schemaType": "AVRO", **more}
        return int(self.ask(f"/subjects/{quote(subject, safe='')}/versions", document)["id"])

    def ask(self, path: str, document: Any = None) -> Any:
        data = None if document is None else json.dumps(document).encode()
        kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        with urlopen(Request(self.url + path, data, kind), timeout=20) as answer:
            return json.load(answer)


@contextmanager
def schema_registry(folder: Path) -> Iterator[SchemaRegistry]:
    """Run a registry with its log in `folder`; Maven downloads its 109 MB if they are missing."""
    if not list(FOLDER.glob("*-runner.jar")):
        if shutil.which("mvn") is None and not os.environ.get("CI"):
            pytest.skip("the registry's jars are missing: `make registry` fetches them with Maven")
        subprocess.run(["make", "--no-print-directory", "registry"], cwd=ROOT, check=True)
    jar, port = next(FOLDER.glob("*-runner.jar")), free_port()
    settings = ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = ["java", *SHORT_LIVED.split(), "-Xmx512m", *settings, "-jar", str(jar)]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        registry, until = SchemaRegistry(port), time.monotonic() + START_SECONDS_MAX
        while True:
            with suppress(URLError, ConnectionError):
                registry.ask("/subjects")
                break
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < until
            time.sleep(0.2)
        yield registry
    finally:
        process.kill()
        process.wait()
