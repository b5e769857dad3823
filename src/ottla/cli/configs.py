"""`ottla configs`: the settings of topics and brokers in a running cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import typer

from ottla.cli import completion, output
from ottla.cli.clients import Cluster, check_broker, on_cluster, report, wait_each
from ottla.cli.failures import WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from ottla.cli.options import JsonOption, pairs

app = typer.Typer(
    help="Settings of topics and brokers in a running cluster.",
    no_args_is_help=True,
    epilog=examples("ottla configs describe --topic orders"),
)

TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="The topic whose settings are meant.",
        show_default=False,
        autocompletion=completion.topics,
    ),
]
BrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="NODE_ID",
        help="The broker whose settings are meant.",
        show_default=False,
    ),
]

_SOURCES: Final = {
    1: "topic",
    2: "broker (dynamic)",
    3: "cluster (dynamic)",
    4: "broker",
    5: "default",
    6: "broker logger",
}


def settings_of(cluster: Cluster, admin: AdminClient, kind: str, name: str) -> list[dict[str, Any]]:
    """The settings of a `topic` or `broker`: name, value and who set it."""
    resource = ConfigResource(ConfigResource.Type[kind.upper()], name)
    if kind == "broker":
        check_broker(cluster, admin, name)
    futures = admin.describe_configs([resource], request_timeout=cluster.timeout_s)
    results, failures = wait_each(futures)
    _report(name, failures)
    entries = results[resource]
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "source": _SOURCES.get(int(entry.source), "unknown"),
            "read_only": bool(entry.is_read_only),
        }
        for entry in sorted(entries.values(), key=lambda entry: entry.name)
    ]


def _report(name: str, failures: Mapping[ConfigResource, str]) -> None:
    report(dict(zip([name], failures.values(), strict=False)))


def alter_settings(
    cluster: Cluster,
    admin: AdminClient,
    kind: str,
    name: str,
    sets: Mapping[str, str],
    unsets: Iterable[str],
) -> None:
    if kind == "broker":
        check_broker(cluster, admin, name)
    changes = [
        *(
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in sets.items()
        ),
        *(ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in unsets),
    ]
    resource = ConfigResource(ConfigResource.Type[kind.upper()], name, incremental_configs=changes)
    futures = admin.incremental_alter_configs([resource], request_timeout=cluster.timeout_s)
    _report(name, wait_each(futures)[1])


def _chosen(topic: str | None, broker: str | None) -> tuple[str, str]:
    if topic is not None and broker is None:
        return "topic", topic
    if broker is not None and topic is None:
        return "broker", broker
    raise WrongUsage("Whose settings? Give --topic TOPIC or --broker NODE_ID.")


@app.command(
    "describe",
    epilog=examples(
        "ottla configs describe --topic orders", "ottla configs describe --broker 1 --all --json"
    ),
)
@on_cluster
def describe(
    cluster: Cluster,
    topic: TopicOption = None,
    broker: BrokerOption = None,
    every: Annotated[bool, typer.Option("--all", help="Also what is at its default.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the settings that differ from the default, or all."""
    kind, name = _chosen(topic, broker)
    rows = settings_of(cluster, cluster.admin(), kind, name)
    shown = [row for row in rows if every or row["source"] != "default"]
    if not shown:
        output.say(f"{name} has only defaults; --all shows them.")
    output.show(shown, as_json=as_json)


@app.command(
    "alter",
    epilog=examples(
        "ottla configs alter --topic orders retention.ms=3600000",
        "ottla configs alter --topic orders --unset retention.ms",
        "ottla configs alter --broker 1 log.level=debug",
    ),
)
@on_cluster
def alter(
    cluster: Cluster,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE...", show_default=False)
    ] = None,
    topic: TopicOption = None,
    broker: BrokerOption = None,
    unsets: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            help="Back to the default; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Changes settings while the cluster runs; others stay as they are."""
    kind, name = _chosen(topic, broker)
    if not (changes or unsets):
        raise WrongUsage("Nothing to alter; give NAME=VALUE or --unset NAME.")
    given = pairs("", changes or ())
    alter_settings(cluster, cluster.admin(), kind, name, given, unsets or ())
    output.say(f"Altered {kind} {name}.")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="configs")
