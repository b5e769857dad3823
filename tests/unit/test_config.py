"""Settings: what is accepted, what is refused and in which words, and who wins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ottla
from ottla.config import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Kind,
    Listener,
    Setting,
    Source,
    TopicConfig,
    load,
)
from ottla.config.properties import parse_properties
from ottla.errors import InvalidConfig

ALL_SETTINGS = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]


def refusal(*sets: str) -> str:
    with pytest.raises(InvalidConfig) as caught:
        load(sets=sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("known", ALL_SETTINGS, ids=lambda known: known.name)
def test_every_setting_describes_itself_and_its_default_is_valid(known: Setting) -> None:
    assert known.doc.endswith(".")
    text = known.format(known.default)
    if text is None:
        assert known.is_nullable
        assert known.parse("") is None
    else:
        assert known.parse(text) == known.default
    assert known.has_effect == ("without effect" not in known.doc)


def test_setting_that_claims_an_effect_is_read_somewhere() -> None:
    source = "".join(file.read_text() for file in Path(ottla.__path__[0]).rglob("*.py"))
    inherited = {synonym.name for known in TOPIC_SETTINGS.values() for synonym in known.synonyms}
    for known in ALL_SETTINGS:
        if known.has_effect and known.name not in inherited:
            assert re.search(rf"\.{known.field_name}\b", source), known.name


def test_every_synonym_of_a_topic_setting_is_a_broker_setting() -> None:
    for known in TOPIC_SETTINGS.values():
        for synonym in known.synonyms:
            assert synonym.name in BROKER_SETTINGS


def test_topic_without_settings_is_what_a_default_broker_gives() -> None:
    assert TopicConfig.resolve(BrokerConfig(), {}) == TopicConfig()


def test_topic_inherits_from_the_broker_and_overrides_it() -> None:
    broker = BrokerConfig.parse({"log.segment.bytes": "1000000", "compression.type": "lz4"})
    topic = TopicConfig.resolve(broker, {"compression.type": "zstd", "write.caching": "true"})
    assert topic.segment_bytes == 1_000_000
    assert topic.compression_type == "zstd"
    assert topic.write_caching is True


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, 168 * 3_600_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
    ],
)
def test_finest_unit_of_retention_wins(texts: dict[str, str], expected: int) -> None:
    assert TopicConfig.resolve(BrokerConfig.parse(texts), {}).retention_ms == expected


def test_unknown_setting_is_refused_with_the_nearest_one() -> None:
    assert "Unknown setting num.partition. Did you mean num.partitions?" in refusal(
        "num.partition=3"
    )
    with pytest.raises(
        InvalidConfig, match=r"Unknown topic setting retention\.msec.*retention\.ms"
    ):
        TopicConfig.resolve(BrokerConfig(), {"retention.msec": "1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num.partitions=many", "num.partitions is 'many', but must be a whole number."),
        ("num.partitions=1_000", "must be a whole number"),
        ("num.partitions=0", "num.partitions is '0', but must be 1 or more."),
        ("num.partitions=2147483648", "a whole number of 32 bits"),
        ("log.retention.bytes=9223372036854775808", "a whole number of 64 bits"),
        ("auto.create.topics.enable=yes", "must be true or false"),
        ("compression.type=rar", "must be one of uncompressed, zstd"),
        ("log.cleanup.policy=delete,shred", "must be one or more of compact, delete"),
        ("log.cleaner.min.cleanable.ratio=nan", "must be a number"),
        ("log.cleaner.min.cleanable.ratio=1.5", "must be between 0 and 1"),
        ("log.dirs=", "at least one directory"),
        ("num.partitions", "write --set name=value"),
        ("group.min.session.timeout.ms=2000000", "must not exceed group.max.session.timeout.ms"),
        ("log.cleaner.max.compaction.lag.ms=1", ""),
        ("message.max.bytes=200000000", "must not exceed socket.request.max.bytes"),
    ],
)
def test_wrong_value_is_refused_in_one_line_that_says_what_is_expected(
    text: str, words: str
) -> None:
    if words:
        assert words in refusal(text)
    else:
        refusal(text, "log.cleaner.min.compaction.lag.ms=2")


def test_refusal_says_where_the_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "node.properties"
    file.write_text("num.partitions=0\n")
    with pytest.raises(InvalidConfig, match=rf"\(from file {file}\)"):
        load(str(file))
    with pytest.raises(InvalidConfig, match=r"\(from environment OTTLA_NUM_PARTITIONS\)"):
        load(env={"OTTLA_NUM_PARTITIONS": "0"})


def test_flag_beats_set_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        "node.id = 1\nnum.partitions = 1\ndefault.replication.factor = 1\nfetch.max.bytes = 1024\n"
    )
    environment = {
        "OTTLA_NODE_ID": "2",
        "OTTLA_NUM_PARTITIONS": "2",
        "OTTLA_DEFAULT_REPLICATION_FACTOR": "2",
    }
    config, origins = load(
        str(file), ["node.id=3", "num.partitions=3"], environment, {"node.id": "4"}
    )
    assert (config.node_id, origins["node.id"].source) == (4, Source.FLAG)
    assert (config.num_partitions, origins["num.partitions"].source) == (3, Source.SET)
    assert config.default_replication_factor == 2
    assert str(origins["default.replication.factor"]) == (
        "environment OTTLA_DEFAULT_REPLICATION_FACTOR"
    )
    assert (config.fetch_max_bytes, str(origins["fetch.max.bytes"])) == (1024, f"file {file}")
    assert origins["group.max.size"].source is Source.DEFAULT


def test_kafkas_other_names_for_a_setting_are_understood() -> None:
    config, origins = load(sets=["log.dir=/data", "broker.id=7"])
    assert (config.data_dir, config.node_id) == ("/data", 7)
    assert origins["log.dirs"].source is Source.SET


def test_environment_of_others_is_left_alone_and_misspelt_settings_are_not() -> None:
    config, _ = load(
        env={
            "PATH": "/bin",
            "OTTLA_BOOTSTRAP": "a:1",
            "OTTLA_TEST_SEED": "1",
            "OTTLA_PORT": "tcp://10.0.0.1:9092",
            "OTTLA_PORT_9092_TCP_ADDR": "10.0.0.1",
            "OTTLA_SERVICE_HOST": "10.0.0.1",
            "OTTLA_SERVICE_PORT_KAFKA": "9092",
        }
    )
    assert config == BrokerConfig()
    with pytest.raises(InvalidConfig, match=r"OTTLA_NUM_PARTITION.* mean OTTLA_NUM_PARTITIONS"):
        load(env={"OTTLA_NUM_PARTITION": "1"})


def test_what_other_commands_read_from_the_environment_does_not_stop_a_broker() -> None:
    code = "".join(file.read_text() for file in Path(ottla.__file__).parent.rglob("*.py"))
    names = set(re.findall(r'"(OTTLA_[A-Z_]*[A-Z])"', code))
    assert "OTTLA_CLASS_ARCHIVE" in names
    assert load(env=dict.fromkeys(names, "off"))[0] == BrokerConfig()


def test_toml_takes_dotted_quoted_and_nested_names_and_lists(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'node.id = 5\n"num.partitions" = 6\nlisteners = ["PLAINTEXT://127.0.0.1:1"]\n'
        '[log]\ncleanup.policy = ["compact", "delete"]\nwrite.caching = true\n'
        "cleaner.min.cleanable.ratio = 0.25\n"
    )
    config, _ = load(str(file))
    assert (config.node_id, config.num_partitions) == (5, 6)
    assert config.log_cleanup_policy == ("compact", "delete")
    assert config.log_write_caching is True
    assert config.log_cleaner_min_cleanable_ratio == 0.25


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", b"node.id = ", "is not TOML"),
        ("a.toml", b"\xff", "not UTF-8"),
        ("missing.properties", None, "No such file"),
    ],
)
def test_unreadable_file_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=words):
        load(str(file))


def test_properties_are_read_as_java_reads_them() -> None:
    content = r"""
