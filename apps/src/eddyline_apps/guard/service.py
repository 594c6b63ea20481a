"""The guard at work: puts lines into the engine, admits to the block list, and frees from it."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from eddyline.answers.quick import quick_answer
from eddyline.errors import ScriptError
from eddyline.source.growing import Known
from eddyline_apps import views
from eddyline_apps.guard.config import Config
from eddyline_apps.guard.decisions import ALLOW
from eddyline_apps.guard.placing import SeenNetworks
from eddyline_apps.guard.tables import (
    LINES,
    TABLES,
    allowed_row,
    create,
    parse_target,
    place_row,
    script,
)
from eddyline_apps.guard.verifying import DNS, LOOKUPS_MAX, Verifier

if TYPE_CHECKING:
    from eddyline.api.engine import Engine
    from eddyline_apps.guard.reading import Line

BUSIEST = 3
"""So many addresses of a network are verified."""

SETTLE_S = 60
"""An admission that the list doesn't show after so long has no evidence any more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """An address or network that is put on the list.

    Attributes:
        evidence: the gravest window over a limit, as text.
    """

    target: str
    rule: str
    evidence: str


class Decided(NamedTuple):
    """A decision by hand: `block` or `allow`, with its end, as text."""

    target: str
    action: str
    who: str
    reason: str
    until: str


class Quiet(NamedTuple):
    """A region and carrier, its requests in the newest 5 minutes, and what is usual, as text."""

    region: str
    carrier: str
    requests: str
    usual: str


class Guard:
    """Keeps the block list of an engine. Everything that matters is in the engine's tables.

    All times come from the caller, with a time zone.

    Args:
        config: its rules, settings and allow-list replace those of the storage.

    Attributes:
        views: by name.
        crowded: whether someone waits for a place on the list.
        unverified: whether someone waits for the next round of look-ups of names.

    Raises:
        StorageError: OTHER_RUN: the storage has other views than the configuration.
    """

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._config = config
        text = config.sql
        if text is None:
            text = script()
            text += script("baselines") if config.baselines else ""
            text += script("places") if config.has_places else ""
        self._networks = (
            SeenNetworks((one for one, *_ in config.places), config.place_files)
            if config.place_files
            else None
        )
        self._tables, self.views = create(engine, views(text))
        self._by_hand = self._decisions()  # as of the last epoch: these were returned before
        self._configure()
        engine.advance()  # what was written before a crash counts
        rows = engine.sql("SELECT target, since FROM admissions ORDER BY since").collect()
        self._admitted: dict[str, datetime] = {
            row["target"]: row["since"].astimezone(UTC) for row in rows
        }
        self._admissions = deque(self._admitted.values())  # times, for the limit of a minute
        self._listed: set[str] = set()
        self._files: Mapping[str, Known] = {}
        self._quiet: set[tuple[str, ...]] = set()
        self._history_cut: datetime | None = None
        self.crowded = True
        self.unverified = False
        self._verifier: Verifier | None = None
        self._engines: dict[str, datetime] = {}  # verified, until when
        if config.verify is not None:
            if "by_hand" not in self.views:
                raise ScriptError(
                    "verify needs the views by_hand and exempt, which the configuration's views don't have",
                    condition="BAD_CONFIG",
                    hint="copy them from guard.sql, or leave verify out",
                )
            self._verifier = Verifier(config.verify)

    def _configure(self) -> None:
        """Make the tables of rules, settings and allowed networks those of the configuration."""
        config = self._config
        capacity = [] if config.capacity is None else [("capacity", config.capacity)]
        self._replace("rules", [rule.row for rule in config.rules])
        self._replace("settings", capacity)
        self._replace("zone", [(1, config.zone)])
        self._replace("allowed", [allowed_row(one) for one in config.allow])
        places = [place_row(*one) for one in config.places]
        if self._networks is not None:
            seen = "SELECT network FROM places"
            if "network_rates" in self.views:  # views of the user's own may do without
                seen += " UNION SELECT network FROM network_rates WHERE window_s = 300"
            places += self._networks.start(row[0] for row in self._engine.sql(seen).collect())
        self._replace("places", places)

    def _replace(self, name: str, rows: Sequence[tuple[object, ...]]) -> None:
        known = {tuple(row) for row in self._engine.sql(f"SELECT * FROM {name}").collect()}
        keys = {row[0] for row in rows}
        if gone := [row for row in known if row[0] not in keys]:
            self._tables[name].delete(gone)
        if new := [row for row in rows if row not in known]:
            self._tables[name].upsert(new)

    # --- input ---

    def files(self) -> dict[str, Known]:
        """Return by id the files that were read, each up to its last line that is stored, and when it was read."""
        found = self._engine.sql(
            "SELECT file, path, device, inode, end_at, length, beginning, modified FROM log_files JOIN "
            "(SELECT file, max(end_at) AS end_at, unix_micros(max(read_at)) * 1000 AS modified FROM log_lines GROUP BY file) "
            "USING (file)"
        ).collect()
        self._files = {
            row.file: Known(
                row.path,
                int(row.device),
                int(row.inode),
                row.end_at,
                row.length,
                row.beginning,
                modified=row.modified,
            )
            for row in found
        }
        return self._files

    def insert(self, lines: Sequence[Line], files: Mapping[str, Known], now: datetime) -> None:
        """Put lines into the log, all or none; their positions are part of them.

        Args:
            files: the files of the lines, by id. They are stored before the lines: a file is read on after
                the last line that is stored of it.
        """
        changed = [
            (name, one.path, str(one.device), str(one.inode), one.length, one.beginning)
            for name, one in files.items()
            if name not in self._files or _same_file(self._files[name]) != _same_file(one)
        ]
        if changed:
            self._tables["log_files"].upsert(changed)
            self._files = dict(files)
        values = pa.array([line.value for line in lines], pa.string())
        if self._networks is not None and (places := self._networks.observe(values, now)):
            self._tables["places"].upsert(places)
        columns = [
            [line.file for line in lines],
            [line.end_at for line in lines],
            values,
            [now] * len(lines),
        ]
        self._tables["log_lines"].insert(pa.table(columns, schema=LINES))

    def tick(self, now: datetime) -> None:
        """Set the clock of the views."""
        self._tables["clock"].upsert([(1, now)])

    def forget(self, now: datetime) -> None:
        """Delete the lines that are too old to matter, except the last of each file: its position."""
        before = _literal(now - timedelta(seconds=self._config.keep_s))
        self._engine.execute(
            f"DELETE FROM log_lines WHERE read_at < {before} AND (file, end_at) NOT IN "
            "(SELECT file, max(end_at) FROM log_lines GROUP BY file)"
        )
        if self._networks is not None and (
            gone := self._networks.forget(now, self._config.keep_s + SETTLE_S)
        ):
            columns = len(TABLES["places"][0].split(","))
            self._tables["places"].delete([(text, *[None] * (columns - 1)) for text in gone])

    def learn(self, now: datetime) -> int:
        """Add what has settled to the history, of the baselines and of places; return the number of rows.

        Call it before `forget`: lines that are gone can't be learnt from.
        """
        found = [
            (table, view)
            for view, table in (("learnable", "history"), ("learnable_places", "place_history"))
            if view in self.views
        ]
        size = 0
        for table, view in found:
            rows = len(self._rows(view, "slot_start"))
            if rows:
                self._engine.execute(f"INSERT INTO {table} SELECT * FROM {view}")
            size += rows
        if self._history_cut is None or now - self._history_cut >= timedelta(hours=1):
            before = _literal(now - timedelta(seconds=self._config.history_s))
            for table, _ in found:
                self._engine.execute(f"DELETE FROM {table} WHERE slot_start < {before}")
            self._history_cut = now
        return size

    def reached(self) -> tuple[list[Quiet], list[Quiet]]:
        """Return the regions and carriers that have gone quiet, and those that are back, since the last call.

        One is back when its requests are. It is away until then, also at hours at which that is usual.
        """
        if "reach" not in self.views:
            return [], []
        rows = self._rows("reach", "region", "carrier", "requests", "usual", "quiet")
        found = {row[:2]: Quiet(*row[:4]) for row in rows}
        quiet = {row[:2] for row in rows if row[4].lower() == "true"}
        gone = [found[place] for place in sorted(quiet - self._quiet)]
        back = [
            found[place]
            for place in sorted(self._quiet - quiet)
            if place in found and found[place].requests != "0"
        ]
        self._quiet = (self._quiet | quiet) - {one[:2] for one in back}
        return gone, back

    # --- the list ---

    def admit(self, now: datetime) -> list[Admission]:
        """Put who is waiting on the list, the gravest first, as many as a minute allows.

        Networks come before addresses. An address of a network that is on the list isn't admitted. Search engines
        are allowed instead, if the configuration verifies them.
        """
        while self._admissions and now - self._admissions[0] >= timedelta(minutes=1):
            self._admissions.popleft()
        budget = self._config.new_blocks_per_minute - len(self._admissions)
        self.unverified = False
        if budget <= 0:
            return []
        waiting = self._rows("waiting", "target", "network", "rule", "severity", "evidence")
        waiting.sort(key=lambda row: (row[0] != row[1], -int(row[3]), row[0]))
        chosen: dict[str, Admission] = {}
        self.crowded = False
        for target, network, rule, _, evidence in waiting:
            known = (
                target in self._admitted
                or network in self._admitted
                or network in chosen
                or self._engines.get(target, now) > now
            )
            if not known and len(chosen) < budget:
                chosen[target] = Admission(target, rule, evidence)
            self.crowded |= not known and target not in chosen
        if chosen and self._verifier is not None:
            chosen = self._verified(self._verifier, chosen, now)
        if chosen:
            rows = [(one.target, one.rule, one.evidence, now) for one in chosen.values()]
            self._tables["admissions"].upsert(rows)
            self._admitted |= dict.fromkeys(chosen, now)
            self._admissions += [now] * len(chosen)
        return list(chosen.values())

    def _verified(
        self, verifier: Verifier, chosen: Mapping[str, Admission], now: datetime
    ) -> dict[str, Admission]:
        """Return who isn't a search engine, as far as one round of look-ups goes; allow the others for a day."""
        addresses: dict[str, list[str]] = {}
        new = 0
        for target in chosen:
            some = self._addresses(target)
            new += sum(not verifier.known(one, now) for one in some)
            if new > LOOKUPS_MAX and addresses:
                self.crowded = self.unverified = True
                break
            addresses[target] = some
        answers = verifier.verify([one for some in addresses.values() for one in some], now)
        kept, until = dict[str, Admission](), now + timedelta(days=1)
        for target, some in addresses.items():
            engines = {one: answers[one].name for one in some if answers[one].name}
            if engines:
                self._allow(engines, now, until)
                self._engines[target] = until
                continue
            notes = "".join(f"; {answers[one].note}" for one in some if answers[one].note)
            kept[target] = replace(chosen[target], evidence=chosen[target].evidence + notes)
        return kept

    def _allow(self, names: Mapping[str, str], now: datetime, until: datetime) -> None:
        """Write who is allowed into the table of decisions, which the rules obey."""
        rows = []
        for address, name in names.items():
            _, first, last = allowed_row(ip_network(address))
            reason = f"{name}, and back"
            rows.append((uuid.uuid4().hex, now, DNS, ALLOW, address, first, last, until, reason))
        self._tables["decisions"].insert(rows)

    def _addresses(self, target: str) -> list[str]:
        """Return the addresses by which a target is verified: of a network its busiest."""
        network = parse_target(target)
        if network is None or network.num_addresses == 1:
            return [] if network is None else [target]
        if "address_rates" not in self.views:
            return []
        rows = self._engine.sql(  # the target is a network: it holds no quotes
            f"SELECT address FROM address_rates WHERE network = '{target}' AND window_s = 300 "
            f"GROUP BY address ORDER BY sum(requests) DESC, address LIMIT {BUSIEST}"
        ).collect()
        return [row.address for row in rows]

    def release(self, now: datetime) -> list[str]:
        """Remove the admissions of those who are no longer on the list; return them."""
        listed = {row[0] for row in self._rows("block_list", "target")}
        old = now - timedelta(seconds=SETTLE_S)
        gone = [
            target
            for target, since in self._admitted.items()
            if target not in listed and (target in self._listed or since < old)
        ]
        self._listed = listed
        if gone:
            self._tables["admissions"].delete([(target, None, None, None) for target in gone])
            for target in gone:
                del self._admitted[target]
        return gone

    def decided(self) -> list[Decided]:
        """Return the decisions by hand that count and weren't returned before, also by an earlier guard."""
        found = self._decisions()
        new = sorted(found - self._by_hand)
        self._by_hand = found
        return [Decided(*row) for row in new]

    def _decisions(self) -> set[tuple[str, ...]]:
        if "by_hand" not in self.views:  # views of the user's own may do without
            return set()
        return set(self._rows("by_hand", "target", "action", "who", "reason", "until"))

    @property
    def active(self) -> bool:
        """Whether someone is on the list, or allowed by hand, so that the clock has to go on."""
        return bool(self._admitted or self._by_hand)

    @property
    def targets(self) -> list[str]:
        """The addresses and networks on the list, as of the last committed epoch."""
        return [row[0] for row in self._rows("blocked", "target")]

    def _rows(self, view: str, *columns: str) -> list[tuple[str, ...]]:
        """Return columns of text and whole numbers as text; without Spark where there are rows."""
        query = f"SELECT {', '.join(columns)} FROM {view}"
        answer = quick_answer(self._engine.files, self._engine.catalog, query)
        if answer is not None:
            return [tuple(map(str, row)) for row in answer.texts()]
        return [tuple(map(str, row)) for row in self._engine.sql(query).collect()]


def _literal(moment: datetime) -> str:
    """Return a time in UTC as SQL, to the second."""
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S} UTC'"


def _same_file(one: Known) -> Known:
    """Return what is stored of a file, without its position."""
    return replace(one, offset=0, size=-1, modified=-1)
