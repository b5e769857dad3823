"""Every setting once: its name (Kafka's own where Kafka has it), type, default and one sentence."""

from ottla.config.broker import BROKER_SETTINGS, BrokerConfig
from ottla.config.listeners import Address, Listener, parse_address, parse_listeners
from ottla.config.load import Origin, Origins, Source, idle_names, load, wants_json_log
from ottla.config.setting import Kind, Setting, Synonym, parse_all, unknown
from ottla.config.topic import TOPIC_SETTINGS, TopicConfig, inherited

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "Address",
    "BrokerConfig",
    "Kind",
    "Listener",
    "Origin",
    "Origins",
    "Setting",
    "Source",
    "Synonym",
    "TopicConfig",
    "idle_names",
    "inherited",
    "load",
    "parse_address",
    "parse_all",
    "parse_listeners",
    "unknown",
    "wants_json_log",
]
