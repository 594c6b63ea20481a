"""Lines of logs that reach the web statistics through a data queue, and through topics of Kafka; also over kills."""

import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace

import pytest

from eddyline.errors import EddylineError, StorageError
from eddyline.relay.embedded import LogBackend
from eddyline.relay.queue import Producer
from eddyline_apps.webstats import command
from eddyline_apps.webstats.inputs import Run, open_streams, store_run, stored_run
from eddyline_apps.webstats.places import define_place
from eddyline_apps.webstats.views import define_key, queries, script, secret_of
from processes import Child
from test_web_statistics import line
from test_webstats_command import webstats

KAFKA = ("--kafka", "127.0.0.1:1", "--topic", "lines")
VIEWS = ("requests", "malformed_lines")


def get(path, **parts):
    return line(request=f"GET {path} HTTP/1.1", **parts)


@contextmanager
def opened(run, storage, spark):
    """The engine of a storage with the views that read lines."""
    import eddyline as el

    secret = secret_of(storage)
    with ExitStack() as queues, el.Engine(str(storage), spark) as engine:
        define_key(engine.spark, secret)
        define_place(engine.spark)
        open_streams(engine, run, storage, queues)
        views = queries(script(run.settings()))
        command.create(engine, {name: views[name] for name in VIEWS})
        yield engine


def paths(engine):
    engine.advance()
    return Counter(row.path for row in engine.sql("SELECT path FROM requests").collect())


def malformed(engine):
    return Counter(row.line for row in engine.sql("SELECT line FROM malformed_lines").collect())


# --- without a JVM ---


@pytest.mark.parametrize(
    ("arguments", "condition"),
    [
        (["--kafka", "127.0.0.1:1"], "BAD_OPTION"),
        (["--topic", "lines"], "BAD_OPTION"),
        (["--queue", "q", "--kafka-option", "a=b"], "BAD_OPTION"),
        ([*KAFKA, "--kafka-option", "sasl.username"], "BAD_OPTION"),
        ([*KAFKA, "--kafka-option", "SASL.password=clear"], "BAD_OPTION"),
        (["--queue", "q", "--log-format", "nonsense"], "LOG_FORMAT_UNKNOWN"),
    ],
)
def test_arguments_that_name_no_input_are_refused(arguments, condition, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EddylineError) as caught:
        webstats(*arguments, "--storage", "storage")
    assert caught.value.condition == condition
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = Run(
        ("/a", "/b"), ("/q",), "host:9092", ("t",), (("security.protocol", "SSL"),), "combined", "file",
        (("", "UTC"), ("a", "Asia/Kathmandu")), ("a.example",), 2,
    )  # fmt: skip
    store_run(tmp_path / "storage", run, None)
    assert asdict(stored_run(tmp_path / "storage")) == asdict(run)
    (tmp_path / "storage" / "webstats.json").write_text(  # of a version that knew only logs
        '{"logs": ["/a"], "log_format": "combined", "site_from": "host", "zones": [["", "UTC"]]}'
    )
    assert stored_run(tmp_path / "storage") == Run(
        ("/a",), log_format="combined", zones=(("", "UTC"),)
    )


def test_files_and_records_are_apart():
    run = Run(("/a",), ("/q",), "host:9092", ("t",), log_format="combined")
    settings = run.settings()
    assert re.findall(r"FROM (\w+)", settings.relation) == ["log_1"]
    assert re.findall(r"FROM (\w+)", settings.records) == ["log_2", "log_3"]
    numbers = re.findall(r" \* 3 \+ (\d)", settings.relation + settings.records)
    assert numbers == ["0", "1", "2"]  # all have numbers of their own


def test_only_sites_and_proxies_of_a_storage_change(tmp_path):
    storage, run = tmp_path / "storage", Run(("/a",), log_format="combined", sites=("a.example",))
    store_run(storage, run, None)
    changed = replace(run, sites=("b.example", "*.example"), proxies=1)
    store_run(storage, changed, run)
    assert stored_run(storage) == changed
    for other in (
        replace(changed, sites=()),
        replace(changed, logs=("/b",)),
        replace(changed, queues=("/q",)),
        replace(changed, zones=(("", "UTC"),)),
    ):
        with pytest.raises(StorageError, match="OTHER_RUN"):
            store_run(storage, other, changed)
    assert stored_run(storage) == changed


# --- for real ---


