"""The files of places of a storage of web statistics, and the function that the views call to look places up.

A request keeps the place that it got: a beacon in its record, a line by its number. Each storage has copies of its files, and a list of the
lines from which on each of them counts. So the views stay equal to what Spark computes offline, also after a
file has been replaced by a newer one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from eddyline_apps.places import Places, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from eddyline.storage.files import Files

PLACES_FILE = "webstats-places.json"
FOLDER = "webstats-places"
PLACE = "webstats_place"
"""The function's name."""

TYPE = pa.struct([("country", pa.string()), ("carrier", pa.string())])
_SQL_TYPE = "STRUCT<country: STRING, carrier: STRING>"


@dataclass(frozen=True, slots=True)
class Period:
    """The files that count for the lines from one on.

    Attributes:
        from_seq: the first line's `seq`.
        files: names of the copies in the storage, which tell their content.
    """

    from_seq: int
    files: tuple[str, ...]


def kept_periods(storage: Files) -> list[Period]:
    """Return the periods of a storage, in order; none if its places aren't looked up."""
    if not storage.exists(PLACES_FILE):
        return []
    return [Period(one["from_seq"], tuple(one["files"])) for one in storage.read_json(PLACES_FILE)]


def keep_files(
    storage: Files, files: Sequence[Path], next_seq: Callable[[], int]
) -> tuple[list[Period], bool]:
    """Keep copies of files, unless those that count now are the same; return the periods, and whether they have changed.

    Args:
        next_seq: called if they aren't; gives a `seq` that is larger than that of each line in the views.

    Raises:
        DataError: PLACES_NOT_READABLE, naming the file.
        EngineError: MISSING_PACKAGE.
    """
    check_files(files)
    periods = kept_periods(storage)
    names = tuple(_keep(storage, file.read_bytes()) for file in files)
    if periods and periods[-1].files == names:
        return periods, False
    seq = next_seq()
    periods = [*(one for one in periods if one.from_seq < seq), Period(seq, names)]
    storage.write_json(PLACES_FILE, [asdict(one) for one in periods])
    return periods, True


def check_files(files: Sequence[Path]) -> None:
    """Open files to see that they can be used.

    Raises:
        DataError: PLACES_NOT_READABLE, naming the file.
        EngineError: MISSING_PACKAGE.
    """
    Places(files)


def define_place(
    spark: SparkSession, storage: Files | None = None, periods: Sequence[Period] = ()
) -> None:
    """Define the function `webstats_place(host, seq)` in a session: the country and the carrier of a line's client.

    Without periods it gives null. Its files must be where they are as long as the session computes.
    """
    # a function in SQL can't replace one in Python
    spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {PLACE}")
    if storage is None or not periods:
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY FUNCTION {PLACE}(host STRING, seq BIGINT) "
            f"RETURNS {_SQL_TYPE} RETURN CAST(NULL AS {_SQL_TYPE})"
        )
        return
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    kept = tuple((one.from_seq, _paths(storage, one)) for one in periods)
    for _, files in kept:
        opened(files)  # fails here rather than in a view
    function = UserDefinedFunction(
        PlaceOf(kept), _SQL_TYPE, PLACE, PythonEvalType.SQL_SCALAR_ARROW_UDF
    )
    spark.udf.register(PLACE, function)


def newest_places(storage: Files, periods: Sequence[Period]) -> Places | None:
    """Return the files that count for what comes now; None if there are none."""
    return opened(_paths(storage, periods[-1])) if periods else None


@dataclass(frozen=True, slots=True)
class PlaceOf:
    """The function, of Arrow arrays; it is called in Spark's Python workers.

    Attributes:
        periods: pairs of a period's first `seq` and the paths of its files, in order.
    """

    periods: tuple[tuple[int, tuple[str, ...]], ...]

    def __call__(self, hosts: pa.Array, seqs: pa.Array) -> pa.Array:
        """Return an array of structs of a country and a carrier. Each distinct host is looked up once for each period."""
        encoded = hosts.fill_null("").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        starts = [start for start, _ in self.periods]
        places = np.searchsorted(starts, seqs.to_numpy(zero_copy_only=False), side="right") - 1
        used, which = np.unique(places, return_inverse=True)
        found = [pair for place in used.tolist() for pair in self._of_period(place, names)]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        return pa.array(found, TYPE).take(pa.array(which * len(names) + codes))

    def _of_period(self, place: int, names: Sequence[str]) -> Sequence[tuple[str | None, ...]]:
        if place < 0:  # lines before the first period
            return [(None, None)] * len(names)
        of = opened(self.periods[place][1]).of
        return [of(name) for name in names]


def _paths(storage: Files, period: Period) -> tuple[str, ...]:
    return tuple(storage.path(f"{FOLDER}/{name}") for name in period.files)


def _keep(storage: Files, data: bytes) -> str:
    """Keep a file's content; return the copy's name."""
    name = f"{hashlib.sha256(data).hexdigest()[:32]}.mmdb"
    storage.make_folder(FOLDER)
    if not storage.exists(f"{FOLDER}/{name}"):
        storage.write(f"{FOLDER}/{name}", lambda stream: stream.write(data))
    return name
