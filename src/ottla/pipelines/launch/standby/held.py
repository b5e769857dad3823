"""The Spark that this process has started ahead, for the one command that it will run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipelines.language.problems import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class UnfitSpark(PipelineFailed):
    """What was started ahead is not what the command wants: it is for another process to start."""


@dataclass(frozen=True)
class Held:
    spark: SparkSession
    master: str
    settings: Mapping[str, str]


# PySpark has one Spark for each process as well.
_held: Held | None = None


def hold(held: Held) -> None:
    global _held
    _held = held


def is_holding() -> bool:
    return _held is not None


def held_session(master: str, settings: Mapping[str, str]) -> SparkSession | None:
    """None in a process that starts its own; UnfitSpark when one of the settings is another."""
    if _held is None:
        return None
    if (_held.master, dict(_held.settings)) != (master, dict(settings)):
        raise UnfitSpark("the Spark that stood by was started with other settings")
    return _held.spark
