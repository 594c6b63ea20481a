"""A view in a Delta table: `CREATE SINK k FROM v USING delta`. See `DeltaSink` for how it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import types as spark

from eddyline.arguments import check_choice, wrong_argument
from eddyline.sink.base import (
    Sink,
    Target,
    check_feed_columns,
    is_true,
    key_of,
    sink_key,
    unsupported_type,
)
from eddyline.sink.delta_sink import APPEND, CHANGELOG, UPSERT, DeltaSink, package

OPTIMIZE_EVERY = 100

_SCALARS = (
    spark.StringType, spark.BinaryType, spark.BooleanType, spark.ByteType, spark.ShortType,
    spark.IntegerType, spark.LongType, spark.FloatType, spark.DoubleType, spark.DecimalType,
    spark.DateType, spark.TimestampType, spark.TimestampNTZType,
)  # fmt: skip


class DeltaFormat:
    """Delta tables, written with the package `deltalake`: `CREATE SINK k FROM v USING delta`."""

    options: Mapping[str, str] = {
        "path": "folder or URL of the table; it is created if missing",
        "mode": "upsert (default with a key), append, or changelog: all changes as rows",
        "key": "columns of the key, with commas: a check, as the view's key is used anyway",
        "overwrite": "true: replace rows that a new sink finds in the table",
        "on_refused": "what becomes of rows that violate a constraint: dead letters (default) or stop",
        "optimize_every": f"commits between compactions, with vacuum; 0 = never ({OPTIMIZE_EVERY})",
    }
    secrets: Sequence[str] = ()
    fixed: Sequence[str] = ("path", "mode")

    def check(self, target: Target, options: Mapping[str, str]) -> None:
        package("a sink of format delta")
        if not options.get("path"):
            raise wrong_argument("option path", options.get("path"), "give a folder or URL")
        is_true("overwrite", options.get("overwrite", "false"))
        _optimize_every(options)
        refused = options.get("on_refused", "dead letters")
        check_choice("the option on_refused", refused, ("dead letters", "stop"))
        mode = _mode(target, options)
        key = key_of(target, options.get("key"))
        if mode == APPEND and not target.append_only:
            raise sink_key(target, "rows of it are deleted, which mode 'append' can't do", _LOG)
        if mode == UPSERT and key is None:
            raise sink_key(target, "it has no key", _LOG)
        check_feed_columns(target)
        for field in target.columns:
            if not is_held(field.dataType):
                kind = field.dataType.simpleString()
                raise unsupported_type(target, field.name, kind, "Delta")

    def open(self, target: Target, options: Mapping[str, str]) -> Sink:
        return DeltaSink(
            target,
            options["path"],
            _mode(target, options),
            key_of(target, options.get("key")),
            overwrite=is_true("overwrite", options.get("overwrite", "false")),
            optimize_every=_optimize_every(options),
        )


_LOG = "set the option mode = 'changelog'"


def _mode(target: Target, options: Mapping[str, str]) -> str:
    mode = options.get("mode", APPEND if target.key is None and target.append_only else UPSERT)
    check_choice("option mode", mode.lower(), (UPSERT, APPEND, CHANGELOG))
    return mode.lower()


def _optimize_every(options: Mapping[str, str]) -> int:
    value = options.get("optimize_every", str(OPTIMIZE_EVERY))
    if not value.isdecimal():
        raise wrong_argument("option optimize_every", value, "give a whole number, 0 for never")
    return int(value)


def is_held(kind: spark.DataType) -> bool:
    """Return whether Delta can hold a type."""
    if isinstance(kind, spark.ArrayType):
        return is_held(kind.elementType)
    if isinstance(kind, spark.MapType):
        return is_held(kind.keyType) and is_held(kind.valueType)
    if isinstance(kind, spark.StructType):
        return bool(len(kind)) and all(is_held(field.dataType) for field in kind)
    return isinstance(kind, _SCALARS)
