"""Where the networks of a log are, by files in MaxMind's format: rows of the table `places` for those that are seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from ipaddress import ip_network
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from eddyline_apps.addresses import parsed_address
from eddyline_apps.guard.tables import RATED, Network, parse_target, place_row
from eddyline_apps.places import UNKNOWN, Places

WORDS_MAX = 200_000
"""Words of lines of which it is remembered what network they are in."""


class SeenNetworks:
    """The networks, /24 and /48, that were seen, and where they are: where their first address is.

    Args:
        own: networks whose places are known from elsewhere; no rows are made for what lies in them.
        files: in MaxMind's format.

    Raises:
        DataError: PLACES_NOT_READABLE, naming a file.
        EngineError: MISSING_PACKAGE.
    """

    def __init__(self, own: Iterable[Network], files: Sequence[str]) -> None:
        with TemporaryDirectory(prefix="eddyline-places-") as folder:
            # They stay mapped when the folder is gone. To write over a mapped file would end this process.
            self._places = Places(
                [
                    copyfile(file, Path(folder, f"{place}-{Path(file).name}"))
                    for place, file in enumerate(files)
                ]
            )
        self._own = set(own)
        self._lengths = {(one.version, one.prefixlen) for one in self._own}
        self._words: dict[str, Network | None] = {}
        self._seen: dict[Network, datetime | None] = {}  # None: in an earlier run

    def start(self, texts: Iterable[str]) -> list[tuple[object, ...]]:
        """Return the rows of networks that were seen in an earlier run, by these files."""
        known = {one for one in map(parse_target, texts) if one is not None}
        longest = (one for one in known if one.prefixlen == RATED[one.version])
        kept = [one for one in longest if not self._is_own(one)]
        self._seen |= dict.fromkeys(kept)
        return [self._row(one) for one in kept]

    def observe(self, lines: pa.Array, now: datetime) -> list[tuple[object, ...]]:
        """Return the rows of the networks of lines that weren't seen before.

        An address is one of the first two words of a line, as in the formats that the guard reads.
        """
        words = pc.list_flatten(pc.list_slice(pc.split_pattern(lines, " ", max_splits=2), 0, 2))
        if len(self._words) > WORDS_MAX:
            self._words.clear()
        rows = []
        for word in words.unique().to_pylist():  # few: each once, however many lines it has
            network = self._network(word)
            if network is not None:
                if network not in self._seen:
                    rows.append(self._row(network))
                self._seen[network] = now
        return rows

    def forget(self, now: datetime, keep_s: float) -> list[str]:
        """Forget the networks that weren't seen for so long; return them."""
        self._seen = {network: last or now for network, last in self._seen.items()}
        before = now - timedelta(seconds=keep_s)
        gone = [network for network, last in self._seen.items() if last and last < before]
        for network in gone:
            del self._seen[network]
        return [str(network) for network in gone]

    def _network(self, word: str) -> Network | None:
        try:
            return self._words[word]
        except KeyError:
            found = self._words[word] = self._parsed(word)
            return found

    def _parsed(self, word: str) -> Network | None:
        try:
            address = parsed_address(word)
        except ValueError:
            return None
        network = ip_network(f"{address}/{RATED[address.version]}", strict=False)
        return None if self._is_own(network) else network

    def _is_own(self, network: Network) -> bool:
        return any(
            version == network.version
            and length <= network.prefixlen
            and network.supernet(new_prefix=length) in self._own
            for version, length in self._lengths
        )

    def _row(self, network: Network) -> tuple[object, ...]:
        place = self._places.of(str(network.network_address))
        return place_row(network, place.country or UNKNOWN, place.carrier or UNKNOWN)
