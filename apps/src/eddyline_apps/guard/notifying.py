"""Let files, webhooks and topics follow the block list, as sinks of the engine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eddyline.sink.function import FUNCTION
from eddyline.sink.kafka import SERVERS
from eddyline_apps.guard.config import FILES, SINKS, Config, Notification
from eddyline_apps.guard.lists import ListFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from eddyline.api.engine import Engine
    from eddyline.catalog.entries import Entry
    from eddyline_apps.guard.service import Guard

PREFIX = "guard_"
"""How the names of the sinks begin; then come the kind of the notification and a hash of its first options."""


def hold(engine: Engine, config: Config, *, follow: bool) -> None:
    """Pause the sinks that don't go on as they are; call it before the first epoch, which would deliver to them.

    Args:
        follow: otherwise nobody is notified, as in a dry run.
    """
    going = [] if config.dry_run or not follow else config.notify
    same = [(one.to, dict(one.options)) for one in going]
    for sink in _sinks(engine):
        stays = sink.format == FUNCTION or (sink.format, dict(sink.options)) in same
        if not stays and not sink.paused:
            engine.sink(sink.name).pause()


def notify(engine: Engine, guard: Guard, config: Config) -> None:
    """Let the notifications of the configuration follow the list, and no others.

    They follow the view `blocked`, whose rows change only when someone is put on the list or leaves it.
    Files get the whole list of the last epoch, so that a delivery that comes again changes nothing.
    In a dry run nobody is notified, and files stay as they are.

    A webhook or topic keeps its sink, and so its place, whatever else of its options changes, and while it isn't in
    the configuration: a new sink could tell nothing of what the old one has sent.

    Raises:
        EngineError: a file can't be written, or the options of a sink are wrong.
    """
    hold(engine, config, follow=True)
    wanted = () if config.dry_run else config.notify
    files = {sink_name(one): one for one in wanted if one.to in FILES}
    for sink in _sinks(engine):
        if sink.format == FUNCTION and sink.name not in files:
            engine.drop("sink", sink.name)
    for name, one in files.items():
        file = ListFile(one)
        file.publish(guard.targets)
        guard.views["blocked"].foreach_epoch(_publisher(file, guard), name)
    others = [one for one in wanted if one.to not in FILES]
    for one, present in zip(others, _kept(_sinks(engine), others), strict=True):
        if present is None:
            engine.sink(_free_name(engine, one), "blocked", one.to, **one.options)
            continue
        kept = engine.sink(present.name)
        kept.alter(**one.options)
        if present.paused:
            kept.resume()


def _sinks(engine: Engine) -> list[Entry]:
    return [sink for sink in engine.catalog.sinks if sink.name.startswith(PREFIX)]


def _kept(sinks: Sequence[Entry], wanted: Sequence[Notification]) -> list[Entry | None]:
    """Return for each notification the sink that it goes on with: that of the same target which is most like it."""
    pairs = [
        (_likeness(sink.options, one.options), number, place)
        for number, one in enumerate(wanted)
        for place, sink in enumerate(sinks)
        if sink.format == one.to
        and all(sink.options.get(name) == one.options.get(name) for name in SINKS[one.to][0].fixed)
    ]
    found: dict[int, int] = {}
    for _, number, place in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
        if number not in found and place not in found.values():
            found[number] = place
    return [sinks[found[number]] if number in found else None for number in range(len(wanted))]


def _likeness(present: Mapping[str, str], wanted: Mapping[str, str]) -> float:
    """Return how many brokers two topics of one name have in common; more than any number if all options are the same."""
    if dict(present) == dict(wanted):
        return math.inf
    brokers = [
        {one.strip() for one in options.get(SERVERS, "").split(",")}
        for options in (present, wanted)
    ]
    return len(brokers[0] & brokers[1])


def _free_name(engine: Engine, notification: Notification) -> str:
    """Return a name for a new sink: an earlier one with these options may have others by now."""
    taken = {sink.name for sink in _sinks(engine)}
    name = first = sink_name(notification)
    number = 1
    while name in taken:
        number += 1
        name = f"{first}{number}"
    return name


def _publisher(file: ListFile, guard: Guard) -> Callable[[DataFrame, int], None]:
    def publish(_changes: DataFrame, _epoch: int) -> None:
        file.publish(guard.targets)

    return publish


def sink_name(notification: Notification) -> str:
    """Return a name that is another one if the options are."""
    text = json.dumps([notification.to, dict(notification.options)], sort_keys=True)
    return f"{PREFIX}{notification.to}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"


class Undelivered(NamedTuple):
    """A notification that fails.

    Attributes:
        to: its kind, such as `webhook`.
        since: when it began, in ISO format.
    """

    sink: str
    to: str
    error: str
    since: str

    @property
    def text(self) -> str:
        """The failure as a line for people."""
        return f"The list isn't delivered: {self.to}: {self.error}"


def undelivered(sinks: Sequence[Mapping[str, Any]]) -> list[Undelivered]:
    """Return the sinks of the guard that fail, from the status of all."""
    return [
        Undelivered(
            one["sink"],
            one["sink"].removeprefix(PREFIX).rpartition("_")[0],
            one["error"],
            one["failing_since"],
        )
        for one in sinks
        if one["sink"].startswith(PREFIX) and one["state"] == "failing"
    ]
