"""Spark's settings that affect the results of queries: a storage stores their values when it is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from eddyline.errors import EngineError
from eddyline.spark.session import cloned

LEGACY = "spark.sql.legacy."
FIXED = (
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.ansi.enabled",
    "spark.sql.ansi.enforceReservedKeywords",
    "spark.sql.ansi.relationPrecedence",
    "spark.sql.caseSensitive",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.function.concatBinaryAsString",
    "spark.sql.function.eltOutputAsString",
    "spark.sql.groupByAliases",
    "spark.sql.groupByOrdinal",
    "spark.sql.jsonGenerator.ignoreNullFields",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.orderByOrdinal",
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.timestampType",
)
"""The settings that every storage keeps; of the `spark.sql.legacy.*` it keeps those that were set.

The time zone is kept apart: some names of it mean the same.
"""


def storage_settings(session: SparkSession, stored: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a storage: the stored ones, or the session's for a new storage.

    Args:
        stored: the settings in the storage's last manifest; empty for a new storage.

    Raises:
        EngineError: SETTINGS_DIFFER: the session has other values than the storage was made with.
    """
    own = {name: _value(session, name) for name in (*FIXED, *stored)}
    own |= {name: value for name, value in session.conf.getAll.items() if name.startswith(LEGACY)}
    if not stored:
        return {name: value for name, value in own.items() if value}
    unseen = own.keys() - stored.keys()
    legacy = {name for name in unseen if name.startswith(LEGACY)}
    # the storage was written by a version that stored fewer settings
    before = {
        **stored,
        **{name: own[name] for name in unseen - legacy},
        **_defaults(session, legacy),
    }
    differing = sorted(name for name in before if own[name].lower() != before[name].lower())
    if differing:
        listed = ", ".join(f"{name} is {own[name]}, was {before[name]}" for name in differing)
        raise EngineError(
            f"settings that results depend on differ from those of the storage: {listed}",
            condition="SETTINGS_DIFFER",
            hint="set them back in the session before you open the storage; or make another storage",
        )
    return {name: value for name, value in before.items() if value}


def _defaults(session: SparkSession, names: Collection[str]) -> dict[str, str]:
    """Return the default values of settings."""
    if not names:
        return {}
    twin = cloned(session)
    for name in names:
        twin.conf.unset(name)
    return {name: _value(twin, name) for name in names}


def _value(session: SparkSession, name: str) -> str:
    """Return a setting; empty if this version of Spark doesn't know it."""
    try:
        return session.conf.get(name) or ""
    except PySparkException:
        return ""