# a comment
   ! another
node.id=1
num.partitions : 2
fetch.max.bytes 1024
log.dirs = /a \
           b\
    c
key\ with\:signs = tab\there \u00e9 back\\slash
empty =
no.value
node.id=3
last = x\
"""
    assert parse_properties(content) == {
        "node.id": "3",
        "num.partitions": "2",
        "fetch.max.bytes": "1024",
        "log.dirs": "/a bc",
        "key with:signs": "tab\there é back\\slash",
        "empty": "",
        "no.value": "",
        "last": "x",
    }


@given(st.text())
def test_no_text_breaks_the_reader_of_properties(content: str) -> None:
    parse_properties(content)


@given(st.dictionaries(st.text("ab.\\=: #!", min_size=1), st.text("xy\\=: #!\t"), max_size=4))
def test_escaped_properties_come_back(expected: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        return "".join(f"\\u{ord(char):04x}" for char in text)

    lines = (f"{escaped(name)}={escaped(value)}" for name, value in expected.items())
    assert parse_properties("\n".join(lines)) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
def test_listening_everywhere_needs_an_address_for_clients(host: str) -> None:
    message = refusal(f"listeners=PLAINTEXT://{host}:9092")
    assert "--advertise HOST:9092" in message
    config, _ = load(
        sets=[f"listeners={host}:9092", "advertised.listeners=PLAINTEXT://broker.example:9092"]
    )
    assert config.advertised() == (Listener("PLAINTEXT", "broker.example", 9092),)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["listeners=SSL://127.0.0.1:9092"], "only PLAINTEXT is there so far"),
        (["listeners=127.0.0.1"], "must be host:port"),
        (["listeners=127.0.0.1:99999"], "up to 65535"),
        (["listeners=::1:9092"], "IPv6 host in brackets"),
        (["listeners=127.0.0.1:1,127.0.0.1:2"], "names the listener PLAINTEXT twice"),
        (["listeners="], "at least one"),
        (["advertised.listeners=OTHER://a:1"], "not among the listeners"),
        (["advertised.listeners=0.0.0.0:1"], "no client can connect to"),
        (["http.listener=nowhere"], "http.listener is 'nowhere'"),
    ],
)
def test_wrong_address_is_refused(sets: list[str], words: str) -> None:
    assert words in refusal(*sets)


def test_listeners_may_carry_names_of_their_own() -> None:
    config, _ = load(
        sets=[
            "listeners=INSIDE://127.0.0.1:1,OUTSIDE://[::1]:0",
            "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        ]
    )
    assert [str(listener) for listener in config.bound()] == [
        "INSIDE://127.0.0.1:1",
        "OUTSIDE://[::1]:0",
    ]
    assert config.advertised() == config.bound()


def test_http_can_be_switched_off() -> None:
    assert BrokerConfig.parse({"http.listener": ""}).http_address() is None
    assert str(BrokerConfig().http_address()) == "127.0.0.1:9644"


def test_configuration_cannot_be_changed_in_place() -> None:
    config = BrokerConfig()
    with pytest.raises(AttributeError, match="replace"):
        config.num_partitions = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="num_partition"):
        BrokerConfig(num_partition=3)  # type: ignore[call-arg]
    assert config.replace(num_partitions=3).num_partitions == 3
    assert repr(config.replace(num_partitions=3)) == "BrokerConfig(num_partitions=3)"
    assert config == BrokerConfig()
    assert hash(config) == hash(BrokerConfig())


def test_values_are_written_as_kafka_writes_them() -> None:
    assert BROKER_SETTINGS["auto.create.topics.enable"].format(True) == "true"
    assert TOPIC_SETTINGS["cleanup.policy"].format(("compact", "delete")) == "compact,delete"
    assert TOPIC_SETTINGS["min.cleanable.dirty.ratio"].format(0.5) == "0.5"
    assert BROKER_SETTINGS["log.retention.ms"].format(None) is None
    assert TOPIC_SETTINGS["cleanup.policy"].kind is Kind.LIST
    assert TOPIC_SETTINGS["retention.ms"].type_name == "long"


@pytest.mark.parametrize("text", ["*", "", "0:1,2:3"])
def test_throttled_replicas_are_pairs_or_a_star(text: str) -> None:
    name = "leader.replication.throttled.replicas"
    TopicConfig.resolve(BrokerConfig(), {name: text})
    with pytest.raises(InvalidConfig, match="partition:broker"):
        TopicConfig.resolve(BrokerConfig(), {name: text + ",x"})


def test_reading_the_settings_imports_no_parser_that_is_not_needed() -> None:
    script = (
        "import sys, ottla.config\n"
        "ottla.config.load(sets=['num.partitions=3'])\n"
        "print([m for m in ('tomllib', 'difflib', 'dataclasses', 'asyncio') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    assert output.stdout.strip() == "[]"


# LogCleaner, DynamicLogConfig, DynamicThreadPool, DynamicListenerConfig, SocketServer, QuotaConfig
# and DynamicProducerStateManagerConfig in Kafka's source, as far as Ottla has the setting.
DYNAMIC_IN_KAFKA = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "max.connections",
    "message.max.bytes",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "producer.id.expiration.ms",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
# Kafka without ZooKeeper refuses to change what a broker advertises; the sockets of ours stay too.
FIXED_AT_START = {"advertised.listeners", "listeners", "listener.security.protocol.map"}


def test_what_kafka_changes_at_run_time_is_dynamic() -> None:
    first_synonyms = {
        setting.synonyms[0].name for setting in TOPIC_SETTINGS.values() if setting.synonyms
    }
    dynamic = {name for name, setting in BROKER_SETTINGS.items() if setting.is_dynamic}
    assert dynamic >= DYNAMIC_IN_KAFKA | first_synonyms
    assert not dynamic & FIXED_AT_START
    balance = {"enable", "bytes.per.second", "window", "throttled.topics"}
    owned = {"drained.nodes", "log.level", "log.scrub.bytes.per.second", "log.scrub.interval.ms"}
    owned |= {f"auto.balance.{name}" for name in balance}
    assert dynamic - DYNAMIC_IN_KAFKA - first_synonyms == owned


def test_a_value_that_was_given_is_told_from_a_default_that_is_the_same() -> None:
    config, _ = load(sets=["node.id=1"], flags={"http.listener": "127.0.0.1:9644"})
    assert config == BrokerConfig()
    given = {name for name in BROKER_SETTINGS if config.is_given(name)}
    assert given == {"node.id", "http.listener"}
    assert config.replace(num_partitions=2).is_given("node.id")
    assert config.replace(num_partitions=2).is_given("num.partitions")
    assert not BrokerConfig().is_given("node.id")
