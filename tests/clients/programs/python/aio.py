"""aiokafka behind the common protocol; its event loop runs beside the reader of requests."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiokafka.errors
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
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
T = TypeVar("T")


class Loop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


class Adapter:
    def __init__(self, loop: Loop, consumer: AIOKafkaConsumer) -> None:
        self.loop = loop
        self.consumer = consumer

    def poll(self) -> list[dict[str, Any]]:
        batches = self.loop.run(self.consumer.getmany(timeout_ms=50))
        return [
            seen(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
            for batch in batches.values()
            for r in batch
        ]

    def assignment(self) -> list[tuple[str, int]]:
        return [(p.topic, p.partition) for p in self.consumer.assignment()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        self.consumer.seek(TopicPartition(topic, partition), offset)

    def commit(self) -> None:
        self.loop.run(self.consumer.commit())

    def close(self) -> None:
        self.loop.run(self.consumer.stop())


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.thread: ConsumerThread | None = None

    def on_partitions_revoked(self, revoked: Any) -> None:
        if self.thread is not None and revoked:
            self.thread.revoked((p.topic, p.partition) for p in revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass


def raise_for(code: int, message: str | None) -> None:
    if code:
        raise Refused(code, message or "")


class Aio(Program):
    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.loop = Loop()

        async def connected() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            return admin

        self.admin = self.loop.run(connected())

    def code_of(self, error: Exception) -> int | None:
        if isinstance(error, aiokafka.errors.BrokerResponseError):
            code: int = error.errno
            return code
        return None

    def op_produce(self, **args: Any) -> list[dict[str, int | None]]:
        return self.loop.run(self._produce(**args))

    async def _produce(
        self,
        topic: str,
        records: list[dict[str, Any]],
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        max_bytes: int | None = None,
    ) -> list[dict[str, int | None]]:
        settings = {"max_request_size": max_bytes} if max_bytes is not None else {}
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            **settings,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    key=encoded(record.get("key")),
                    value=value_of(record),
                    headers=headers_of(record),
                    partition=record.get("partition"),
                    timestamp_ms=record.get("timestamp"),
                )
                for record in records
            ]
            outcomes = await asyncio.wait_for(
                asyncio.gather(*sent, return_exceptions=True), TIMEOUT_S
            )
        finally:
            await producer.stop()
        return [self._outcome(outcome) for outcome in outcomes]

    def _outcome(self, outcome: Any) -> dict[str, int | None]:
        if isinstance(outcome, BaseException):
            code = self.code_of(outcome) if isinstance(outcome, Exception) else None
            if code is None:
                raise outcome
            return {"error": code}
        if outcome is None:  # acks=0: nothing is known
            return {"partition": None, "offset": None}
        return {"partition": outcome.partition, "offset": outcome.offset}

    def open_consumer(self, thread_of: Callable[[Any], ConsumerThread], **args: Any) -> None:
        listener = Listener()
        consumer = self.loop.run(self._started_consumer(listener, **args))
        listener.thread = thread_of(Adapter(self.loop, consumer))

    async def _started_consumer(
        self,
        listener: Listener,
        group: str | None = None,
        topics: list[str] | None = None,
        partitions: list[Any] | None = None,
        instance_id: str | None = None,
        reset: str = "earliest",
        max_bytes: int | None = None,
        isolation: str = "read_uncommitted",
    ) -> AIOKafkaConsumer:
        settings = {"max_partition_fetch_bytes": max_bytes} if max_bytes is not None else {}
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=group,
            group_instance_id=instance_id,
            auto_offset_reset=reset,
            enable_auto_commit=False,
            isolation_level=isolation,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
            metadata_max_age_ms=1000,
            fetch_max_wait_ms=100,
            **settings,
        )
        if partitions is None:
            consumer.subscribe(topics, listener=listener)
            await consumer.start()
            return consumer
        await consumer.start()
        consumer.assign([TopicPartition(t, p) for t, p, _ in partitions])
        for topic, partition, offset in partitions:
            consumer.seek(TopicPartition(topic, partition), offset)
        return consumer

    def copy_session(self, copying: Copying, **args: Any) -> bool:
        return self.loop.run(self._copy_session(copying, **args))

    async def _copy_session(
        self,
        copying: Copying,
        topic: str,
        to: str,
        group: str,
        transactional_id: str,
        each: int = 5,
        timeout_ms: int = 60_000,
    ) -> bool:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        await producer.start()
        consumer = await self._started_consumer(
            Listener(), group, [topic], isolation="read_committed"
        )
        try:
            while True:
                batches = await consumer.getmany(timeout_ms=200, max_records=each)
                if not batches:
                    if await self._is_at_end(consumer, topic):
                        return True
                    continue
                await producer.begin_transaction()
                for batch in batches.values():
                    for record in batch:
                        await producer.send(to, key=record.key, value=record.value)
                positions = {place: batch[-1].offset + 1 for place, batch in batches.items()}
                await producer.send_offsets_to_transaction(positions, group)
                if copying.is_to_abort:
                    await producer.flush()  # Else what is not sent yet never is.
                    await producer.abort_transaction()
                    copying.aborted += 1
                    return False
                await producer.commit_transaction()
                copying.committed += 1
        finally:
            await asyncio.gather(consumer.stop(), producer.stop(), return_exceptions=True)

    @staticmethod
    async def _is_at_end(consumer: AIOKafkaConsumer, topic: str) -> bool:
        places = [TopicPartition(topic, i) for i in consumer.partitions_for_topic(topic) or ()]
        ends = await consumer.end_offsets(places)
        found = [(await consumer.committed(place) or 0, ends[place]) for place in places]
        return bool(found) and all(position == end for position, end in found)

    def op_create_topic(
        self, topic: str, partitions: int = -1, configs: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=configs or {})
        for _, code, message, *_ in self.loop.run(self.admin.create_topics([new])).topic_errors:
            raise_for(code, message)

    def op_delete_topic(self, topic: str) -> None:
        for _, code, *_ in self.loop.run(self.admin.delete_topics([topic])).topic_error_codes:
            raise_for(code, "delete_topics")

    def op_list_topics(self) -> list[str]:
        return self.loop.run(self.admin.list_topics())

    def op_partitions(self, topic: str) -> int:
        (described,) = self.loop.run(self.admin.describe_topics([topic]))
        return len(described["partitions"])

    def op_create_partitions(self, topic: str, partitions: int) -> None:
        self.loop.run(self.admin.create_partitions({topic: NewPartitions(partitions)}))

    def op_describe_configs(self, topic: str) -> dict[str, str]:
        return self._described(ConfigResource(ConfigResourceType.TOPIC, topic))

    def op_describe_broker(self, broker: int) -> dict[str, str]:
        return self._described(ConfigResource(ConfigResourceType.BROKER, str(broker)))

    def _described(self, resource: ConfigResource) -> dict[str, str]:
        (answer,) = self.loop.run(self.admin.describe_configs([resource]))
        ((code, message, _, _, entries, *_),) = answer.resources
        raise_for(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def op_alter_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (answer,) = self.loop.run(self.admin.alter_configs([resource]))
        for code, message, *_ in answer.resources:
            raise_for(code, message)

    def op_delete_records(self, topic: str, partition: int, before: int) -> int:
        target = TopicPartition(topic, partition)
        wish = {target: RecordsToDelete(before_offset=before)}
        return self.loop.run(self.admin.delete_records(wish))[target]

    def op_list_groups(self) -> list[str]:
        return [group[0] for group in self.loop.run(self.admin.list_consumer_groups())]

    def op_describe_group(self, group: str) -> dict[str, Any]:
        (answer,) = self.loop.run(self.admin.describe_consumer_groups([group]))
        ((code, _, state, _, _, members, *_),) = answer.groups
        raise_for(code, "describe_consumer_groups")
        return {"state": state, "members": [self._assigned(member) for member in members]}

    @staticmethod
    def _assigned(member: Any) -> list[list[Any]]:
        assignment = ConsumerProtocolMemberAssignment.decode(member[4])
        return sorted([p.topic, p.partition] for p in assignment.partitions())

    def op_group_offsets(self, group: str) -> list[Any]:
        committed = self.loop.run(self.admin.list_consumer_group_offsets(group))
        return sorted([p.topic, p.partition, o.offset] for p, o in committed.items())

    def op_offsets(self, topic: str, partition: int) -> dict[str, int]:
        target = TopicPartition(topic, partition)

        async def look(consumer: AIOKafkaConsumer) -> dict[str, int]:
            earliest = await consumer.beginning_offsets([target])
            latest = await consumer.end_offsets([target])
            return {"earliest": earliest[target], "latest": latest[target]}

        return self.loop.run(self._with_consumer(look))

    def op_offset_for_time(self, topic: str, partition: int, timestamp: int) -> int | None:
        target = TopicPartition(topic, partition)

        async def look(consumer: AIOKafkaConsumer) -> int | None:
            found = (await consumer.offsets_for_times({target: timestamp}))[target]
            return None if found is None else found.offset

        return self.loop.run(self._with_consumer(look))

    def op_describe_cluster(self) -> dict[str, Any]:
        described = self.loop.run(self.admin.describe_cluster())
        return {
            "cluster_id": described["cluster_id"],
            "ids": [b["node_id"] for b in described["brokers"]],
            "brokers": [f"{b['host']}:{b['port']}" for b in described["brokers"]],
        }

    async def _with_consumer(self, look: Callable[[AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
        await consumer.start()
        try:
            return await look(consumer)
        finally:
            await consumer.stop()


if __name__ == "__main__":
    serve(Aio(sys.argv[1]))
