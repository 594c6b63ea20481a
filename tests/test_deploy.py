"""The files in deploy: an image, a compose file, a manifest for Kubernetes, and the script that they run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import eddyline
from eddyline.cli.commands import build_parser

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICE, SET = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
POD = SET["spec"]["template"]["spec"]
CONTAINERS = {one["name"]: one for one in POD["containers"]}


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "Containerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
        ["kubernetes-validate", "--strict", "kubernetes.yaml"],
    ],
    ids=lambda command: command[-1],
)
def test_the_linter_of_each_format_finds_nothing(command: list[str]) -> None:
    name, *arguments = command
    program = Path(sys.executable).with_name(name)
    done = subprocess.run([program, *arguments], cwd=DEPLOY, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_both_run_the_same_commands() -> None:
    given = {name: one["args"] for name, one in CONTAINERS.items()}
    for name, arguments in given.items():
        build_parser(arguments).parse_args(arguments)
        command = [part.replace("$$", "$") for part in COMPOSE["services"][name]["command"]]
        assert command == arguments


def test_images_ports_users_and_secrets_are_those_of_the_other_files() -> None:
    image = (DEPLOY / "Containerfile").read_text()
    assert f"ARG VERSION={eddyline.__version__}\n" in image
    assert f"USER {POD['securityContext']['runAsUser']}\n" in image
    tag = f"eddyline:{eddyline.__version__}"
    services = COMPOSE["services"]
    assert {one["image"] for one in CONTAINERS.values()} == {tag}
    assert {services[name]["image"] for name in CONTAINERS} == {tag}
    port = CONTAINERS["console"]["args"][CONTAINERS["console"]["args"].index("--port") + 1]
    assert services["console"]["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert CONTAINERS["console"]["ports"] == [{"name": "console", "containerPort": int(port)}]
    assert [one["targetPort"] for one in SERVICE["spec"]["ports"]] == ["console"]
    script = (DEPLOY / "shop.sql").read_text()
    texts = script + " ".join(CONTAINERS["console"]["args"])
    files = set(re.findall(r"\$\{file:/run/secrets/(\w+)}", texts))
    assert files == set(COMPOSE["secrets"])
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    assert all(f"--from-literal={name}=" in page for name in files)
    for host in re.findall(r"(\w+):(?:9092|5432)", script):
        assert host in services


def test_secrets_are_files() -> None:
    """Compose refuses secrets of the environment in read-only containers."""
    page = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    for name, secret in COMPOSE["secrets"].items():
        assert secret == {"file": f"./{name}"}
        assert re.search(rf"for secret in .*\b{name}\b.*> deploy/\$secret", page)
        assert f"/deploy/{name}\n" in (DEPLOY.parent / ".gitignore").read_text()


def test_every_path_that_a_container_writes_is_a_volume() -> None:
    for name, one in CONTAINERS.items():
        mounts = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"/data", "/tmp"} <= mounts.keys()
        assert bool(mounts["/data"].get("readOnly")) == (name == "console")
        service: dict[str, Any] = COMPOSE["services"][name]
        assert service["read_only"] is True
        assert {"/tmp", "/tmp:exec"} & {*service["volumes"], *service.get("tmpfs", ())}


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.spark
def test_the_script_runs_with_its_services(broker: Any, tmp_path: Path) -> None:
    """A real broker and a real server, under other addresses."""
    pytest.importorskip("confluent_kafka")
    import psycopg

    from kafka_topics import Topic
    from postgres import PASSWORD, server

    topic = Topic(broker, name="orders")
    orders = [{"id": n, "country": "de", "cents": n, "at": "2026-01-01T12:00:00Z"} for n in (1, 2)]
    topic.send(*orders)
    (tmp_path / "password").write_text(PASSWORD)
    with server() as shop:
        script = (DEPLOY / "shop.sql").read_text()
        for old, new in {
            "kafka:9092": broker.address,
            "postgresql://eddyline@postgres:5432/shop": shop.url_without_password,
            "/run/secrets/postgres_password": str(tmp_path / "password"),
        }.items():
            assert old in script
            script = script.replace(old, new)
        (tmp_path / "shop.sql").write_text(script)
        command = [
            sys.executable,
            "-m",
            "eddyline",
            "run",
            "shop.sql",
            "--storage",
            "data",
            "--once",
        ]
        for _ in range(2):  # a restart runs the script again
            done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stderr.decode()
        with psycopg.connect(shop.url) as connection:
            rows = connection.execute("SELECT country, orders, cents FROM by_country").fetchall()
    assert rows == [("de", 2, 3)]
