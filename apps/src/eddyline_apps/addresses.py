"""IP addresses as logs and requests have them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address


def parsed_address(text: str) -> IPv4Address | IPv6Address:
    """Return an address; one of IPv4 that is written as one of IPv6, `::ffff:a.b.c.d`, as IPv4.

    Raises:
        ValueError: it is none.

    Example:
        >>> parsed_address("::ffff:192.0.2.1"), parsed_address("2001:db8::1")
        (IPv4Address('192.0.2.1'), IPv6Address('2001:db8::1'))
    """
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
