"""The topics of a pipeline held against those that the brokers have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.pipelines.language.model import Pipeline, TopicSink, TopicSource
from ottla.pipelines.language.problems import Place, Problem
from ottla.spark.spelling import nearest


def uses_topics(pipeline: Pipeline) -> bool:
    return any(True for _ in (*_read(pipeline), *_written(pipeline)))


def missing_topics(pipeline: Pipeline, found: Mapping[str, int]) -> list[Problem]:
    """`found` may be a BrokerTopics, which knows whether brokers create topics by themselves."""
    problems = [
        _problem(pipeline, who, topic, place, found)
        for who, topic, place in _read(pipeline)
        if topic not in found
    ]
    if getattr(found, "creates_topics", False):
        return problems
    return problems + [
        _problem(pipeline, who, topic, place, found)
        for who, topic, place in _written(pipeline)
        if topic not in found
    ]


def _read(pipeline: Pipeline) -> Iterator[tuple[str, str, Place]]:
    for source in pipeline.sources.values():
        if isinstance(source, TopicSource):
            for topic in source.topics:
                yield f"source {source.name}", topic, source.place


def _written(pipeline: Pipeline) -> Iterator[tuple[str, str, Place]]:
    for source in pipeline.sources.values():
        if source.bad_records.do == "dead_letter":
            yield f"source {source.name}: bad_records", source.bad_records.topic, source.place
    for sink in pipeline.sinks.values():
        if isinstance(sink, TopicSink):
            yield f"sink {sink.name}", sink.topic, sink.place


def _problem(
    pipeline: Pipeline, who: str, topic: str, place: Place, found: Mapping[str, int]
) -> Problem:
    create = f"create it with `ottla topics create {topic}`"
    near = nearest(topic, found)
    todo = f"{near} If not, {create}" if near else f"; {create}"
    return Problem(f"{who}: topic {topic} does not exist on {pipeline.bootstrap}{todo}", place)
