"""Our client against a real Kafka: every kind of login and TLS, and its transactions."""

from __future__ import annotations

from random import Random

import pytest
from confluent_kafka import Producer as Librdkafka

from ottla.client.blocking import Blocking
from ottla.client.cluster import Cluster
from ottla.client.failures import BadSetting, ClientFailed, GaveUp, LoginFailed, NotTrusted
from ottla.client.producer import Producer
from ottla.client.range_reader import read_range
from ottla.client.settings import ClientSettings
from ottla.client.values import LATEST
from ottla.spark.encoding.encoder import Encoded
from ottla.testing.topics import create_topic
from ottla.types import TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import Record, decode_records, encode_batch, headers_in
from scenarios.polling import until
from spark.kit.secured_kafka import PASSWORD, USER, SecuredKafka, run

RUN_S = 60.0
WAIT_S = 30.0
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
READ = TopicPartition("doors", 0)


# Of the session, as the broker is: tests are not run in the order of their files.
@pytest.fixture(scope="session")
def kafka(real_kafka: SecuredKafka) -> SecuredKafka:
    for topic in ("doors", "deals", "open", "spark"):
        create_topic(real_kafka.address("PLAINTEXT"), topic, 1, {})
    return real_kafka


def options(node: SecuredKafka, door: str, **named: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in named.items()}
    return {"bootstrap.servers": node.address(door), **given}


def plain_login(node: SecuredKafka, password: str = PASSWORD) -> dict[str, str]:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return options(
        node,
        "LOGIN",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=f'{PLAIN} required username="{USER}" password="{quoted}";',
    )


def scram_login(
    node: SecuredKafka, mechanism: str, password: str = "scram-secret"
) -> dict[str, str]:
    return options(
        node,
        "SECURE",
        security_protocol="SASL_SSL",
        sasl_mechanism=mechanism,
        sasl_jaas_config=f'{SCRAM} required username="{USER}" password="{password}";',
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(node.home / "ca.pem"),
    )


def mutual(node: SecuredKafka, **named: str) -> dict[str, str]:
    return options(
        node,
        "MUTUAL",
        security_protocol="SSL",
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=(node.home / "ca.pem").read_text(),
        **named,
    )


def write_and_read(given: dict[str, str]) -> None:
    """Everything that a job does, through one door."""
    with Blocking(ClientSettings.from_kafka(given)) as client:
        start = client.run(lambda cluster: cluster.list_offsets({READ: LATEST}), RUN_S)[READ].offset
        batch = encode_batch([Record(at, 1000, b"k", b"%d" % at) for at in range(3)])
        made = client.run(
            lambda cluster: cluster.produce({READ: batch}, acks=-1, timeout_ms=10_000), RUN_S
        )
        assert (made[READ].error_code, made[READ].base_offset) == (0, start)
        [fetched] = read_range(client, READ, start, start + 3)
        [(at, _)] = headers_in(fetched.records)
        assert [record.value for record in decode_records(fetched.records, at)] == [
            b"0",
            b"1",
            b"2",
        ]
        client.run(lambda cluster: cluster.commit("doors", {READ: start + 3}), RUN_S)
        found = client.run(lambda cluster: cluster.committed("doors", [READ]), RUN_S)
        assert found == {READ: start + 3}
        assert client.run(lambda cluster: cluster.init_producer(), RUN_S)[0] >= 0


def refused(given: dict[str, str], kind: type[ClientFailed]) -> str:
    with Blocking(ClientSettings.from_kafka(given)) as client, pytest.raises(kind) as caught:
        client.run(lambda cluster: cluster.topics(), RUN_S)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_kafka_without_any_lock(kafka):
    write_and_read(options(kafka, "PLAINTEXT"))


def test_plain_logins(kafka):
    write_and_read(plain_login(kafka))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_logins_over_tls(kafka, mechanism):
    write_and_read(scram_login(kafka, mechanism))


def test_tls_with_a_certificate_of_the_client_as_file_and_as_text(kafka):
    store = str(kafka.home / "client-store.pem")
    write_and_read(mutual(kafka, ssl_keystore_type="PEM", ssl_keystore_location=store))
    write_and_read(
        mutual(
            kafka,
            ssl_keystore_type="PEM",
            ssl_keystore_key=(kafka.home / "client.key").read_text(),
            ssl_keystore_certificate_chain=(kafka.home / "client.pem").read_text(),
        )
    )


