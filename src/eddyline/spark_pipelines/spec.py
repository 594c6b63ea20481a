"""The spec file of a project of Spark Declarative Pipelines; its keys, files and errors are Spark's.

PySpark's own functions for it are in a module that needs the packages of Spark Connect.
"""

from __future__ import annotations

import glob
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from eddyline.errors import ScriptError, missing_package

NAMES = ("spark-pipeline.yaml", "spark-pipeline.yml")
INVALID = "PROJECT_INVALID"
UNSUPPORTED = "PROJECT_UNSUPPORTED"
_REQUIRED = ("name", "storage")
_ALLOWED = (*_REQUIRED, "catalog", "database", "schema", "configuration", "libraries")


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec file.

    Attributes:
        path: the file, as an absolute path; the project is its folder.
        storage: folder of the engine's storage.
        qualifiers: the default catalog and database, with which names may be qualified.
        configuration: settings of the Spark session.
        globs: of the files with definitions.
    """

    path: Path
    name: str
    storage: str
    qualifiers: tuple[str, ...]
    configuration: Mapping[str, str]
    globs: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """The folder of the project."""
        return self.path.parent.resolve()

    def files(self) -> Iterator[Path]:
        """Yield the files with definitions, in the order of the globs and of their names."""
        for pattern in self.globs:
            for file in sorted(self.folder.glob(pattern)):
                if file.is_file() and "__pycache__" not in file.parts:
                    if file.suffix not in (".py", ".sql"):
                        raise invalid(
                            "PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION", file_path=str(file)
                        )
                    yield file


def find_spec(given: str | None) -> Path:
    """Return the given spec file, or that of the current folder or the nearest one above."""
    if given is not None:
        if not Path(given).is_file():
            raise invalid("PIPELINE_SPEC_FILE_DOES_NOT_EXIST", spec_path=given)
        return Path(given)
    here = Path.cwd()
    for folder in (here, *here.parents):
        found = [folder / name for name in NAMES if (folder / name).is_file()]
        if len(found) > 1:
            raise invalid("MULTIPLE_PIPELINE_SPEC_FILES_FOUND", dir_path=str(folder))
        if found:
            return found[0]
    raise invalid("PIPELINE_SPEC_FILE_NOT_FOUND", dir_path=str(here))


def load_spec(path: Path) -> Spec:
    """Read a spec file; ScriptError PROJECT_INVALID with Spark's message if it is wrong."""
    try:
        yaml = importlib.import_module("yaml")  # without stubs
    except ImportError as error:
        raise missing_package("a project's spec file", "pyyaml", "pipelines") from error
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScriptError(f"{path} can't be read: {error}", condition=INVALID) from error
    if not isinstance(document, dict):
        raise invalid("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", field_name=_REQUIRED[0])
    for name in document:
        if name not in _ALLOWED:
            raise invalid("PIPELINE_SPEC_UNEXPECTED_FIELD", field_name=str(name))
    for name in _REQUIRED:
        if name not in document:
            raise invalid("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", field_name=name)
    qualifiers = (document.get("catalog"), document.get("database", document.get("schema")))
    return Spec(
        path.absolute(),  # files are read in other folders
        str(document["name"]),
        _folder(path, str(document["storage"])),
        tuple(str(one).lower() for one in qualifiers if one),
        _texts(document.get("configuration") or {}),
        tuple(_globs(document.get("libraries") or [])),
    )


def _folder(path: Path, storage: str) -> str:
    """Return the storage as a path; a relative one is below the folder of the spec file."""
    if storage.startswith("file:"):
        return "/" + storage.removeprefix("file:").lstrip("/")
    return storage if "://" in storage else str(path.parent.resolve() / storage)


def _texts(given: Any) -> Mapping[str, str]:
    field = {"field_name": "configuration"}
    if not isinstance(given, dict):
        raise invalid("PIPELINE_SPEC_FIELD_NOT_DICT", **field, field_type=type(given).__name__)
    for key, value in given.items():
        if not isinstance(key, str):
            kind = type(key).__name__
            raise invalid("PIPELINE_SPEC_DICT_KEY_NOT_STRING", **field, key_type=kind)
        if not isinstance(value, str):
            kind = type(value).__name__
            raise invalid(
                "PIPELINE_SPEC_DICT_VALUE_NOT_STRING", **field, key_name=key, value_type=kind
            )
    return given


def _globs(libraries: Any) -> Iterator[str]:
    """Yield the glob of each library."""
    for one in libraries if isinstance(libraries, list) else [libraries]:
        match one:
            case {"glob": {"include": str(pattern)}} if len(one) == 1 and pattern:
                yield _pattern(pattern)
            case _:
                raise ScriptError(
                    f"an entry of libraries in the spec file is {one!r}",
                    condition=INVALID,
                    hint="write each as `- glob: {include: PATH}`, where PATH is a file, or a folder with /** at its end",
                )


def _pattern(given: str) -> str:
    """Return a glob of files: one file, or all files below a folder."""
    if Path(given).is_absolute():
        raise ScriptError(
            f"the path {given} of a library in the spec file is absolute",
            condition=INVALID,
            hint="give a path below the folder of the spec file",
        )
    if not glob.has_magic(given):
        return given
    if given.endswith("/**") and not glob.has_magic(given[:-3]):
        return given + "/*"
    raise invalid("PIPELINE_SPEC_INVALID_GLOB_PATTERN", glob_pattern=given)


def invalid(spark_condition: str, **parameters: str) -> ScriptError:
    """Return the error for a wrong spec file or definition, with Spark's condition and message."""
    found = PySparkException(errorClass=spark_condition, messageParameters=parameters)
    return ScriptError(str(found), condition=INVALID)
