"""Changes of settings: of a topic, of one broker, of all brokers.

A resource is changed as a whole or not at all; what is wrong with one resource does not touch the
others of the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.cluster.configs import (
    MIN_INSYNC_REPLICAS,
    BrokerLayers,
    check_min_isr,
    check_topic_config,
)
from ottla.cluster.image import MetadataImage, ResourceType
from ottla.cluster.names import check_topic_name
from ottla.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from ottla.config.setting import Kind, Setting, unknown
from ottla.config.topic import inherited
from ottla.errors import (
    BrokerNotRegistered,
    InvalidConfig,
    InvalidRequest,
    OttlaError,
    UnknownTopicOrPartition,
)
from ottla.wire.messages.metadata_records import ConfigRecord


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: int
    value: str | None


class ResourceChange(NamedTuple):
    """The changes of one resource. `replaces` drops all settings that are not named."""

    type: int
    name: str
    changes: Sequence[Change]
    replaces: bool


Outcome = list[ConfigRecord] | OttlaError


def alter(
    image: MetadataImage, config: BrokerConfig, resources: Sequence[ResourceChange]
) -> list[Outcome]:
    """For each resource its records, or what is wrong with it."""
    times = Counter((resource.type, resource.name) for resource in resources)
    outcomes: list[Outcome] = []
    for resource in resources:
        try:
            if times[resource.type, resource.name] > 1:
                raise InvalidRequest("Each resource may be named once in a request.")
            outcomes.append(_alter_one(image, config, resource))
        except OttlaError as error:
            outcomes.append(error)
    return outcomes


def _alter_one(
    image: MetadataImage, config: BrokerConfig, resource: ResourceChange
) -> list[ConfigRecord]:
    _check_form(resource)
    if resource.type == ResourceType.TOPIC:
        check_topic_name(resource.name)
        if resource.name not in image.topics_by_name:
            raise UnknownTopicOrPartition(f"Topic {resource.name} does not exist.")
    elif resource.type == ResourceType.BROKER:
        _check_broker_name(image, resource.name)
    else:
        raise InvalidRequest(f"Settings of resource type {resource.type} cannot be changed.")
    before = image.configs.get((resource.type, resource.name), {})
    after = _after(image, config, resource, before)
    if resource.type == ResourceType.TOPIC:
        check_topic_config(resource.name, BrokerLayers.of(config, image).effective(), after)
        if after.get(MIN_INSYNC_REPLICAS) != before.get(MIN_INSYNC_REPLICAS):
            check_min_isr(after, image.topics_by_name[resource.name].replication_factor)
    else:
        _check_broker_settings(config, before, after)
    named = dict.fromkeys([*(change.name for change in resource.changes), *before])
    return [
        ConfigRecord(
            resource_type=resource.type,
            resource_name=resource.name,
            name=name,
            value=after.get(name),
        )
        for name in named
        if after.get(name) != before.get(name)
    ]


def _check_form(resource: ResourceChange) -> None:
    if len({change.name for change in resource.changes}) < len(resource.changes):
        raise InvalidRequest("A setting is named more than once.")
    for name, operation, value in resource.changes:
        if operation not in Operation._value2member_map_:
            raise InvalidRequest(f"{name}: there is no operation {operation}.")
        if value is None and operation != Operation.DELETE:
            raise InvalidRequest(f"{name}: a value of null is not supported.")


def _check_broker_name(image: MetadataImage, name: str) -> None:
    if not name:
        return
    if not name.isascii() or not name.isdigit():
        raise InvalidRequest(f"A broker is named by its number, not by {name!r}.")
    if int(name) not in image.brokers:
        raise BrokerNotRegistered(f"There is no broker {name}.")


def _after(
    image: MetadataImage,
    config: BrokerConfig,
    resource: ResourceChange,
    before: Mapping[str, str],
) -> dict[str, str]:
    after = {} if resource.replaces else dict(before)
    for name, operation, value in resource.changes:
        if operation == Operation.DELETE or value is None:
            after.pop(name, None)
        elif operation == Operation.SET:
            after[name] = value
        else:
            setting = _list_setting(resource.type, name)
            now = after.get(name)
            if now is None:
                broker = BrokerLayers.of(config, image).effective()
                now = _inherited_text(resource.type, setting, broker)
            after[name] = _combined(now, value, adds=operation == Operation.APPEND)
    return after


def _list_setting(resource_type: int, name: str) -> Setting:
    is_topic = resource_type == ResourceType.TOPIC
    settings = TOPIC_SETTINGS if is_topic else BROKER_SETTINGS
    setting = settings.get(name)
    if setting is None:
        raise unknown(name, settings, "topic setting" if is_topic else "broker setting")
    if setting.kind is not Kind.LIST:
        raise InvalidConfig(f"{name} is no list, so nothing can be appended or subtracted.")
    return setting


def _inherited_text(resource_type: int, setting: Setting, broker: BrokerConfig) -> str:
    if resource_type == ResourceType.TOPIC:
        return setting.format(inherited(setting, broker)) or ""
    return setting.format(getattr(broker, setting.field_name)) or ""


def _combined(now: str, value: str, *, adds: bool) -> str:
    parts = [part for part in now.split(",") if part]
    named = value.split(",")
    if adds:
        parts += [part for part in dict.fromkeys(named) if part not in parts]
    else:
        parts = [part for part in parts if part not in named]
    return ",".join(parts)


def _check_broker_settings(
    config: BrokerConfig, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    for name in after:
        setting = BROKER_SETTINGS.get(name)
        if setting is None:
            raise unknown(name, BROKER_SETTINGS, "broker setting")
        if not setting.is_dynamic and after[name] != before.get(name):
            raise InvalidRequest(f"{name} cannot be changed while the broker runs.")
    config.changed(after)
