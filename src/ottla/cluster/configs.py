"""What a setting's value is, and where it comes from.

A broker setting has four layers, the first that has a value counts: set for this broker, set for
all brokers (both dynamic, in the metadata log), given at start, default. A topic setting has the
topic's own value above the broker settings that it names as synonyms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.cluster.image import BrokerImage, MetadataImage
from ottla.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, TopicConfig
from ottla.config.listeners import Listener
from ottla.config.setting import Setting
from ottla.config.topic import inherited
from ottla.errors import InvalidConfig
from ottla.types import ALWAYS_SYNCED_TOPICS

WRITE_CACHING: Final = "write.caching"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"

# Who and where a broker is: of its own, so never a default for all brokers.
OF_ONE_BROKER: Final = frozenset({"advertised.listeners", "listeners", "log.dirs", "node.id"})


class ConfigSource(IntEnum):
    """The layer of a value, by Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class SourcedValue(NamedTuple):
    """A value in one layer, under the name that it has there."""

    name: str
    value: str | None
    source: ConfigSource


class DescribedSetting(NamedTuple):
    """A setting, its value in force, and the layers below it, the one in force first."""

    setting: Setting
    value: str | None
    layers: list[SourcedValue]
    is_read_only: bool

    @property
    def source(self) -> ConfigSource:
        return self.layers[0].source if self.layers else ConfigSource.DEFAULT


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """A broker's settings, layer by layer."""

    static: BrokerConfig
    for_all: Mapping[str, str]
    for_this: Mapping[str, str]

    @classmethod
    def of(cls, static: BrokerConfig, image: MetadataImage) -> BrokerLayers:
        name = str(static.node_id)
        return cls(static, image.broker_configs(""), image.broker_configs(name))

    def advertising(self, broker: BrokerImage) -> BrokerLayers:
        """With the addresses that clients are told, where nothing else was said of them."""
        if self.static.advertised_listeners:
            return self
        told = [
            str(Listener(name, endpoint.host, endpoint.port))
            for name, endpoint in broker.endpoints.items()
        ]
        static = self.static.replace(advertised_listeners=tuple(told))
        return BrokerLayers(static, self.for_all, self.for_this)

    def effective(self) -> BrokerConfig:
        """The configuration in force. What this version cannot read any more is left out."""
        dynamic = {**self.for_all, **self.for_this}
        if not dynamic:
            return self.static
        try:
            return self.static.changed(dynamic)
        except InvalidConfig:
            return self.static.changed(_readable(BROKER_SETTINGS, dynamic))

    def layers_of(self, name: str) -> list[SourcedValue]:
        setting = BROKER_SETTINGS[name]
        found = []
        if name in self.for_this:
            found.append(SourcedValue(name, self.for_this[name], ConfigSource.DYNAMIC_BROKER))
        if name in self.for_all:
            found.append(
                SourcedValue(name, self.for_all[name], ConfigSource.DYNAMIC_DEFAULT_BROKER)
            )
        if self.static.is_given(name) or name in OF_ONE_BROKER:
            given = setting.format(getattr(self.static, setting.field_name))
            found.append(SourcedValue(name, given, ConfigSource.STATIC_BROKER))
        if setting.default is not None:
            found.append(SourcedValue(name, setting.format(setting.default), ConfigSource.DEFAULT))
        return found


def _readable(settings: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, str]:
    kept = {}
    for name, text in texts.items():
        try:
            if name in settings:
                settings[name].parse(text)
                kept[name] = text
        except InvalidConfig:
            continue
    return kept


def stored_topic_config(broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
    """A topic's configuration from the log; what this version cannot read is left out."""
    try:
        return TopicConfig.resolve(broker, overrides)
    except InvalidConfig:
        return TopicConfig.resolve(broker, _readable(TOPIC_SETTINGS, overrides))


def check_topic_config(name: str, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """InvalidConfig says what cannot be set, or not for this topic."""
    config = TopicConfig.resolve(broker, overrides)
    if name in ALWAYS_SYNCED_TOPICS and WRITE_CACHING in overrides and config.write_caching:
        raise InvalidConfig(f"{WRITE_CACHING} cannot be true for {name}, which is always synced.")


def check_min_isr(overrides: Mapping[str, str], replication_factor: int) -> None:
    """InvalidConfig where a topic's own setting would refuse every write with acks=all."""
    text = overrides.get(MIN_INSYNC_REPLICAS)
    if text is None:
        return
    wanted: int = TOPIC_SETTINGS[MIN_INSYNC_REPLICAS].parse(text)
    if wanted > replication_factor:
        raise InvalidConfig(
            f"{MIN_INSYNC_REPLICAS} is {wanted} and the replication factor {replication_factor}, "
            "so no write with acks=all could succeed; lower the one or raise the other."
        )


def describe_topic(
    layers: BrokerLayers, overrides: Mapping[str, str], topic: str = ""
) -> list[DescribedSetting]:
    """All settings of a topic, by name."""
    broker = layers.effective()
    described = []
    for name in sorted(TOPIC_SETTINGS):
        setting = TOPIC_SETTINGS[name]
        if name == WRITE_CACHING and topic in ALWAYS_SYNCED_TOPICS:
            fixed = SourcedValue(name, setting.format(setting.default), ConfigSource.DEFAULT)
            described.append(DescribedSetting(setting, fixed.value, [fixed], is_read_only=True))
            continue
        own = overrides.get(name)
        values = [] if own is None else [SourcedValue(name, own, ConfigSource.TOPIC)]
        for synonym in setting.synonyms:
            values += layers.layers_of(synonym.name)
        value = setting.format(inherited(setting, broker)) if own is None else own
        described.append(DescribedSetting(setting, value, values, is_read_only=False))
    return described


def describe_broker(layers: BrokerLayers) -> list[DescribedSetting]:
    """All settings of this broker, by name."""
    broker = layers.effective()
    described = []
    for name in sorted(BROKER_SETTINGS):
        setting = BROKER_SETTINGS[name]
        value = setting.format(getattr(broker, setting.field_name))
        described.append(
            DescribedSetting(setting, value, layers.layers_of(name), not setting.is_dynamic)
        )
    return described


def describe_cluster_defaults(layers: BrokerLayers) -> list[DescribedSetting]:
    """What is set for all brokers."""
    described = []
    for name, value in sorted(layers.for_all.items()):
        if name in BROKER_SETTINGS:
            values = [SourcedValue(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER)]
            described.append(DescribedSetting(BROKER_SETTINGS[name], value, values, False))
    return described