@pytest.mark.spark
def test_lines_of_a_queue_count_once_beside_those_of_a_log(spark, tmp_path):
    storage, folder, log = tmp_path / "storage", tmp_path / "queue", tmp_path / "access.log"
    log.write_text(get("/log") + "\n")
    producer = Producer(LogBackend(folder))
    producer.put([get("/one").encode(), get("/two").encode() + b"\r\n", b"\xff no line", b""])
    run = Run((str(log),), (str(folder),), log_format="combined", site_from="file")
    with opened(run, storage, spark) as engine:
        assert paths(engine) == Counter(["/log", "/one", "/two"])
        assert malformed(engine) == Counter(["\ufffd no line", ""])
        # another process puts lines, too, with the site as key
        code = (
            "import sys\nfrom eddyline.relay.embedded import LogBackend\nfrom eddyline.relay.queue import Producer\n"
            "Producer(LogBackend(sys.argv[1])).put([sys.argv[2]] * 2, ['WWW-1'] * 2)"
        )
        subprocess.run([sys.executable, "-c", code, str(folder), get("/three")], check=True)
        assert paths(engine)["/three"] == 2
    producer.put([get("/late")])
    with opened(run, storage, spark) as engine:
        assert paths(engine) == Counter(["/log", "/one", "/two", "/three", "/three", "/late"])
        sites = engine.sql("SELECT DISTINCT site FROM requests WHERE path = '/three'").collect()
        assert [row.site for row in sites] == ["www-1"]
        (distinct,) = engine.sql("SELECT count(DISTINCT seq) FROM requests").first()
        assert distinct == 6
        assert engine.verify()


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.spark
def test_values_of_topics_are_lines(broker, spark, tmp_path, monkeypatch):
    pytest.importorskip("confluent_kafka")
    from eddyline.intake import kafka_topics
    from kafka_topics import Topic

    monkeypatch.setattr(kafka_topics, "WAIT_S", 120.0)
    monkeypatch.setattr(kafka_topics, "TIMEOUT_S", 120.0)
    storage = tmp_path / "storage"
    first, second = Topic(broker, partitions=2), Topic(broker)
    first.send(get("/a"), get("/b") + "\n", b"\xff", None)
    first.send(get("/c"), partition=1)
    second.send(get("/d"))
    topics = (first.name, second.name)
    run = Run(brokers=broker.address, topics=topics, log_format="combined", site_from="file")
    with opened(run, storage, spark) as engine:
        assert paths(engine) == Counter(["/a", "/b", "/c", "/d"])
        assert malformed(engine) == Counter(["\ufffd"])
    second.send(get("/e"))
    with opened(run, storage, spark) as engine:
        assert paths(engine) == Counter(["/a", "/b", "/c", "/d", "/e"])
        sites = engine.sql("SELECT site, count(*) AS n FROM requests GROUP BY site").collect()
        assert {row.site: row.n for row in sites} == {first.name: 3, second.name: 2}
        (distinct,) = engine.sql("SELECT count(DISTINCT seq) FROM requests").first()
        assert distinct == 5
        assert engine.verify()


# --- over kills ---


@contextmanager
def written(put):
    """Lines that a thread writes, each with a path of its own; yields their sites by path."""
    sites, stopped = {}, threading.Event()

    def write():
        while not stopped.wait(0.05):
            new = {f"/{len(sites) + n}": f"site{random.randrange(3)}.example" for n in range(5)}
            put([get(path, site=f"{site}:80 ") for path, site in new.items()])
            sites.update(new)

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            yield sites
        finally:
            stopped.set()
        writing.result()


def count_over_kills(put, arguments, folder):
    """Kill the command while lines come, at random moments; at the end each must count once in the views."""
    storage = folder / "storage"
    command = [sys.executable, "-m", "eddyline", "webstats", *arguments]
    command += ["--storage", str(storage), "--follow", "--port", "0"]
    with written(put) as sites:
        for sign, seconds in (
            ("", 20),
            ("dashboard:", 8),
            ("epoch", 4),
            ("epoch", 4),
            ("epoch", 4),
        ):
            child = Child(command, folder / "errors")
            try:
                if sign:
                    child.wait_for(sign)
                time.sleep(random.uniform(0, seconds))
            finally:
                child.kill()
    assert webstats("--storage", storage, "--verify") == 0
    import eddyline as el

    with el.Engine(str(storage)) as engine:
        found = Counter(row.path for row in engine.sql("SELECT path FROM requests").collect())
        daily = engine.sql(
            "SELECT site, sum(page_pv) FROM daily_statistics GROUP BY site"
        ).collect()
        malformed = engine.sql("SELECT malformed FROM malformed_count").first()
    assert len(sites) > 1000
    assert found == Counter(sites.keys())
    assert dict(map(tuple, daily)) == Counter(sites.values())
    assert tuple(malformed) == (0,)


@pytest.mark.guarantee(
    "data queue, by `eddyline webstats`",
    "exactly once",
    "the command, 5 times by kill -9 at random moments",
)
@pytest.mark.slow
@pytest.mark.spark
def test_each_line_of_a_queue_counts_once_over_kills(tmp_path):
    producer = Producer(LogBackend(tmp_path / "queue"))
    count_over_kills(producer.put, ["--queue", str(tmp_path / "queue")], tmp_path)


@pytest.mark.guarantee(
    "stream `kafka`, by `eddyline webstats`",
    "exactly once",
    "the command, 5 times by kill -9 at random moments",
)
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.spark
def test_each_record_of_a_topic_counts_once_over_kills(broker, tmp_path):
    pytest.importorskip("confluent_kafka")
    from kafka_topics import Topic

    topic = Topic(broker, partitions=2)

    def put(lines):
        topic.send(*lines, partition=random.randrange(2))

    count_over_kills(put, ["--kafka", broker.address, "--topic", topic.name], tmp_path)
