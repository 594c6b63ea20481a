"""Let files, webhooks and topics follow the block list, as sinks of the engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eddyline_apps.guard.config import FILES, Config, Notification
from eddyline_apps.guard.lists import ListFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from eddyline.api.engine import Engine
    from eddyline_apps.guard.service import Guard

PREFIX = "guard_"
"""How the names of the sinks begin; then come the kind of the notification and a hash of its options."""


def notify(engine: Engine, guard: Guard, config: Config) -> None:
    """Let the notifications of the configuration follow the list, and no others.

    They follow the view `blocked`, whose rows change only when someone is put on the list or leaves it.
    Files get the whole list of the last epoch, so that a delivery that comes again changes nothing.
    In a dry run nobody is notified, and files stay as they are.

    Raises:
        EngineError: a file can't be written, or the options of a sink are wrong.
    """
    wanted = {} if config.dry_run else {sink_name(one): one for one in config.notify}
    for sink in engine.catalog.sinks:
        if sink.name.startswith(PREFIX) and sink.name not in wanted:
            engine.drop("sink", sink.name)
    for name, one in wanted.items():
        if one.to in FILES:
            file = ListFile(one)
            file.publish(guard.targets)
            guard.views["blocked"].foreach_epoch(_publisher(file, guard), name)
        else:
            engine.sink(name, "blocked", one.to, **one.options)


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
