"""A real nginx for tests: the program, and the frame of its configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

UNPACKED = Path(__file__).parents[1] / ".nginx/usr/sbin/nginx"
NGINX = shutil.which("nginx") or (str(UNPACKED) if UNPACKED.exists() else None)
"""The program; None where there is none: `make nginx` fetches it."""

_FRAME = """
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {http}
}}
"""


def nginx_config(folder: Path, http: str) -> str:
    """The configuration of an nginx with all its files in a folder; `http` is what its section http has."""
    return _FRAME.format(folder=folder, http=http)