def test_a_private_key_with_a_password(kafka):
    run(
        ["openssl", "pkcs8", "-topk8", "-in", "client.key", "-out", "locked.key", "-passout",
         "pass:open sesame"], kafka.home,
    )  # fmt: skip
    given = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_key": (kafka.home / "locked.key").read_text(),
        "ssl_keystore_certificate_chain": (kafka.home / "client.pem").read_text(),
    }
    write_and_read(mutual(kafka, ssl_key_password="open sesame", **given))
    assert "give ssl.key.password" in refused(mutual(kafka, **given), BadSetting)
    assert "cannot be used" in refused(mutual(kafka, ssl_key_password="no", **given), BadSetting)


def test_tls_without_the_certificate_that_the_broker_wants(kafka):
    line = refused(mutual(kafka), NotTrusted)
    assert kafka.address("MUTUAL") in line
    assert "ssl.keystore" in line


def test_a_wrong_password_is_one_line_that_names_user_and_mechanism(kafka):
    line = refused(plain_login(kafka, "wrong"), LoginFailed)
    assert f"{kafka.address('LOGIN')} refused the login of user 'alice' by PLAIN" in line
    line = refused(scram_login(kafka, "SCRAM-SHA-512", "wrong"), LoginFailed)
    assert f"{kafka.address('SECURE')} refused the login of user 'alice' by SCRAM-SHA-512" in line
    assert "wrong" not in line


def test_a_mechanism_that_the_broker_does_not_take_is_told_with_those_it_does(kafka):
    given = plain_login(kafka)
    given["sasl.mechanism"] = "SCRAM-SHA-256"
    given["sasl.jaas.config"] = given["sasl.jaas.config"].replace(PLAIN, SCRAM)
    line = refused(given, LoginFailed)
    assert "does not take SCRAM-SHA-256; its mechanisms: PLAIN" in line


def test_a_certificate_that_nobody_vouches_for_is_one_line(kafka):
    given = scram_login(kafka, "SCRAM-SHA-256")
    del given["ssl.truststore.location"], given["ssl.truststore.type"]
    line = refused(given, NotTrusted)
    assert f"{kafka.address('SECURE')}: its certificate is not trusted" in line
    assert "ssl.truststore.location" in line


def test_a_certificate_for_another_name_is_refused_unless_names_are_not_asked(kafka):
    given = scram_login(kafka, "SCRAM-SHA-256")
    given["bootstrap.servers"] = given["bootstrap.servers"].replace("127.0.0.1", "localhost")
    line = refused(given, NotTrusted)
    assert "localhost" in line
    write_and_read({**given, "ssl.endpoint.identification.algorithm": ""})


@pytest.mark.parametrize("door", ["LOGIN", "SECURE", "MUTUAL"])
def test_plaintext_to_a_locked_door_is_told_by_its_address_and_the_setting(kafka, door):
    line = refused(options(kafka, door, default_api_timeout_ms="300"), GaveUp)
    assert kafka.address(door) in line
    assert "does security.protocol fit this listener?" in line


def test_the_command_that_is_shown_for_a_jks_store_makes_a_usable_one(kafka):
    store = kafka.home / "trust.jks"
    run(
        ["keytool", "-importcert", "-noprompt", "-storetype", "JKS", "-keystore", str(store),
         "-storepass", "changeit", "-alias", "ca", "-file", "ca.pem"], kafka.home,
    )  # fmt: skip
    given = scram_login(kafka, "SCRAM-SHA-256")
    given.update({"ssl.truststore.location": str(store), "ssl.truststore.type": "JKS"})
    with pytest.raises(BadSetting) as caught:
        ClientSettings.from_kafka(given)
    command = str(caught.value).split("`")[1]
    run(["bash", "-c", command.replace("> ca.pem", "> converted.pem")], kafka.home, "changeit\n")
    given["ssl.truststore.location"] = str(kafka.home / "converted.pem")
    given["ssl.truststore.type"] = "PEM"
    write_and_read(given)


def test_a_login_that_runs_out_is_renewed_in_time(kafka):
    """Kafka closes connections whose login is older than connections.max.reauth.ms."""
    settings = ClientSettings.from_kafka({**plain_login(kafka), "default.api.timeout.ms": "1"})
    with Blocking(settings) as client:

        async def connection(cluster):
            await cluster.topics()
            return await cluster.to_address(kafka.address("LOGIN"))

        first = client.run(connection, RUN_S)
        # Every question on the way is answered; with 1 ms for retries none was tried twice.
        until(lambda: client.run(connection, RUN_S) is not first, "the login was never renewed")


