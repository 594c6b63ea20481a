"""Finds constant arguments that make an expression fail for every row, such as `RLIKE '['`."""

from __future__ import annotations

import re

from eddyline.plan.build import Build
from eddyline.plan.catalyst import Catalyst
from eddyline.plan.logical import (
    Expression,
    Plan,
    all_nodes,
    children_of,
    expressions_of,
    kind,
)
from eddyline.plan.refusals import WRONG_CONSTANT
from eddyline.plan.render import text
from eddyline.spark.failures import FAILURES, message_of
from eddyline.spark.session import active

# Their second argument is a pattern, a charset or a time zone; a StaticInvoke may be `encode` or `decode`.
_CHECKED = frozenset(
    [
        "RLike",
        "RegExpReplace",
        "RegExpExtract",
        "RegExpExtractAll",
        "RegExpInStr",
        "StringSplit",
        "Like",
        "ILike",
        "DateFormatClass",
        "GetTimestamp",
        "FromUnixTime",
        "ToUnixTimestamp",
        "UnixTimestamp",
        "FromUTCTimestamp",
        "ToUTCTimestamp",
        "ConvertTimezone",
        "StaticInvoke",
    ]
)
# Errors that no row can avoid.
_OF_CONSTANTS = re.compile(
    r"INVALID_PARAMETER_VALUE\.(PATTERN|CHARSET)|INVALID_DATETIME_PATTERN|INVALID_TIMEZONE|INVALID_FORMAT\.ESC"
    r"|INCONSISTENT_BEHAVIOR_CROSS_VERSION\.DATETIME| near index \d+"  # the last one is java.util.regex's
)


def check_constants(build: Build, optimized: Plan) -> None:
    """Raise QueryError INVALID_QUERY for a constant argument that makes an expression fail for every row.

    Spark looks at patterns, charsets and time zones when it evaluates the first row. Here such an expression is evaluated
    once, with some value in place of each column.
    """
    for node in all_nodes(optimized):
        for root in expressions_of(node):
            fault = _fault(build.catalyst, root)
            if fault:
                raise build.refused(WRONG_CONSTANT.about(what=fault), text(root))


def _fault(catalyst: Catalyst, root: Expression) -> str:
    """Return the error of a constant argument in an expression; empty if there is none."""
    if kind(root) == "TryEval":  # its value is null then
        return ""
    children = children_of(root)
    fault = next(filter(None, (_fault(catalyst, child) for child in children)), "")
    if fault or kind(root) not in _CHECKED or len(children) < 2:
        return fault
    constant = children[1]
    if not constant.foldable() or constant.dataType().simpleString() != "string":
        return ""
    try:
        sampled = [child if child.foldable() else catalyst.sample(child) for child in children]
        probe = root.withNewChildren(catalyst.seq(sampled))
        with active(catalyst.session):  # patterns may be read as Spark 2 did
            probe.eval(None)
    except FAILURES as error:
        return message_of(error) if _OF_CONSTANTS.search(str(error)) else ""
    return ""
