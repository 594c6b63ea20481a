"""The command `init`: a small project to begin with."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from eddyline.cli.arguments import Commands, add_command
from eddyline.cli.output import add_format, show_rows
from eddyline.errors import EngineError

SCRIPT = """\
-- The views of this project. Run them with
--     eddyline run views.sql --storage storage
-- and write more files into data/ meanwhile: each becomes part of the views.

CREATE STREAM IF NOT EXISTS visits (ts TIMESTAMP, page STRING, visitor STRING, ms INT)
USING json OPTIONS (path 'data');

CREATE VIEW IF NOT EXISTS pages AS
SELECT page, count(*) AS views, count(DISTINCT visitor) AS visitors, avg(ms) AS mean_ms
FROM visits GROUP BY page;

CREATE VIEW IF NOT EXISTS busiest AS
SELECT page, views FROM pages ORDER BY views DESC, page LIMIT 3;
"""

DATA = """\
{"ts": "2026-01-01 10:00:00", "page": "/", "visitor": "ann", "ms": 12}
{"ts": "2026-01-01 10:00:04", "page": "/news", "visitor": "ann", "ms": 31}
{"ts": "2026-01-01 10:01:20", "page": "/", "visitor": "bob", "ms": 9}
"""

TEST = '''\
"""The views, over rows that this test chooses. Run it with `pytest`."""

import json
from pathlib import Path

import eddyline as el

SCRIPT = Path(__file__).with_name("views.sql").read_text()


def test_a_page_counts_its_visitors_once(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    visits = [{"page": "/", "visitor": "ann"}, {"page": "/", "visitor": "ann"}]
    (data / "visits.json").write_text("".join(json.dumps(visit) + "\\n" for visit in visits))
    with el.Engine(tmp_path / "storage") as engine:
        engine.execute(SCRIPT.replace("path 'data'", f"path '{data}'"))
        engine.advance()
        (page,) = engine.sql("SELECT views, visitors FROM pages").collect()
        assert (page.views, page.visitors) == (2, 1)
        assert engine.verify()
'''

README = """\
# Live views

    eddyline run views.sql --storage storage             # until Ctrl-C
    eddyline sql "SELECT * FROM busiest" --storage storage   # meanwhile, in another terminal
    eddyline verify --storage storage                    # live equals offline
    pytest                                               # tests of the views

`views.sql` has the streams and views, `data/` the input, `test_views.py` a test of the views.
"""

PROJECT: Mapping[str, str] = {
    "views.sql": SCRIPT,
    "data/visits-1.json": DATA,
    "test_views.py": TEST,
    "README.md": README,
    ".gitignore": "storage/\nspark-warehouse/\n__pycache__/\n",
}
"""The files of the project, and their texts."""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    purpose = "make a small project: a script of views, data, and a test"
    parser = add_command(commands, "init", _init, purpose)
    parser.add_argument(
        "folder", metavar="DIR", help="a new or empty folder; hidden files may be in it"
    )
    add_format(parser)


def _init(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    try:
        taken = _taken(folder)
        if taken:
            raise EngineError(
                f"{folder} has {taken[0]} already",
                condition="BAD_OPTION",
                hint="give the name of a new folder",
            )
        for name, text in PROJECT.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"{folder} can't be written: {error.strerror}",
            condition="BAD_OPTION",
            hint="give the name of a folder that you may write",
        ) from error
    show_rows(args.format, {"file": "made"}, [{"file": str(folder / name)} for name in PROJECT])
    return 0


def _taken(folder: Path) -> list[str]:
    """Return the names in a folder that keep a project out: not hidden ones of others, such as .git and .venv."""
    own = [name for name in PROJECT if (folder / name).exists()]
    found = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [*own, *(name for name in found if not name.startswith("."))]
