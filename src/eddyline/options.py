"""The settings of an engine, each with its default, limits and help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from eddyline.arguments import check_choice, check_number
from eddyline.errors import EngineError

ENVIRONMENT_PREFIX = "EDDYLINE_"
BUCKETS_MAX = 4096
SLICES_IN_MEMORY = 16
"""What a slice of rows, its place in the state, and their groups and results take together, in slices."""
URLS = ("catalog", "otlp_endpoint")


def check_buckets(buckets: int) -> None:
    """Raise EngineError BAD_OPTION if a storage can't have so many buckets."""
    check_number("buckets", buckets, 1, BUCKETS_MAX)


def _check_url(name: str, given: object, starts: tuple[str, ...], wrong: str, hint: str) -> None:
    """Raise EngineError BAD_OPTION, without the value, if an option is neither empty nor a URL with such a start."""
    text = given if isinstance(given, str) else "not text"
    if text and not text.startswith(starts):
        raise EngineError(f"option {name} {wrong}", condition="BAD_OPTION", hint=hint)


def _setting(default: int, help: str, least: int, most: int) -> int:
    value: int = field(default=default, metadata={"help": help, "least": least, "most": most})
    return value


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of an engine. `Options.from_environment()` reads `EDDYLINE_*` variables.

    Example:
        >>> Options(buckets=4).buckets
        4
    """

    buckets: int = _setting(
        0,
        "number of buckets (hash partitions) of a new storage, 0 for one for each core; `eddyline rebucket` changes it",
        0,
        BUCKETS_MAX,
    )
    scan_tasks: int = _setting(
        0,
        "number of tasks that read the input of one source in an epoch, 0 for one for each core",
        0,
        4096,
    )
    short_lane_rows: int = _setting(
        200_000,
        "rows of input up to which an epoch of a view may run in the driver, without a Spark job; 0: never",
        0,
        1_000_000,
    )
    retain_epochs: int = _setting(
        1000, "number of committed epochs whose snapshots and changes stay readable", 1, 1_000_000
    )
    held_epochs: int = _setting(
        10_000,
        "number of epochs that are kept at most for sinks and named readers that are behind",
        1,
        1_000_000,
    )
    held_bytes: int = _setting(
        10 << 30,
        "number of bytes that are kept at most for them and for open DataFrames, beyond the epochs of "
        "retain_epochs",
        0,
        1 << 50,
    )
    lease_seconds: int = _setting(
        3600, "number of seconds for which an open DataFrame keeps its epoch at most", 0, 1 << 30
    )
    fill_rows: int = _setting(
        16_000_000,
        "rows of input after which the filling of a new view is stored, so that a crash costs no more; 0: never",
        0,
        1 << 50,
    )
    compaction_fan_in: int = _setting(
        8, "number of runs of one size tier that are merged into one", 2, 64
    )
    task_bytes: int = _setting(
        1 << 30,
        "bytes of memory that a task of a stateful operator may need for rows, roughly; larger inputs and merges "
        "go through it in slices, and wait in temporary files",
        1 << 10,
        1 << 50,
    )
    dead_letter_rows: int = _setting(
        1_000_000,
        "number of dead letters of one pipeline or stream that are kept; the oldest are dropped",
        1,
        1_000_000_000,
    )
    dead_letter_days: int = _setting(
        0, "number of days for which dead letters are kept; 0: no limit", 0, 36_500
    )
    hash_bits: int = _setting(
        64, "number of bits of the key hash; few bits force collisions, for tests", 1, 64
    )
    native_rules: int = _setting(
        1,
        "1: use fast incremental rules where they apply; 0: always recompute changed groups",
        0,
        1,
    )
    delivery: str = field(
        default="exactly_once",
        metadata={
            "help": "what a crash can lose or repeat: "
            "exactly_once: nothing, even after a power cut; "
            "at_least_once: nothing is lost; after a power cut recent epochs can run, and be "
            "reported, twice; "
            "at_most_once: uncommitted input is skipped, so nothing is reported twice",
            "choices": ("exactly_once", "at_least_once", "at_most_once"),
        },
    )
    # URLs can contain passwords, so repr omits them
    catalog: str = field(
        default="",
        repr=False,
        metadata={"help": "URL of a PostgreSQL database for the catalog; empty: in the storage"},
    )

    otlp_endpoint: str = field(
        default="",
        repr=False,
        metadata={
            "help": "URL of an OpenTelemetry collector that gets a trace of each epoch, by OTLP over HTTP; "
            "empty: that of OTEL_EXPORTER_OTLP_ENDPOINT, or none"
        },
    )
    lineage_seconds: int = _setting(
        60,
        "number of seconds between two OpenLineage events of a view or sink that runs, at least",
        1,
        86_400,
    )

    def __post_init__(self) -> None:
        _check_url(
            "catalog",
            self.catalog,
            ("postgresql://", "postgres://"),
            "is not the URL of a PostgreSQL database",
            "write postgresql://user@host:port/database, or leave it out",
        )
        _check_url(
            "otlp_endpoint",
            self.otlp_endpoint,
            ("http://", "https://"),
            "is not an HTTP URL",
            "write http://host:4318, or leave it out",
        )
        for item in fields(self):
            value, limits = getattr(self, item.name), item.metadata
            if item.name in URLS:
                continue
            if "choices" in limits:
                check_choice(f"option {item.name}", value, limits["choices"])
                continue
            check_number(f"option {item.name}", value, limits["least"], limits["most"])

    @property
    def slice_bytes(self) -> int:
        """The bytes of rows that a task processes at once."""
        return max(self.task_bytes // SLICES_IN_MEMORY, 1)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Options:
        """Return options from `EDDYLINE_BUCKETS`, `EDDYLINE_RETAIN_EPOCHS` and so on.

        A setting without a variable has its default.

        Raises:
            EngineError: a variable has a value that the setting doesn't allow.
        """
        found: dict[str, Any] = {}
        for item in fields(cls):
            text = environment.get(ENVIRONMENT_PREFIX + item.name.upper())
            if text is not None and isinstance(item.default, str):
                found[item.name] = text
            elif text is not None:
                if not text.lstrip("-").isdigit():
                    raise EngineError(
                        f"{ENVIRONMENT_PREFIX}{item.name.upper()} is {text!r}",
                        condition="BAD_OPTION",
                        hint="give a whole number",
                    )
                found[item.name] = int(text)
        return cls(**found)
