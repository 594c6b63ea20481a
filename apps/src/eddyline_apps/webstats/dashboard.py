"""The dashboard: pages of the console that show the statistics of one site and day, live."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

import polars as pl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from eddyline.console.additions import Addition
from eddyline.console.observer import Observer
from eddyline.errors import DataError

PATH = "/webstats"
DAYS_MAX = 92
"""The days of the curve by day."""
FIGURES = (
    ("page_pv", "Pages"),
    ("pv", "Requests"),
    ("uv", "Visitors"),
    ("ips", "Addresses"),
    ("new_visitors", "New visitors"),
    ("returning_visitors", "Returning visitors"),
    ("visits", "Visits"),
    ("visit_frequency", "Visits a visitor"),
    ("average_duration_s", "Duration of a visit, s"),
    ("average_depth", "Requests a visit"),
    ("pages_per_visitor", "Requests a visitor"),
    ("bounce_rate", "Bounce rate"),
    ("megabytes", "Megabytes"),
)
KINDS = (
    ("page", "Pages"),
    ("entry page", "Entry pages"),
    ("exit page", "Exit pages"),
    ("referrer", "Referrers"),
    ("search engine", "Search engines"),
    ("browser", "Browsers"),
    ("device", "Devices"),
    ("country", "Countries"),
    ("carrier", "Carriers"),
    ("status", "Statuses"),
    ("file", "Other paths"),
)
EXPORTS = {
    "days": "daily_statistics",
    "hours": "hourly_statistics",
    "tops": "top_values",
    "slowest": "slowest_pages",
}
CURVES = {"minute": "minutes", "hour": "hourly_statistics", "day": "daily_statistics"}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that spreadsheets take for formulas."""


def overview(observer: Observer, request: Request) -> tuple[str, dict[str, Any]]:
    """The statistics of a site and day; without a day of its newest one."""
    daily = _frame(observer, "daily_statistics")
    people = ~pl.col("is_bot")  # sites that only programs visit come last
    sites = (
        daily.group_by("site")
        .agg(pl.col("page_pv").filter(people).sum(), pl.col("pv").filter(people).sum())
        .sort(["page_pv", "pv", "site"], descending=[True, True, False])
    )
    names: list[str] = sites["site"].to_list()
    site = _given_site(request) or (names[0] if names else "-")
    asked = _day(request)
    of_site = daily.filter(pl.col("site") == site)
    newest = of_site["day"].max()
    day = asked or (newest if isinstance(newest, date) else None)
    of_day = None if day is None else _figures(of_site, day)
    before = None if day is None else _figures(of_site, day - timedelta(days=1))
    return "webstats.html", {
        "title": "Web statistics",
        "site": site,
        "sites": names,
        "day": day,
        "asked": asked,
        "exports": tuple(EXPORTS),
        "query": _query(site, day),
        "curve_query": _query(site, asked),  # without a day the newest one, also after midnight
        "links": {} if day is None else _neighbours(of_site, site, day),
        "figures": _compared(of_day, before),
        "programs": None if day is None else _figures(of_site, day, programs=True),
        "tops": [] if day is None else _tops(observer, site, day),
        "slowest": [] if day is None else _slowest(observer, site, day),
        "malformed": _frame(observer, "malformed_count")["malformed"].sum(),
    }


def curve(observer: Observer, request: Request) -> Response:
    """A curve as JSON: `x`, and `series` with `label` and `values`; by minute, hour or day."""
    by, site, day = request.query_params.get("by", "hour"), _site(request), _day(request)
    if by not in CURVES:
        raise _wrong("by", by, "minute, hour or day")
    of_site = _frame(observer, CURVES[by]).filter(pl.col("site") == site)
    rows = of_site.filter(~pl.col("is_bot"))
    if by == "day":
        rows = rows.sort("day").tail(DAYS_MAX)
        seconds = rows["day"].cast(pl.Datetime("us")).dt.epoch("s").to_list()
        names = ("page_pv", "uv", "visits")
        return JSONResponse(
            {
                "x": seconds,
                "series": [{"label": name, "values": rows[name].to_list()} for name in names],
            }
        )
    newest = of_site["day"].max()  # as in `overview`, also if only programs came
    last = day or (newest if isinstance(newest, date) else date(1970, 1, 1))
    place = pl.col("hour") if by == "hour" else pl.col("hour") * 60 + pl.col("minute")
    places = pl.DataFrame({"place": range(24 if by == "hour" else 1440)})
    series = []
    for shown, label in ((last, "pages"), (last - timedelta(days=1), "the day before")):
        of_day = rows.filter(pl.col("day") == shown).select(place=place.cast(pl.Int64), n="page_pv")
        come = of_site.filter(pl.col("day") == shown).select(place.cast(pl.Int64)).to_series()
        until = come.max() if shown == newest else None
        joined = (
            places.join(of_day, on="place", how="left")
            .sort("place")
            .with_columns(pl.col("n").fill_null(0))
        )
        values = joined["n"].to_list()
        if isinstance(until, int):  # what is still to come has no value
            values[until + 1 :] = [None] * (len(values) - until - 1)
        series.append({"label": label, "values": values})
    x = [n if by == "hour" else n / 60 for n in range(len(places))]
    return JSONResponse({"x": x, "series": series})


