"""Topics of a real Kafka with everything that a reader might get wrong.

The names of those that are read together begin with `odd-`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from ottla.client.blocking import Blocking
from ottla.client.settings import ClientSettings
from ottla.client.values import LATEST
from ottla.testing.topics import create_topic
from ottla.types import TopicPartition as Place
from ottla.wire.compression import Compression
from scenarios.polling import until
from spark.kit.filling import awkward_records, delete_before, put, record
from spark.kit.secured_kafka import SecuredKafka

WAIT_S = 60.0
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


class OddTopics:
    """Fills them one by one; `close` lets go of the transaction that stays open."""

    def __init__(self, kafka: SecuredKafka) -> None:
        self.bootstrap = kafka.address("PLAINTEXT")
        self._open: list[Producer] = []

    def fill(self) -> None:
        self._codecs()
        self._deals()
        self._open_deal()
        self._compacted()
        self._deleted()
        self._append_time()
        self._large()
        self.create("odd-empty", 3)

    def close(self) -> None:
        for producer in self._open:
            producer.abort_transaction(WAIT_S)
        self._open.clear()

    def create(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        create_topic(self.bootstrap, name, partitions, configs or {})
        places = [Place(name, at) for at in range(partitions)]
        with Blocking(ClientSettings((self.bootstrap,))) as client:
            # Asks until all of them have a leader.
            client.run(lambda cluster: cluster.list_offsets(dict.fromkeys(places, LATEST)), WAIT_S)
        return name

    def _codecs(self) -> None:
        """Headers twice, empty and null, no keys, no values, all kinds of times."""
        name = self.create("odd-codecs", len(Compression), ANY_TIME)
        for partition, compression in enumerate(Compression):
            rows = awkward_records()
            singles = [[row] for row in rows]
            place = {"partition": partition, "compression": compression}
            put(self.bootstrap, name, rows, *singles, rows * 20, **place)

    def _deals(self) -> None:
        """Transactions kept and given up, side by side and around plain records."""
        name = self.create("odd-deals", 2)
        one, other = self._transactional("one"), self._transactional("other")
        plain = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for step in range(12):
            one.begin_transaction()
            other.begin_transaction()
            for at in range(3):
                for producer, who in ((one, "one"), (plain, "plain"), (other, "other")):
                    for partition in (0, 1):
                        value = f"{who}-{step}-{at}"
                        producer.produce(name, value, key=who, partition=partition)
                    producer.flush(WAIT_S)
            for producer, is_kept in ((other, step % 3 == 0), (one, step % 2 == 0)):
                if is_kept:
                    producer.commit_transaction(WAIT_S)
                else:
                    producer.abort_transaction(WAIT_S)

    def _open_deal(self) -> None:
        """Behind the first record of a transaction that goes on nothing is committed yet."""
        name = self.create("odd-open")
        put(self.bootstrap, name, [record(b"before")])
        producer = self._transactional("open")
        producer.begin_transaction()
        producer.produce(name, b"perhaps")
        producer.flush(WAIT_S)
        self._open.append(producer)
        put(self.bootstrap, name, [record(b"after")])

    def _compacted(self) -> None:
        """Gaps, also of deleted keys and of aborted transactions; each batch has its segment."""
        name = self.create("odd-compacted", 1, COMPACTED | ANY_TIME)
        # Ahead of the markers of transactions, which have the time of day: so segments roll.
        start = time.time_ns() // 1_000_000 + 600_000
        for at in range(20):
            at_ms = start + 10_000 * at
            keys = [b"key-%d" % (number % 3) for number in range(4)] + [b"one-%d" % at]
            put(self.bootstrap, name, [record(b"%d" % at * 40, key, at_ms) for key in keys])
            if at % 5 == 0:
                self._give_up(name, at_ms + 5000)
        gone = [record(None, b"one-%d" % at, start + 210_000) for at in range(0, 20, 2)]
        put(self.bootstrap, name, gone)
        # Only what lies before the newest segment is compacted.
        put(self.bootstrap, name, [record(b"last", b"last", start + 400_000)])
        kept = 3 + 10 + 10 + 1  # keys that came again, those that did not, tombstones, the last
        until(lambda: self._count(name) == kept, "Kafka did not compact", WAIT_S)

    def _count(self, name: str) -> int:
        """The records up to the end of its first partition."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "tests"}
        consumer = Consumer(settings | {"enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(name, 0, 0)])
            count = 0
            while (found := consumer.poll(WAIT_S)) is not None:
                if found.error() is not None:
                    assert found.error().code() == KafkaError._PARTITION_EOF, found.error()
                    return count
                count += 1
            raise AssertionError(f"{name} was not read to its end")
        finally:
            consumer.close()

    def _give_up(self, name: str, at_ms: int) -> None:
        producer = self._transactional(f"compacted-{at_ms}")
        producer.begin_transaction()
        producer.produce(name, b"no", key=b"key-0", timestamp=at_ms)
        producer.flush(WAIT_S)
        producer.abort_transaction(WAIT_S)

    def _deleted(self) -> None:
        name = self.create("odd-deleted")
        put(self.bootstrap, name, *[[record(b"%d" % at), record(b"x")] for at in range(10)])
        delete_before(self.bootstrap, name, 7)

    def _append_time(self) -> None:
        name = self.create("odd-append-time", 1, {"message.timestamp.type": "LogAppendTime"})
        for compression in Compression:
            put(self.bootstrap, name, awkward_records(), compression=compression)

    def _large(self) -> None:
        name = self.create("odd-large", 1, {"max.message.bytes": "12000000"})
        large = random.Random(11).randbytes(10_000_000)
        put(self.bootstrap, name, [record(b"small")], [record(large, b"k")], [record(b"after")])
        put(self.bootstrap, name, [record(large[::-1], b"k")], compression=Compression.ZSTD)

    def _transactional(self, name: str) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"odd-{name}",
                "transaction.timeout.ms": 900_000,
                "linger.ms": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        return producer
