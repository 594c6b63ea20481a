"""Write the block list into files that servers read, and signal the servers."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network
from pathlib import Path

from eddyline.errors import EngineError
from eddyline_apps.guard.config import FILES, SIGNALS, Config, Notification
from eddyline_apps.guard.sections import wrong
from eddyline_apps.guard.tables import Network, parse_target

_LOG = logging.getLogger("eddyline.guard")


class ListFile:
    """A file with the block list, replaced as a whole, and the server that reads it.

    `publish` can be called again with the same list: the file then stays as it is. The file has
    addresses and networks only, nothing else that comes from a log.
    """

    def __init__(self, notification: Notification) -> None:
        self._to = notification.to
        self._options = notification.options
        self._path = Path(notification.options["file"])
        self._published: str | None = None

    def publish(self, targets: Iterable[str]) -> None:
        """Make the file's content these targets; signal the server if that is a change.

        The first call signals in any case: the process may have ended between the file and the signal.

        Raises:
            EngineError: SINK_FAILED, the file can't be written or the server isn't there.
        """
        text = render(self._to, _networks(targets), self._options)
        if text == self._published:
            return
        try:
            if not self._path.exists() or self._path.read_text(encoding="utf-8") != text:
                replace_file(self._path, text)
            self._signal()
        except (OSError, OverflowError, ValueError) as error:
            raise EngineError(
                f"the block list can't be given to {self._to}: {error}",
                condition="SINK_FAILED",
                hint="mend the path, the permissions or the server; it is tried again",
            ) from error
        self._published = text

    def _signal(self) -> None:
        if "pid" not in self._options:
            return
        chosen = self._options.get("signal", "USR2" if self._to == "haproxy" else "HUP")
        place = Path(self._options["pid"])
        try:
            pid = int(place.read_text(encoding="ascii"))
            if pid < 2:
                raise ValueError(f"{place} holds no process id")
            os.kill(pid, SIGNALS[chosen])
        except (FileNotFoundError, ProcessLookupError):
            _LOG.info("no server runs by %s: it reads the list when it starts", place)


def check_folders(path: Path, config: Config) -> None:
    """Refuse files in folders where none can be written; call it if they are to be written.

    Args:
        path: of the configuration.

    Raises:
        ScriptError: BAD_CONFIG.
    """
    for number, one in enumerate(config.notify):
        if one.to not in FILES:
            continue
        folder = Path(one.options["file"]).absolute().parent
        exists = folder.is_dir()
        if not exists or not os.access(folder, os.W_OK | os.X_OK):
            what = "no file can be written in" if exists else "there is no folder"
            hint = "make the folder, let the guard's user write there, or give another path"
            raise wrong(path, f"notify[{number}].file", f"{what} {folder}", hint)


def render(to: str, networks: list[Network], options: Mapping[str, str]) -> str:
    """Return the content of a file of one of the kinds `config.FILES`."""
    if to == "nftables":
        return _nftables(networks, options)
    form = {"nginx": "deny {};\n", "nginx_geo": "{} 1;\n", "haproxy": "{}\n"}[to]
    return "# written by eddyline guard\n" + "".join(form.format(_short(one)) for one in networks)


def _nftables(networks: list[Network], options: Mapping[str, str]) -> str:
    """Return commands for `nft -f`: two sets, for IPv4 and IPv6, emptied and filled in one transaction."""
    table, name = options.get("table", "inet filter"), options.get("set", "blocked")
    lines = ["# written by eddyline guard\n"]
    for suffix, kind in (("4", "ipv4_addr"), ("6", "ipv6_addr")):
        place = f"{table} {name}{suffix}"
        some = [_short(one) for one in networks if isinstance(one, IPv4Network) == (suffix == "4")]
        lines.append(f"add set {place} {{ type {kind}; flags interval; auto-merge; }}\n")
        lines.append(f"flush set {place}\n")
        if some:
            lines.append(f"add element {place} {{ {', '.join(some)} }}\n")
    return "".join(lines)


def _networks(targets: Iterable[str]) -> list[Network]:
    """Return the targets in order, without those that are no address or network."""
    found = {one for one in map(parse_target, targets) if one is not None}
    return sorted(found, key=lambda one: (one.version, int(one.network_address), one.prefixlen))


def _short(network: Network) -> str:
    """Return a network, or an address without the length of its prefix."""
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)


def replace_file(path: Path, text: str) -> None:
    """Replace a file as a whole, durably: no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)  # servers read it as another user
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
