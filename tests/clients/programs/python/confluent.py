"""confluent-kafka (librdkafka) behind the common protocol."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from shell import ConsumerThread, Copying, Program, Refused, headers_of, seen, serve, value_of

TIMEOUT_S = 30
# When a coordinator is gone from the metadata, librdkafka 2.16 may wait for its old handle of that
# node for as long as the producer lives. An application gives such a producer up.
TRANSACTION_TIMEOUT_S = 10


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def again(work: Callable[[], Any]) -> None:
    """As long as the library says that it is worth another try, and some time."""
    deadline = time.monotonic() + TRANSACTION_TIMEOUT_S
    while True:
        try:
            work()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class Adapter:
    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer

    def poll(self) -> list[dict[str, Any]]:
        records = []
        for message in self.consumer.consume(500, 0.05):
            if message.error() is not None:
                raise KafkaException(message.error())
            records.append(
                seen(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    message.headers() or [],
                )
            )
        return records

    def assignment(self) -> list[tuple[str, int]]:
        return [(p.topic, p.partition) for p in self.consumer.assignment()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition, offset))

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


class Confluent(Program):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.given_up: list[Producer] = []

    def code_of(self, error: Exception) -> int | None:
        if not isinstance(error, KafkaException):
            return None
        code: int = error.args[0].code()
        return code if code >= 0 else None

    def op_produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        max_bytes: int | None = None,
    ) -> list[dict[str, int]]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "acks": acks,
            "compression.type": compression,
            "enable.idempotence": idempotent,
            "partitioner": "murmur2_random",
        }
        if max_bytes is not None:
            settings["message.max.bytes"] = max_bytes
        producer = Producer(settings)
        results: list[dict[str, int]] = [{} for _ in records]

        def report(index: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    results[index] = {"error": error.code()}
                else:
                    results[index] = {"partition": message.partition(), "offset": message.offset()}

            return delivered

        for index, record in enumerate(records):
            producer.produce(
                topic,
                key=record.get("key"),
                value=value_of(record),
                headers=headers_of(record),
                partition=record.get("partition", -1),
                timestamp=record.get("timestamp", 0),
                on_delivery=report(index),
            )
        if producer.flush(TIMEOUT_S):
            raise Refused(None, "not everything was delivered in time")
        return results

    def open_consumer(
        self,
        thread_of: Callable[[Any], ConsumerThread],
        group: str | None = None,
        topics: list[str] | None = None,
        partitions: list[Any] | None = None,
        assignor: str = "range",
        instance_id: str | None = None,
        reset: str = "earliest",
        max_bytes: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "isolation.level": isolation,
            "group.id": group or "no-group",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "partition.assignment.strategy": assignor,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "fetch.wait.max.ms": 100,
        }
        if instance_id is not None:
            settings["group.instance.id"] = instance_id
        if max_bytes is not None:
            settings["fetch.message.max.bytes"] = max_bytes
            settings["receive.message.max.bytes"] = max_bytes * 3
        consumer = Consumer(settings)
        thread = thread_of(Adapter(consumer))

        def on_revoke(_: Consumer, revoked: list[TopicPartition]) -> None:
            thread.revoked((p.topic, p.partition) for p in revoked)

        if partitions is not None:
            consumer.assign([TopicPartition(t, p, o) for t, p, o in partitions])
        else:
            consumer.subscribe(topics, on_revoke=on_revoke)

    def copy_session(
        self,
        copying: Copying,
        topic: str,
        to: str,
        group: str,
        transactional_id: str,
        each: int = 5,
        timeout_ms: int = 60_000,
    ) -> bool:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "partitioner": "murmur2_random",
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                # When all brokers were gone, librdkafka 2.16 begins anew with the bootstrap address
                # and waits for ever for the group coordinator that it has let go.
                "metadata.recovery.strategy": "none",
            }
        )
        again(lambda: producer.init_transactions(TRANSACTION_TIMEOUT_S))
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 200,
            }
        )
        try:
            consumer.subscribe([topic])
            while True:
                messages = [m for m in consumer.consume(each, 0.2) if m.error() is None]
                if not messages:
                    if self._is_at_end(consumer, topic):
                        return True
                    continue
                producer.begin_transaction()
                for message in messages:
                    producer.produce(to, key=message.key(), value=message.value())
                positions = consumer.position(consumer.assignment())
                metadata = consumer.consumer_group_metadata()
                again(
                    lambda: producer.send_offsets_to_transaction(
                        positions,  # noqa: B023
                        metadata,  # noqa: B023
                        TRANSACTION_TIMEOUT_S,
                    )
                )
                if copying.is_to_abort:
                    producer.flush(TRANSACTION_TIMEOUT_S)  # Else what is not sent yet never is.
                    again(lambda: producer.abort_transaction(TRANSACTION_TIMEOUT_S))
                    copying.aborted += 1
                    return False
                again(lambda: producer.commit_transaction(TRANSACTION_TIMEOUT_S))
                copying.committed += 1
        except KafkaException:
            # Whoever destroys one that waits for a handle waits as long.
            self.given_up.append(producer)
            raise
        finally:
            consumer.close()

    @staticmethod
    def _is_at_end(consumer: Consumer, topic: str) -> bool:
        count = len(consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)
        places = [TopicPartition(topic, index) for index in range(count)]
        return all(
            max(0, place.offset) == consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1]
            for place in consumer.committed(places, timeout=TIMEOUT_S)
        )

    def op_create_topic(
        self, topic: str, partitions: int = -1, configs: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, -1, config=configs or {})
        only(self.admin.create_topics([new]))

    def op_delete_topic(self, topic: str) -> None:
        only(self.admin.delete_topics([topic]))

    def op_list_topics(self) -> list[str]:
        return list(self.admin.list_topics(timeout=TIMEOUT_S).topics)

    def op_partitions(self, topic: str) -> int:
        return len(self.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

    def op_create_partitions(self, topic: str, partitions: int) -> None:
        only(self.admin.create_partitions([NewPartitions(topic, partitions)]))

    def op_describe_configs(self, topic: str) -> dict[str, str]:
        entries = only(self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def op_describe_broker(self, broker: int) -> dict[str, str]:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        entries = only(self.admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def op_alter_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        only(self.admin.incremental_alter_configs([resource]))

    def op_delete_records(self, topic: str, partition: int, before: int) -> int:
        deleted = only(self.admin.delete_records([TopicPartition(topic, partition, before)]))
        low: int = deleted.low_watermark
        return low

    def op_list_groups(self) -> list[str]:
        return [g.group_id for g in self.admin.list_consumer_groups().result(TIMEOUT_S).valid]

    def op_describe_group(self, group: str) -> dict[str, Any]:
        described = only(self.admin.describe_consumer_groups([group]))
        members = [
            sorted([p.topic, p.partition] for p in member.assignment.topic_partitions)
            for member in described.members
        ]
        return {"state": described.state.name.title().replace("_", ""), "members": members}

    def op_delete_group(self, group: str) -> None:
        only(self.admin.delete_consumer_groups([group]))

    def op_group_offsets(self, group: str) -> list[Any]:
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = only(self.admin.list_consumer_group_offsets(asked))
        return sorted([p.topic, p.partition, p.offset] for p in answer.topic_partitions)

    def op_set_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        wish = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        (altered,) = only(self.admin.alter_consumer_group_offsets([wish])).topic_partitions
        if altered.error is not None:
            raise KafkaException(altered.error)

    def op_offsets(self, topic: str, partition: int) -> dict[str, int]:
        return {
            "earliest": self._offset(topic, partition, OffsetSpec.earliest()).offset,
            "latest": self._offset(topic, partition, OffsetSpec.latest()).offset,
        }

    def op_offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        found: int = self._offset(topic, partition, OffsetSpec.for_timestamp(timestamp)).offset
        return found if found >= 0 else None

    def op_offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        found: int = self._offset(topic, partition, OffsetSpec.max_timestamp()).offset
        return found

    def op_describe_cluster(self) -> dict[str, Any]:
        described = self.admin.describe_cluster().result(TIMEOUT_S)
        return {
            "cluster_id": described.cluster_id,
            "ids": [node.id for node in described.nodes],
            "brokers": [f"{node.host}:{node.port}" for node in described.nodes],
        }

    def _offset(self, topic: str, partition: int, spec: OffsetSpec) -> Any:
        return only(self.admin.list_offsets({TopicPartition(topic, partition): spec}))


if __name__ == "__main__":
    serve(Confluent(sys.argv[1]))
