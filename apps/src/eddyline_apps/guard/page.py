"""The page of the guard in the console: rates beside their limits, the block list, and decisions by hand."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import polars as pl
from starlette.requests import Request

from eddyline.console.additions import Addition
from eddyline.console.observer import Observer
from eddyline.errors import DataError
from eddyline_apps.guard.decisions import ALLOW, BLOCK, decide, parse_decision
from eddyline_apps.guard.notifying import undelivered
from eddyline_apps.guard.tables import Network, parse_target

if TYPE_CHECKING:
    from eddyline.api.engine import Engine

PATH = "/guard"
SHOWN = 200
"""Rows of a list that are shown; its title says how many there are."""
SUMMARY_S = 10
"""The windows of which the head of the page shows the last."""


def overview(observer: Observer, request: Request) -> tuple[str, dict[str, Any]]:
    """What goes on, who is blocked, and what people have decided."""
    asked = request.query_params
    windows = _frame(observer, "server_rates").filter(pl.col("window_s") == SUMMARY_S)
    by_hand = _frame(observer, "by_hand")
    return "guard.html", {
        "title": "Guard",
        "action": ALLOW if asked.get("action") == ALLOW else BLOCK,
        "target": asked.get("target", ""),
        "decided": "decided" in asked,
        "undelivered": [one.text for one in undelivered(observer.status()["sinks"])],
        "actions": {BLOCK: "Block", ALLOW: "Unblock"},
        "busiest": _list(
            _frame(observer, "busiest").sort(["percent", "target"], descending=[True, False])
        ),
        "blocked": _list(
            _frame(observer, "block_list").sort(["since", "target"], descending=[True, False])
        ),
        "waiting": _list(
            _frame(observer, "waiting").sort("severity", "target", descending=[True, False])
        ),
        "allowed": _list(by_hand.filter(pl.col("action") == ALLOW).sort("at", descending=True)),
        "audit": _list(_frame(observer, "decisions").sort("at", descending=True)),
        "reach": _list(_reach(observer)),
        # the last but one, of which half is over at least
        "server": next(iter(windows.sort("window_start").tail(2).rows(named=True)), None),
        "capacity": next(iter(_frame(observer, "limits")["capacity"]), None),
        "now": next(iter(_frame(observer, "clock")["now"]), None),
    }


def evidence(observer: Observer, request: Request) -> tuple[str, dict[str, Any]]:
    """The windows of a target over a limit, and its last requests."""
    target = request.query_params.get("target", "")
    network = parse_target(target)
    if network is None:
        raise DataError(
            f"target={target[:80]!r} is no address or network",
            condition="BAD_OPTION",
            hint="give one that the block list shows",
        )
    offences = _frame(observer, "offences").filter(pl.col("target") == target)
    requests = _frame(observer, "requests")
    addresses = [
        address
        for address in requests["address"].unique()
        if _is_in(parse_target(address), network)
    ]
    requests = requests.filter(pl.col("address").is_in(addresses))
    return "guard_evidence.html", {
        "title": f"Evidence: {target}",
        "target": target,
        "offences": _list(offences.sort("window_start", "rule", descending=[True, False])),
        "requests": _list(requests.sort("ts", descending=True)),
    }


def decided(observer: Observer, form: Mapping[str, str]) -> str:
    """Take a decision from the page's form; return where to go on."""
    action = form.get("action", "")
    if action not in (BLOCK, ALLOW):
        raise DataError(
            "nothing is decided", condition="BAD_OPTION", hint="choose block or unblock"
        )
    who, address, time, reason = (
        form.get(name, "") for name in ("who", "target", "time", "reason")
    )
    decision = parse_decision(
        action, address, time, f"{who.strip()} (page)" if who.strip() else "", reason
    )
    decide(observer.files, observer.now()[0], decision, datetime.now(UTC))
    return f"{PATH}?decided=1"


PAGE = Addition(
    "guard",
    "eddyline_apps.guard",
    ((PATH, "Guard"),),
    {PATH: overview, f"{PATH}/evidence": evidence},
    {f"{PATH}/decisions": decided},
)
"""For `Engine.serve(additions=...)`."""


def serve(engine: Engine, port: int, token: str) -> str:
    """Serve the console with the page until the engine stops; return the page's address."""
    return engine.serve(port, token=token, additions=(PAGE,)) + PATH


def _is_in(address: Network | None, network: Network) -> bool:
    return (
        address is not None
        and address.version == network.version
        and address.network_address in network
    )


def _reach(observer: Observer) -> pl.DataFrame:
    """Return the rows of `reach`, the quiet ones first; none without places."""
    if observer.now()[0].find("reach") is None:
        return pl.DataFrame()
    order = ["quiet", "requests", "region", "carrier"]
    return _frame(observer, "reach").sort(order, descending=[True, True, False, False])


def _frame(observer: Observer, view: str) -> pl.DataFrame:
    frame = pl.from_arrow(observer.rows(view).table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _list(frame: pl.DataFrame) -> dict[str, Any]:
    """Return the first rows and the number of all."""
    return {"total": len(frame), "rows": frame.head(SHOWN).rows(named=True)}
