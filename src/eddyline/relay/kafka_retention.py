"""Checks Kafka's retention for a data queue, because it deletes records even if they are unread."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from eddyline.errors import QueueError
from eddyline.relay.kafka_client import (
    TIMEOUT_S,
    AdminClient,
    ConfigResource,
    KafkaError,
    KafkaException,
)

logger = logging.getLogger("eddyline.kafka")

HIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def check_retention(admin: AdminClient, topics: Iterable[str], retry_delay_ms: int) -> None:
    """Check that topics keep failed records until they are read again.

    Raises:
        QueueError: the brokers delete records of a topic before.
    """
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    for resource, future in admin.describe_configs(resources).items():
        try:
            settings = future.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in HIDDEN:
                raise
            logger.warning(
                "the retention of topics isn't checked, as this user may not see it: %s", error
            )
            return
        retention_ms = int(settings["retention.ms"].value)
        deletes = "delete" in settings["cleanup.policy"].value
        if deletes and 0 <= retention_ms <= retry_delay_ms:
            raise QueueError(
                f"failed records wait {retry_delay_ms:,} ms for their retry, and the brokers "
                f"delete them after {retention_ms:,} ms",
                condition="RETENTION_TOO_SHORT",
                topic=resource.name,
                hint="raise retention.ms of the topic above the retry delay, or shorten the delay",
            )