def test_transactions_are_read_to_their_end_with_the_aborted_ones_named(kafka):
    partition = TopicPartition("deals", 0)
    producer = transactional(kafka, "deals")
    for value, is_kept in ((b"1", True), (b"2", False), (b"3", True), (b"4", False)):
        producer.begin_transaction()
        producer.produce("deals", value)
        producer.flush(WAIT_S)
        if is_kept:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    with Blocking(ClientSettings.from_kafka(options(kafka, "PLAINTEXT"))) as client:
        # Four records and four markers, the last of which is the end of the log.
        for fetch_bytes in (1, 1 << 20):
            fetches = list(
                read_range(client, partition, 0, 8, read_committed=True, fetch_bytes=fetch_bytes)
            )
            headers = [header for one in fetches for _, header in headers_in(one.records)]
            assert [header.base_offset for header in headers] == list(range(8))
            assert [header.is_control for header in headers] == [False, True] * 4
            aborted = {pair for one in fetches for pair in one.aborted}
            assert aborted == {(headers[2].producer_id, 2), (headers[6].producer_id, 6)}
        uncommitted = list(read_range(client, partition, 0, 8))
        assert [one.aborted for one in uncommitted] == [()]


def test_the_end_of_what_is_committed_stays_before_an_open_transaction(kafka):
    partition = TopicPartition("open", 0)
    producer = transactional(kafka, "open")
    producer.begin_transaction()
    producer.produce("open", b"1")
    producer.flush(WAIT_S)
    with Blocking(ClientSettings.from_kafka(options(kafka, "PLAINTEXT"))) as client:

        def end(read_committed: bool) -> int:
            found = client.run(
                lambda cluster: cluster.list_offsets(
                    {partition: LATEST}, read_committed=read_committed
                ),
                RUN_S,
            )
            return found[partition].offset

        assert (end(True), end(False)) == (0, 1)
        fetches = read_range(client, partition, 0, 2, read_committed=True)
        producer.commit_transaction(WAIT_S)
        assert sum(len(list(headers_in(one.records))) for one in fetches) == 2
        assert end(True) == 2


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("idempotent", [True, False])
def test_batches_too_large_for_kafka_go_in_pieces_once_and_in_order(kafka, compression, idempotent):
    topic = f"tight-{compression.name}-{idempotent}"
    create_topic(kafka.address("PLAINTEXT"), topic, 1, {"max.message.bytes": "20000"})
    partition, random = TopicPartition(topic, 0), Random(11)
    values = [b"%d " % at + random.randbytes(900) for at in range(600)]

    async def story(cluster: Cluster) -> int:
        async with Producer(cluster, idempotent=idempotent) as producer:
            start = 0
            # Five are under way at a time: what follows a refused one comes too early.
            for count in [1, 5, 60, 2, 200, 1, 1, 30, 10, 100, 90, 100]:
                part = [Record(at, 1000, b"k", v) for at, v in enumerate(values[start:][:count])]
                batch = encode_batch(part, compression=compression)
                await producer.send(Encoded(partition, batch, count))
                start += count
            await producer.flush()
            return producer.written[partition].count

    with Blocking(ClientSettings.from_kafka(options(kafka, "PLAINTEXT"))) as client:
        assert client.run(story, RUN_S) == len(values)
        found = [
            record.value
            for fetched in read_range(client, partition, 0, len(values))
            for at, _ in headers_in(fetched.records)
            for record in decode_records(fetched.records, at)
        ]
    assert found == values


def test_spark_writes_and_reads_through_a_locked_door(kafka, spark):
    given = {f"kafka.{name}": text for name, text in scram_login(kafka, "SCRAM-SHA-512").items()}
    rows = spark.range(100).selectExpr("cast(id as string) as value")
    writer = rows.write.format("ottla").mode("append").options(**given)
    writer.option("topic", "spark").save()
    found = spark.read.format("ottla").options(**given).option("subscribe", "spark").load()
    values = {int(row.value) for row in found.select("value").collect()}
    assert values == set(range(100))


def test_spark_tells_of_a_wrong_password(kafka, spark):
    login = scram_login(kafka, "SCRAM-SHA-512", "wrong")
    given = {f"kafka.{name}": text for name, text in login.items()}
    found = spark.read.format("ottla").options(**given).option("subscribe", "spark").load()
    with pytest.raises(Exception, match="refused the login of user 'alice' by SCRAM-SHA-512"):
        found.collect()


def transactional(node: SecuredKafka, name: str) -> Librdkafka:
    settings = {"bootstrap.servers": node.address("PLAINTEXT"), "transactional.id": name}
    producer = Librdkafka(settings)
    producer.init_transactions(WAIT_S)
    return producer
