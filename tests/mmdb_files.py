"""Small files in MaxMind's format, for tests of places."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mmdb_writer")

from mmdb_writer import MMDBWriter
from netaddr import IPSet


def write_mmdb(path: Path, records: Mapping[str, Any], version: int = 6) -> Path:
    """Write a file that says of each network what its record is."""
    writer = MMDBWriter(
        ip_version=version, ipv4_compatible=version == 6, database_type="Eddyline-Test"
    )
    for network, record in records.items():
        writer.insert_network(IPSet([network]), record)
    writer.to_db_file(str(path))
    return path


def countries(path: Path, codes: Mapping[str, str], version: int = 6) -> Path:
    """Write a file of countries, as GeoLite2-Country and DB-IP have them."""
    records = {
        network: {"country": {"iso_code": code, "names": {"en": f"Land of {code}"}}}
        for network, code in codes.items()
    }
    return write_mmdb(path, records, version)


def carriers(path: Path, names: Mapping[str, str], version: int = 6) -> Path:
    """Write a file of autonomous systems, as GeoLite2-ASN and DB-IP have them."""
    records = {
        network: {"autonomous_system_number": 64500, "autonomous_system_organization": name}
        for network, name in names.items()
    }
    return write_mmdb(path, records, version)
