"""A real Kafka broker for tests: one node of Kafka's own distribution, on loopback and free ports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from eddyline_apps import kafka
from eddyline_apps.processes import free_port

ROOT = Path(__file__).parents[1]
JARS = ROOT / ".kafka"


class Broker(kafka.Broker):
    """A broker with the jars of this repository; Maven downloads them if they are missing."""

    def __init__(self, folder: Path) -> None:
        if not list(JARS.glob("kafka_2.13-*.jar")):
            if shutil.which("mvn") is None and not os.environ.get("CI"):
                pytest.skip("Kafka's jars are missing: `make kafka` fetches them with Maven")
            subprocess.run(["make", "--no-print-directory", "kafka"], cwd=ROOT, check=True)
        super().__init__(folder, JARS)


class SecuredBroker(Broker):
    """A broker that has a second port, for TLS and the user `reader`; `authority` is the file that signs for it.

    Tests make their topics at `address`, the port without either.
    """

    PASSWORD = "f37c-quite/secret"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        port, keys = free_port(), folder / "keys.p12"
        self.secured = f"127.0.0.1:{port}"
        self.authority = folder / "authority.pem"
        store = ["-keystore", str(keys), "-storepass", "changeit", "-alias", "broker"]
        made = [
            "-genkeypair",
            "-keyalg",
            "RSA",
            "-dname",
            "CN=localhost",
            "-ext",
            "san=ip:127.0.0.1",
        ]
        for arguments in (made, ["-exportcert", "-rfc", "-file", str(self.authority)]):
            subprocess.run(["keytool", *arguments, *store], check=True, capture_output=True)
        text = self._properties.read_text()
        security = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL"
        text = text.replace("\nlisteners=", f"\nlisteners=SECURED://{self.secured},")
        self._properties.write_text(
            text
            + f"""
listener.security.protocol.map={security}
listener.name.secured.sasl.enabled.mechanisms=PLAIN
listener.name.secured.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
    required user_reader="{self.PASSWORD}";
ssl.keystore.location={keys}
ssl.keystore.password=changeit
ssl.keystore.type=PKCS12
"""
        )
