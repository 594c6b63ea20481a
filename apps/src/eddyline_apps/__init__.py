"""Ready-made applications: a SQL script each, with the code to try it.

`web_statistics.sql` computes page views, visitors and visits of web sites from their access log. It is
plain Spark SQL, views on views; the same text runs live in an engine and offline in Spark.
"""

from collections.abc import Iterable
from importlib import resources

from eddyline.api.script import CreateView, parse_script
from eddyline_apps.webstats.log_formats import COMBINED

__all__ = ["script", "views", "wrong_views"]


def script(name: str) -> str:
    """Return the text of an application's SQL script.

    Example:
        >>> "CREATE VIEW requests" in script("web_statistics")
        True

    Raises:
        FileNotFoundError: there is no application of that name.
    """
    text = resources.files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    return text.replace("{parsed_lines}", COMBINED.query("log_lines"))


def views(text: str) -> dict[str, str]:
    """Return the views of a script as name -> query, in order of creation.

    Example:
        >>> views("CREATE VIEW a AS SELECT 1; CREATE VIEW b AS SELECT * FROM a;")
        {'a': 'SELECT 1', 'b': 'SELECT * FROM a'}

    Raises:
        ScriptError: the text can't be read as a script.
    """
    return {item.name: item.query for item in parse_script(text) if isinstance(item, CreateView)}


def wrong_views(text: str, needed: Iterable[str]) -> str | None:
    """Return what is wrong with a script that must hold views and nothing else; None if nothing is.

    Args:
        needed: the names of views that must be there.

    Example:
        >>> wrong_views("CREATE VIEW a AS SELECT 1; SELECT * FROM a;", ["a"])
        'its statement 2 is no CREATE VIEW'
        >>> wrong_views("CREATE VIEW a AS SELECT 1", ["a", "b"])
        'it lacks the view b'

    Raises:
        ScriptError: the text can't be read as a script.
    """
    statements = parse_script(text)
    for number, item in enumerate(statements, start=1):
        if not isinstance(item, CreateView):
            return f"its statement {number} is no CREATE VIEW"
    names = {item.name for item in statements if isinstance(item, CreateView)}
    lacking = [name for name in needed if name not in names]
    return f"it lacks the view {', '.join(lacking)}" if lacking else None
