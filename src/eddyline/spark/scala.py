"""Classes, singletons and collections of Spark's JVM, each looked up once.

A name that Py4J resolves costs a call for each part of it, and one more when its object is dropped.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

TO_SEQ = "org.apache.spark.api.python.PythonUtils.toSeq"
"""The static method that turns a Java list into a Scala Seq."""

_known: weakref.WeakKeyDictionary[SparkContext, Scala] = weakref.WeakKeyDictionary()


def scala_of(session: SparkSession) -> Scala:
    """Return the lookups of the JVM that a session runs in."""
    found = _known.get(session.sparkContext)
    if found is None:
        found = _known[session.sparkContext] = Scala(session.sparkContext._jvm)  # noqa: SLF001  # not public in PySpark
    return found


class Scala:
    """What is looked up in one JVM.

    Attributes:
        nothing: Scala's `None`.
        empty: a Seq without elements.
    """

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._named: dict[str, Any] = {}
        self.nothing = self.some(None)
        self.empty = self.static(TO_SEQ)([])

    def some(self, value: Any) -> Any:
        """Return a Scala Option of a value; of None `nothing`."""
        return self.static("scala.Option.apply")(value)

    def seq(self, values: Sequence[Any]) -> Any:
        """Return a Scala Seq."""
        if not values:
            return self.empty
        return self.static(TO_SEQ)(list(values))

    def new(self, name: str, *arguments: Any) -> Any:
        """Return a new object of a class."""
        return self.static(name)(*arguments)

    def static(self, name: str) -> Any:
        """Return a class, to be called for a new object, or a static method."""
        found = self._named.get(name)
        if found is None:
            found = self._jvm
            for part in name.split("."):
                found = getattr(found, part)
            self._named[name] = found
        return found

    def object(self, name: str) -> Any:
        """Return a Scala singleton."""
        found = self._named.get(name + "$")
        if found is None:
            found = self.java_class(name + "$").getField("MODULE$").get(None)
            self._named[name + "$"] = found
        return found

    def java_class(self, name: str) -> Any:
        """Return the `java.lang.Class` of a name."""
        return self.loader().loadClass(name)

    def loader(self) -> Any:
        """Return the class loader of the calling thread, which knows Spark's classes."""
        return self.static("java.lang.Thread.currentThread")().getContextClassLoader()

    def array(self, name: str, values: Sequence[Any]) -> Any:
        """Return a Java array of a class."""
        made = self.static("java.lang.reflect.Array.newInstance")(
            self.java_class(name), len(values)
        )
        for place, value in enumerate(values):
            made[place] = value
        return made
