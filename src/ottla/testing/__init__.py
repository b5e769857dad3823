"""A real broker for the tests of programs that use Kafka: no Docker, no Java.

With pytest, ask for the fixtures `ottla_broker`, `ottla_topic`, `ottla_broker_factory` or
`ottla_cluster`. Without:

    with ottla.testing.Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
"""

from ottla.testing.broker import Broker, BrokerFailed
from ottla.testing.cluster import Cluster
from ottla.testing.topics import TopicNotCreated

__all__ = ["Broker", "BrokerFailed", "Cluster", "TopicNotCreated"]
