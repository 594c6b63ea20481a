"""Countries and carriers of addresses, from files in MaxMind's format (MMDB): GeoLite2, DB-IP, IPinfo and others."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from eddyline.errors import DataError, missing_package

UNKNOWN = "unknown"
"""The country and the carrier of a name, of a private address, and of one that a file doesn't hold."""

SAMPLE_NETWORKS = 10_000
"""So many networks of a file tell what it holds."""

KNOWN_MAX = 100_000
"""Addresses whose places a process remembers."""

_MAPPED = "::ffff:"
_ORGANISATIONS = ("autonomous_system_organization", "as_name", "isp")


class Place(NamedTuple):
    """Where an address is.

    Attributes:
        country: its code of two letters (ISO 3166), or `unknown`; None if no file holds countries.
        carrier: the organisation of its autonomous system, or `unknown`; None if no file holds carriers.
    """

    country: str | None
    carrier: str | None


class Places:
    """Files that are open for look-ups. Of two that hold the same, the first that knows an address counts.

    Raises:
        DataError: PLACES_NOT_READABLE, naming the file.
        EngineError: MISSING_PACKAGE.

    Example:
        Places(["GeoLite2-Country.mmdb", "GeoLite2-ASN.mmdb"]).of("8.8.8.8")  # Place("US", "GOOGLE")
    """

    def __init__(self, files: Sequence[str | Path]) -> None:
        try:
            self._library: Any = importlib.import_module("maxminddb")
        except ImportError as error:
            raise missing_package("looking places up", "maxminddb", "apps") from error
        self._files = [str(file) for file in files]
        self._readers = [self._open(file) for file in self._files]
        kinds = set[int]()
        for file, reader in zip(self._files, self._readers, strict=True):
            found = self._kinds(file, reader)
            if not found:
                raise _unreadable(file, "it holds neither countries nor carriers")
            kinds |= found
        self._nowhere = Place(*(UNKNOWN if kind in kinds else None for kind in (0, 1)))
        self._known: dict[str, Place] = {}

    def _open(self, file: str) -> Any:
        try:
            return self._library.open_database(file)
        except (OSError, ValueError, self._library.InvalidDatabaseError) as error:
            raise _unreadable(file, str(error)) from error

    def _kinds(self, file: str, reader: Any) -> set[int]:
        """Return what the file holds: 0, countries; 1, carriers."""
        found = set[int]()
        try:
            for _, record in islice(reader, SAMPLE_NETWORKS):
                found |= {kind for kind, name in enumerate(_place(record)) if name is not None}
                if len(found) == len(Place._fields):
                    break
        except self._library.InvalidDatabaseError as error:
            raise _unreadable(file, str(error)) from error
        return found

    def of(self, address: str) -> Place:
        """Return the place of an address. A text that is no address is nowhere."""
        place = self._known.get(address)
        if place is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            place = self._known[address] = self._find(address)
        return place

    def _find(self, address: str) -> Place:
        country, carrier = None, None
        text = address.removeprefix(_MAPPED) if "." in address else address
        for file, reader in zip(self._files, self._readers, strict=True):
            try:
                found = _place(reader.get(text))
            except ValueError:  # no address; or one of IPv6, and the file is of IPv4 only
                continue
            except self._library.InvalidDatabaseError as error:
                raise _unreadable(file, str(error)) from error
            country, carrier = country or found.country, carrier or found.carrier
        return Place(country or self._nowhere.country, carrier or self._nowhere.carrier)


@lru_cache(maxsize=8)
def opened(files: tuple[str, ...]) -> Places:
    """Return files that stay open in this process. They must not change."""
    return Places(files)


def _place(record: Any) -> Place:
    """Return what a record says; None where it says nothing.

    Example:
        >>> _place({"country": {"iso_code": "DE"}}), _place({"country_code": "FR", "as_name": "Orange"})
        (Place(country='DE', carrier=None), Place(country='FR', carrier='Orange'))
    """
    if not isinstance(record, dict):
        return Place(None, None)
    country = record.get("country_code") or record.get("country")
    if isinstance(country, dict):
        country = country.get("iso_code")
    carrier = next((record[name] for name in _ORGANISATIONS if record.get(name)), None)
    return Place(
        country if isinstance(country, str) and len(country) == 2 else None,
        carrier if isinstance(carrier, str) else None,
    )


def _unreadable(file: str, why: str) -> DataError:
    return DataError(
        f"{file} can't be used to look places up: {why}",
        condition="PLACES_NOT_READABLE",
        hint="give a file in MaxMind's format (.mmdb) with countries or autonomous systems",
    )
