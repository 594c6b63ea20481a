"""The tables that the guard writes, and on which the views of `guard.sql` are built."""

from __future__ import annotations

from importlib import resources
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TYPE_CHECKING

import pyarrow as pa

from eddyline.errors import CatalogError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eddyline.api.engine import Engine
    from eddyline.api.handles import Table, View

TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "log_lines": ("file STRING, end_at BIGINT, value STRING, read_at TIMESTAMP", ()),
    "log_files": (
        "file STRING, path STRING, device STRING, inode STRING, length BIGINT, beginning STRING",
        ("file",),
    ),
    "clock": ("id INT, now TIMESTAMP", ("id",)),
    "settings": ("name STRING, value DOUBLE", ("name",)),
    "rules": (
        "rule STRING, subject STRING, metric STRING, window_s INT, share DOUBLE, times DOUBLE, "
        "quantile DOUBLE, at_least DOUBLE, at_most DOUBLE, addresses INT, block_s INT, baseline BOOLEAN",
        ("rule",),
    ),
    "zone": ("id INT, name STRING", ("id",)),
    "history": (
        "slot_start TIMESTAMP, subject STRING, metric STRING, window_s INT, targets BIGINT, p50 BIGINT, "
        "p90 BIGINT, p99 BIGINT, top BIGINT, attack_share DOUBLE",
        ("slot_start", "subject", "metric", "window_s"),
    ),
    "allowed": ("network STRING, first_key STRING, last_key STRING", ("network",)),
    "places": (
        "network STRING, bits INT, bucket STRING, first_key STRING, last_key STRING, "
        "region STRING, carrier STRING",
        ("network",),
    ),
    "place_history": (
        "slot_start TIMESTAMP, region STRING, carrier STRING, requests BIGINT",
        ("slot_start", "region", "carrier"),
    ),
    "admissions": (
        "target STRING, rule STRING, evidence STRING, since TIMESTAMP",
        ("target",),
    ),
    "decisions": (
        "id STRING, at TIMESTAMP, who STRING, action STRING, target STRING, first_key STRING, "
        "last_key STRING, until TIMESTAMP, reason STRING",
        (),
    ),
}
"""Name -> columns and primary key; the head of `guard.sql` says what they hold."""

LINES = pa.schema(
    [
        ("file", pa.string()),
        ("end_at", pa.int64()),
        ("value", pa.string()),
        ("read_at", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of `log_lines` in Arrow."""

Network = IPv4Network | IPv6Network
MAPPED_BITS = 96
"""The prefix of the IPv6 addresses that stand for those of IPv4, `::ffff:a.b.c.d`."""
RATED = {4: 24, 6: 48}
"""The prefixes of the networks whose rates the views have."""


def script(name: str = "guard") -> str:
    """Return the text of the views: `guard`, or `baselines` or `places`, which build on them.

    Example:
        >>> "CREATE VIEW block_list" in script()
        True
    """
    return resources.files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def create(engine: Engine, queries: Mapping[str, str]) -> tuple[dict[str, Table], dict[str, View]]:
    """Create the tables, and the views by name -> query, or return those of the storage.

    Raises:
        StorageError: OTHER_RUN: it has others of these names.
    """
    try:
        tables = {name: engine.table(name, *definition) for name, definition in TABLES.items()}
        return tables, {name: engine.view(name, query) for name, query in queries.items()}
    except CatalogError as error:
        if error.condition != "NAME_TAKEN":
            raise
        raise StorageError(
            f"the storage was made with other tables and views than the guard has now: {error.message}",
            condition="OTHER_RUN",
            hint="give the file after sql: that it was made with; or a new folder, which begins with an empty list",
            storage=engine.files.root,
        ) from error


def allowed_row(network: Network) -> tuple[str, str, str]:
    """Return the row of `allowed` for a network.

    Example:
        >>> allowed_row(ip_network("192.0.2.0/30"))[1:]
        ('00000000000000000000ffffc0000200', '00000000000000000000ffffc0000203')
    """
    return (str(network), _key(network.network_address), _key(network.broadcast_address))


def place_row(network: Network, region: str, carrier: str) -> tuple[object, ...]:
    """Return the row of `places` for a network.

    Example:
        >>> place_row(ip_network("192.0.0.0/16"), "EU", "Example")[:3]
        ('192.0.0.0/16', 16, '192')
    """
    text, first, last = allowed_row(network)
    bucket = text.partition(".")[0] if network.version == 4 else first[:4]
    if network.prefixlen == RATED[network.version]:
        bucket = first  # found by equality: there may be many
    return (text, network.prefixlen, bucket, first, last, region, carrier)


def unmapped(network: Network) -> Network:
    """Return a network of IPv4 addresses that is written as one of IPv6 in its usual form, as the views have it.

    Example:
        >>> unmapped(ip_network("::ffff:192.0.2.0/120"))
        IPv4Network('192.0.2.0/24')
    """
    first = network.network_address
    if (
        isinstance(first, IPv4Address)
        or first.ipv4_mapped is None
        or network.prefixlen < MAPPED_BITS
    ):
        return network
    return IPv4Network((first.ipv4_mapped, network.prefixlen - MAPPED_BITS))


def _key(address: IPv4Address | IPv6Address) -> str:
    """Return an address as 32 hexadecimal digits, IPv4 as ::ffff:a.b.c.d."""
    mapped = 0xFFFF << 32 if address.version == 4 else 0
    return f"{int(address) | mapped:032x}"


def network_of(text: str) -> Network:
    """Return an address or network.

    Raises:
        ValueError: it is none, or has a zone such as that of `fe80::1%eth0`, which Python takes and is free text.

    Example:
        >>> network_of("192.0.2.0/24")
        IPv4Network('192.0.2.0/24')
    """
    if "%" in text:
        raise ValueError("an address with a zone is one of a link, not of the network")
    return ip_network(text)


def parse_target(text: str) -> Network | None:
    """Return the address or network that a row of a view names; None if it names none.

    Logs hold what clients send. What this function has not understood goes into no file of a server.

    Example:
        >>> parse_target("2001:db8:0::/48"), parse_target("192.0.2.1; include x")
        (IPv6Network('2001:db8::/48'), None)
    """
    try:
        return network_of(text)
    except ValueError:
        return None
