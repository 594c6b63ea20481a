"""The data source `eddyline`: tables and views of a storage in any Spark session, to read and write.

Spark finds it by the name of this package, which it imports at the first use of any data source: so
nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.types import StructType

    from eddyline.answers.stored import Feed, StoredSnapshot


class DefaultSource(DataSource):
    """Reads a table or view: its rows, its change feed, or its changes as they come; writes tables.

    The epoch is chosen when the DataFrame is made, and stays readable for `leaseSeconds` after its last
    use. Options: `view`, `versionAsOf`, `readChangeFeed`, `startingVersion`, `endingVersion`,
    `leaseSeconds`, and for a stream `reader`, `maxEpochsPerTrigger`.

    A DataFrame is appended to a `table`, all or nothing; each micro-batch of a stream once. An engine
    inserts the rows before its next epoch. Options: `table`, `txnAppId`, `txnVersion`, and for a stream those of Spark.

    Example:
        >>> spark.read.format("eddyline").option("view", "counts").load("/data/site")
        >>> spark.readStream.format("eddyline").option("view", "counts").option(
        ...     "readChangeFeed", True).load("/data/site")
        >>> df.write.format("eddyline").option("table", "visits").mode("append").save("/data/site")
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._chosen: StoredSnapshot | Feed | None = None

    @classmethod
    def name(cls) -> str:
        return "eddyline"

    def schema(self) -> StructType:
        from pyspark_eddyline.readers import nullable

        return nullable(self._choice().schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_eddyline.readers import BatchReader, FilteringReader

        # The caller tells: with push-down Spark plans in another module, and else it refuses pushFilters.
        caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001
        pushes = os.path.basename(caller) == "data_source_pushdown_filters.py"
        return (FilteringReader if pushes else BatchReader)(self._choice(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from eddyline.state.leases import release
        from pyspark_eddyline.streams import FeedReader

        if self._chosen is not None:  # for its columns; a streaming query holds its own epochs
            release(self._chosen.files, self._chosen.lease)
        return FeedReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_eddyline.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_eddyline.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def _choice(self) -> StoredSnapshot | Feed:
        """Return what a DataFrame reads. Spark keeps this object, and with it the epoch."""
        if self._chosen is None:
            from pyspark_eddyline.readers import chosen

            self._chosen = chosen(self.options)
        return self._chosen