def export(observer: Observer, request: Request) -> Response:
    """A view's rows of a site as CSV; of one day, but for the statistics by day."""
    what, site, day = request.query_params.get("what", "days"), _site(request), _day(request)
    if what not in EXPORTS:
        raise _wrong("what", what, ", ".join(EXPORTS))
    rows = _frame(observer, EXPORTS[what]).filter(pl.col("site") == site)
    if day is not None and what != "days":
        rows = rows.filter(pl.col("day") == day)
    order = [name for name in ("day", "hour", "is_bot", "kind", "rank") if name in rows.columns]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(rows.columns)
    writer.writerows(tuple(map(_cell, row)) for row in rows.sort(order).iter_rows())
    name = f'attachment; filename="webstats-{what}.csv"'
    return Response(text.getvalue(), media_type="text/csv", headers={"Content-Disposition": name})


DASHBOARD = Addition(
    "webstats",
    "eddyline_apps.webstats",
    ((PATH, "Web statistics"),),
    {PATH: overview, f"{PATH}/curve": curve, f"{PATH}/export": export},
)
"""For `Engine.serve(additions=...)`."""


def _frame(observer: Observer, view: str) -> pl.DataFrame:
    frame = pl.from_arrow(observer.rows(view).table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _given_site(request: Request) -> str:
    """Return the site that is asked for, in lower case as all sites are; empty: none is."""
    return request.query_params.get("site", "").lower()


def _site(request: Request) -> str:
    return _given_site(request) or "-"


def _day(request: Request) -> date | None:
    text = request.query_params.get("day", "")
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
        day - timedelta(days=1)  # is shown, too
    except (ValueError, OverflowError) as error:
        raise _wrong("day", text, "a day such as 2026-01-31") from error
    return day


def _wrong(name: str, text: str, given: str) -> DataError:
    return DataError(
        f"{name}={text[:50]!r} can't be shown", condition="BAD_OPTION", hint=f"give {given}"
    )


def _query(site: str, day: date | None) -> str:
    return urlencode({"site": site} | ({} if day is None else {"day": day.isoformat()}))


def _neighbours(rows: pl.DataFrame, site: str, day: date) -> dict[str, str]:
    """Return the queries of the days before and after that have rows."""
    days = rows["day"].unique().sort()
    found = {
        "Previous day": days.filter(days < day).max(),
        "Next day": days.filter(days > day).min(),
    }
    return {name: _query(site, other) for name, other in found.items() if isinstance(other, date)}


def _figures(rows: pl.DataFrame, day: date, *, programs: bool = False) -> dict[str, Any] | None:
    """Return the statistics of a day; None if there are none."""
    chosen = rows.filter((pl.col("day") == day) & (pl.col("is_bot") == programs))
    chosen = chosen.with_columns(megabytes=pl.col("bytes") / 1e6)
    return chosen.row(0, named=True) if len(chosen) else None


def _compared(
    figures: dict[str, Any] | None, before: dict[str, Any] | None
) -> list[tuple[str, str, str]]:
    """Return for each figure its label, its value, and that of the day before."""
    if figures is None:
        return []
    return [
        (label, _text(figures[name]), _text(before[name]) if before else "none")
        for name, label in FIGURES
    ]


def _tops(observer: Observer, site: str, day: date) -> list[tuple[str, Sequence[tuple[str, int]]]]:
    rows = _frame(observer, "top_values").filter(
        (pl.col("site") == site) & (pl.col("day") == day) & ~pl.col("is_bot")
    )
    kinds = rows.sort("rank").select("kind", "value", "requests").rows_by_key("kind")
    return [(label, kinds[kind]) for kind, label in KINDS if kind in kinds]


def _slowest(observer: Observer, site: str, day: date) -> list[tuple[Any, ...]]:
    rows = _frame(observer, "slowest_pages").filter(
        (pl.col("site") == site) & (pl.col("day") == day) & ~pl.col("is_bot")
    )
    return rows.sort("rank").select("path", "average_s", "requests").rows()


def _text(value: Any) -> str:
    """Return a number for people.

    Example:
        >>> _text(1234), _text(0.5), _text(None)
        ('1,234', '0.50', '')
    """
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _cell(value: Any) -> Any:
    """Return a value for a cell; a text that a spreadsheet would compute begins with a quote."""
    return (
        f"'{value}"
        if isinstance(value, str) and value.startswith(FORMULA) and value != "-"
        else value
    )
