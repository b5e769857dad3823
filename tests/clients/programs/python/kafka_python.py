"""kafka-python behind the common protocol."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import kafka.errors
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata
from shell import (
    ConsumerThread,
    Copying,
    Program,
    Refused,
    encoded,
    headers_of,
    seen,
    serve,
    value_of,
)

TIMEOUT_S = 30
ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


class Adapter:
    def __init__(self, consumer: KafkaConsumer) -> None:
        self.consumer = consumer

    def poll(self) -> list[dict[str, Any]]:
        return [
            seen(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
            for batch in self.consumer.poll(timeout_ms=100).values()
            for r in batch
        ]

    def assignment(self) -> list[tuple[str, int]]:
        return [(p.topic, p.partition) for p in self.consumer.assignment()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def commit(self) -> None:
        self.consumer.commit()

    def close(self) -> None:
        self.consumer.close(autocommit=False)


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.thread: ConsumerThread | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        if self.thread is not None and revoked:
            self.thread.revoked((p.topic, p.partition) for p in revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


class KafkaPython(Program):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def code_of(self, error: Exception) -> int | None:
        if isinstance(error, kafka.errors.BrokerResponseError):
            code: int = error.errno
            return code
        return None

    def op_produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        max_bytes: int | None = None,
    ) -> list[dict[str, int | None]]:
        settings = {"max_request_size": max_bytes} if max_bytes is not None else {}
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            **settings,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    key=encoded(record.get("key")),
                    value=value_of(record),
                    headers=headers_of(record),
                    partition=record.get("partition"),
                    timestamp_ms=record.get("timestamp"),
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            return [self._outcome(future) for future in futures]
        finally:
            producer.close(TIMEOUT_S)

    def _outcome(self, future: Any) -> dict[str, int | None]:
        try:
            sent = future.get(TIMEOUT_S)
        except kafka.errors.KafkaError as error:
            code = self.code_of(error)
            if code is None:
                raise
            return {"error": code}
        return {"partition": sent.partition, "offset": sent.offset}

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
        settings = {"max_partition_fetch_bytes": max_bytes} if max_bytes is not None else {}
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            group_instance_id=instance_id,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            isolation_level=isolation,
            partition_assignment_strategy=(ASSIGNORS[assignor],),
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1000,
            fetch_max_wait_ms=100,
            **settings,
        )
        if partitions is not None:
            consumer.assign([TopicPartition(t, p) for t, p, _ in partitions])
            for topic, partition, offset in partitions:
                consumer.seek(TopicPartition(topic, partition), offset)
            thread_of(Adapter(consumer))
            return
        listener = Listener()
        consumer.subscribe(topics, listener=listener)
        # kafka-python 3.0 loses its assignment when news of the topic makes it join again just
        # before a poll times out, whichever broker it talks to; so it hears the news first.
        for topic in topics or []:
            consumer.partitions_for_topic(topic)
        listener.thread = thread_of(Adapter(consumer))

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
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=100,
            max_poll_records=each,
        )
        try:
            producer.init_transactions()
            consumer.subscribe([topic])
            consumer.partitions_for_topic(topic)
            while True:
                batches = consumer.poll(timeout_ms=200)
                if not batches:
                    if self._is_at_end(consumer, topic):
                        return True
                    continue
                producer.begin_transaction()
                for batch in batches.values():
                    for record in batch:
                        producer.send(to, key=record.key, value=record.value)
                positions = {
                    place: OffsetAndMetadata(batch[-1].offset + 1, "", -1)
                    for place, batch in batches.items()
                }
                producer.send_offsets_to_transaction(positions, consumer.group_metadata())
                if copying.is_to_abort:
                    producer.flush(TIMEOUT_S)  # Else what is not sent yet never is.
                    producer.abort_transaction()
                    copying.aborted += 1
                    return False
                producer.commit_transaction()
                copying.committed += 1
        finally:
            consumer.close(autocommit=False)
            producer.close(1)

    @staticmethod
    def _is_at_end(consumer: KafkaConsumer, topic: str) -> bool:
        places = [TopicPartition(topic, i) for i in consumer.partitions_for_topic(topic) or ()]
        ends = consumer.end_offsets(places)
        return bool(places) and all(
            (consumer.committed(place) or 0) == ends[place] for place in places
        )

    def op_create_topic(
        self, topic: str, partitions: int = -1, configs: dict[str, str] | None = None
    ) -> None:
        self.admin.create_topics({topic: {"num_partitions": partitions, "configs": configs or {}}})

    def op_delete_topic(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def op_list_topics(self) -> list[str]:
        topics: list[str] = self.admin.list_topics()
        return topics

    def op_partitions(self, topic: str) -> int:
        (described,) = self.admin.describe_topics([topic])
        return len(described["partitions"])

    def op_create_partitions(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions({topic: partitions})

    def op_describe_configs(self, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = self.admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in described["topic"][topic].items()}

    def op_describe_broker(self, broker: int) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker))
        described = self.admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in described["broker"][str(broker)].items()}

    def op_alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        result = self.admin.alter_configs([resource])["topic"][topic]
        if result != "OK":  # "[Error 40] InvalidConfigurationError: …"
            raise Refused(int(result.split("]")[0].removeprefix("[Error ")), result)

    def op_delete_records(self, topic: str, partition: int, before: int) -> int:
        target = TopicPartition(topic, partition)
        low: int = self.admin.delete_records({target: before})[target]["low_watermark"]
        return low

    def op_list_groups(self) -> list[str]:
        return [group["group_id"] for group in self.admin.list_groups()]

    def op_describe_group(self, group: str) -> dict[str, Any]:
        described = self.admin.describe_groups([group])[group]
        members = [
            sorted(
                [assigned["topic"], partition]
                for assigned in member["member_assignment"]["assigned_partitions"]
                for partition in assigned["partitions"]
            )
            for member in described["members"]
        ]
        return {"state": described["group_state"], "members": members}

    def op_delete_group(self, group: str) -> None:
        result = self.admin.delete_groups([group])[group]
        if result != "OK":
            raise Refused(getattr(kafka.errors, result).errno, result)

    def op_delete_offsets(self, group: str, topic: str, partition: int) -> None:
        target = TopicPartition(topic, partition)
        result = self.admin.delete_group_offsets(group, [target])[target]
        if result is not kafka.errors.NoError:
            raise Refused(result.errno, str(result))

    def op_group_offsets(self, group: str) -> list[Any]:
        committed = self.admin.list_group_offsets([group])[group]
        return sorted([p.topic, p.partition, o.offset] for p, o in committed.items())

    def op_set_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        target = TopicPartition(topic, partition)
        wish = {target: OffsetAndMetadata(offset, "", -1)}
        result = self.admin.alter_group_offsets(group, wish)[target]
        if result is not kafka.errors.NoError:
            raise Refused(result.errno, str(result))

    def op_describe_log_dirs(self, topic: str) -> dict[str, int]:
        return {
            str(partition["partition_index"]): partition["partition_size"]
            for broker in self.admin.describe_log_dirs([topic])
            for directory in broker["log_dirs"]
            for described in directory["topics"]
            for partition in described["partitions"]
        }

    def op_offsets(self, topic: str, partition: int) -> dict[str, int]:
        return {
            "earliest": self._offset(topic, partition, OffsetSpec.EARLIEST),
            "latest": self._offset(topic, partition, OffsetSpec.LATEST),
        }

    def op_offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        found = self._offset(topic, partition, timestamp)
        return found if found >= 0 else None

    def op_offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        return self._offset(topic, partition, OffsetSpec.MAX_TIMESTAMP)

    def op_describe_cluster(self) -> dict[str, Any]:
        described = self.admin.describe_cluster()
        return {
            "cluster_id": described["cluster_id"],
            "ids": [b["broker_id"] for b in described["brokers"]],
            "brokers": [f"{b['host']}:{b['port']}" for b in described["brokers"]],
        }

    def op_describe_features(self) -> dict[str, Any]:
        found = self.admin.describe_features()
        return {
            "finalized": {name: feature["finalized"][1] for name, feature in found.items()},
            "supported": {name: feature["supported"] for name, feature in found.items()},
        }

    def _offset(self, topic: str, partition: int, spec: Any) -> int:
        target = TopicPartition(topic, partition)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                found: int = self.admin.list_partition_offsets({target: spec})[target].offset
            except kafka.errors.KafkaConnectionError:
                # Its admin client asks a node that is gone until it has heard of that.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return found


if __name__ == "__main__":
    serve(KafkaPython(sys.argv[1]))
