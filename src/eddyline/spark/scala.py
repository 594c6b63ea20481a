"""A cache of classes, singletons and collections of Spark's JVM.

Resolving a name costs Py4J a call for each part of the name, and one more when the object is dropped.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from eddyline.spark.releases import release_together

TO_SEQ = "org.apache.spark.api.python.PythonUtils.toSeq"
"""The static method that turns a Java list into a Scala Seq."""

_making = threading.Lock()
_known: weakref.WeakKeyDictionary[SparkContext, Scala] = weakref.WeakKeyDictionary()


def scala_of(session: SparkSession) -> Scala:
    """Return the lookups of the JVM that a session runs in."""
    return scala_in(session.sparkContext)


def scala_in(context: SparkContext) -> Scala:
    """Return the lookups of a context's JVM."""
    with _making:
        found = _known.get(context)
        if found is None:
            found = _known[context] = Scala(context)
    return found


class Scala:
    """The cached lookups in one JVM.

    Attributes:
        nothing: Scala's `None`.
        empty: a Seq without elements.
    """

    def __init__(self, context: SparkContext) -> None:
        self._jvm: Any = context._jvm  # noqa: SLF001  # not public in PySpark
        gateway: Any = context._gateway  # noqa: SLF001
        self._server, self._client = gateway.java_gateway_server, gateway._gateway_client  # noqa: SLF001
        self._named: dict[str, Any] = {}
        self.nothing = self.some(None)
        self.empty = self.static(TO_SEQ)([])

    def some(self, value: Any) -> Any:
        """Return a Scala Option of a value; for None return `nothing`."""
        return self.static("scala.Option.apply")(value)

    def new(self, name: str, *arguments: Any) -> Any:
        """Return a new object of a class."""
        return self.static(name)(*arguments)

    def static(self, name: str) -> Any:
        """Return a class, whose call makes an object, or a static method."""
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

    @cached_property
    def trees(self) -> Any:
        """An object of `Trees.java`."""
        trees = self.compiled_object("Trees", self._server.getGateway())
        release_together(self._client, trees)
        return trees

    def compiled_object(self, name: str, *arguments: Any) -> Any:
        """Return a new object of a Java class of this package; Spark's own runtime compiler (Janino) compiles it."""
        constructor = self._named.get(f"eddyline.{name}")
        if constructor is None:
            compiler = self.new("org.codehaus.janino.SimpleCompiler")
            compiler.setParentClassLoader(self.loader())
            compiler.cook(files(__package__).joinpath(f"{name}.java").read_text())
            compiled = compiler.getClassLoader().loadClass(f"eddyline.{name}")
            constructor = self._named[f"eddyline.{name}"] = compiled.getConstructors()[0]
        return constructor.newInstance(self.array("java.lang.Object", arguments))

    def array(self, name: str, values: Sequence[Any]) -> Any:
        """Return a Java array of a class."""
        made = self.static("java.lang.reflect.Array.newInstance")(
            self.java_class(name), len(values)
        )
        for place, value in enumerate(values):
            made[place] = value
        return made
