"""`ottla topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import typer

from ottla.cli import completion, output
from ottla.cli.clients import (
    Cluster,
    offsets_at,
    on_cluster,
    report,
    topics_of,
    wait_each,
)
from ottla.cli.configs import alter_settings, settings_of
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import (
    AdminClient,
    ClusterMetadata,
    NewPartitions,
    NewTopic,
    TopicPartition,
    earliest,
    latest,
)
from ottla.cli.options import JsonOption, TopicArgument, YesOption, pairs

app = typer.Typer(
    help="Topics: create, list, describe, alter, delete.",
    no_args_is_help=True,
    epilog=examples("ottla topics create orders --partitions 3", "ottla topics list"),
)

# What librdkafka is willing to ask for; brokers may allow less.
CLIENT_PARTITIONS_MAX: Final = 100_000
CLIENT_REPLICAS_MAX: Final = 32_767

NewNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]
Names = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", show_default=False, autocompletion=completion.topics),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A topic setting; may be repeated.", show_default=False
    ),
]


@app.command(
    "create",
    epilog=examples(
        "ottla topics create orders",
        "ottla topics create orders --partitions 12 --set retention.ms=86400000",
        "ottla topics create clicks views --if-not-exists",
    ),
)
@on_cluster
def create(
    cluster: Cluster,
    topics: NewNames,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=CLIENT_PARTITIONS_MAX,
            help="The broker's default if not given.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=CLIENT_REPLICAS_MAX,
            help="The broker's default if not given.",
        ),
    ] = None,
    sets: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already is fine.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check whether it would work.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Creates topics."""
    admin = cluster.admin()
    wanted = [
        NewTopic(
            name, partitions or -1, replication_factor or -1, config=pairs("--set", sets or ())
        )
        for name in topics
    ]
    if if_not_exists:
        existing = topics_of(cluster, admin).topics
        wanted = [topic for topic in wanted if topic.topic not in existing]
    if not wanted:
        output.say("Nothing to create; all are there.")
        return
    futures = admin.create_topics(
        wanted, request_timeout=cluster.timeout_s, validate_only=validate_only
    )
    created, failures = wait_each(futures)
    if as_json:
        output.show(({"topic": name} for name in created), as_json=True)
    elif created:
        done = "Could create" if validate_only else "Created"
        output.say(f"{done} {', '.join(created)}.")
    report(failures, len(created))


@app.command("list", epilog=examples("ottla topics list", "ottla topics list --internal --json"))
@on_cluster
def list_topics(
    cluster: Cluster,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the cluster's own topics (__...).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Lists topics."""
    found = topics_of(cluster, cluster.admin()).topics
    rows = [
        {
            "topic": name,
            "partitions": len(topic.partitions),
            "replicas": max((len(part.replicas) for part in topic.partitions.values()), default=0),
        }
        for name, topic in sorted(found.items())
        if internal or not name.startswith("__")
    ]
    if not rows:
        output.say("There are no topics yet; `ottla topics create NAME` makes one.")
    output.show(rows, as_json=as_json)


@app.command(
    "describe",
    epilog=examples("ottla topics describe orders", "ottla topics describe orders --json"),
)
@on_cluster
def describe(cluster: Cluster, topics: Names, as_json: JsonOption = False) -> None:
    """Shows the partitions of topics: leader, replicas, first and next offset."""
    admin = cluster.admin()
    metadata = topics_of(cluster, admin)
    present = [name for name in topics if name in metadata.topics]
    missing = {name: "There is no such topic." for name in topics if name not in metadata.topics}
    rows = list(_partition_rows(cluster, admin, metadata, present))
    output.show(rows, as_json=as_json)
    if not as_json:
        for name in present:
            own = _changed(cluster, admin, name)
            changed = ", ".join(f"{row['name']}={row['value']}" for row in own)
            if changed:
                output.say(f"{name} has settings of its own: {changed}")
    report(missing)


def _changed(cluster: Cluster, admin: AdminClient, topic: str) -> Iterator[dict[str, Any]]:
    rows = settings_of(cluster, admin, "topic", topic)
    return (row for row in rows if row["source"] == "topic")


def _partition_rows(
    cluster: Cluster, admin: AdminClient, metadata: ClusterMetadata, names: Iterable[str]
) -> Iterator[dict[str, Any]]:
    every = [
        TopicPartition(name, index)
        for name in names
        for index in sorted(metadata.topics[name].partitions)
    ]
    first = offsets_at(cluster, admin, every, earliest())
    following = offsets_at(cluster, admin, every, latest())
    for partition in every:
        known = metadata.topics[partition.topic].partitions[partition.partition]
        place = (partition.topic, partition.partition)
        yield {
            "topic": partition.topic,
            "partition": partition.partition,
            "leader": known.leader if known.leader >= 0 else None,
            "replicas": list(known.replicas),
            "in_sync": list(known.isrs),
            "first_offset": first.get(place),
            "next_offset": following.get(place),
        }


@app.command(
    "alter",
    epilog=examples(
        "ottla topics alter orders --partitions 24",
        "ottla topics alter orders --set retention.ms=3600000 --unset segment.bytes",
    ),
)
@on_cluster
def alter(
    cluster: Cluster,
    topic: TopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="The new number; it can only grow."),
    ] = None,
    sets: Settings = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the default; may be repeated."),
    ] = None,
) -> None:
    """Adds partitions to a topic or changes its settings."""
    if not (partitions or sets or unsets):
        raise WrongUsage("Nothing to alter; give --partitions, --set or --unset.")
    admin = cluster.admin()
    if sets or unsets:
        alter_settings(cluster, admin, "topic", topic, pairs("--set", sets or ()), unsets or ())
    if partitions:
        futures = admin.create_partitions(
            [NewPartitions(topic, partitions)], request_timeout=cluster.timeout_s
        )
        report(wait_each(futures)[1])
    output.say(f"Altered {topic}.")


@app.command(
    "delete",
    epilog=examples("ottla topics delete orders", "ottla topics delete clicks views --yes"),
)
@on_cluster
def delete(cluster: Cluster, topics: Names, yes: YesOption = False) -> None:
    """Deletes topics with everything in them."""
    admin = cluster.admin()
    existing = topics_of(cluster, admin).topics
    missing = [name for name in topics if name not in existing]
    if missing:
        raise CommandFailed(
            f"There is no topic {', '.join(missing)}; `ottla topics list` shows them."
        )
    output.confirm(f"Delete {', '.join(topics)} with all messages?", yes=yes)
    deleted, failures = wait_each(admin.delete_topics(topics, request_timeout=cluster.timeout_s))
    if deleted:
        output.say(f"Deleted {', '.join(deleted)}.")
    report(failures, len(deleted))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="topics")
