"""`ottla node`: how the cluster and its brokers are."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from ottla.cli import output
from ottla.cli.cluster import Cluster, on_cluster, topics_of
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption
from ottla.config import parse_address
from ottla.errors import InvalidConfig

app = typer.Typer(
    help="Brokers: how they are.", no_args_is_help=True, epilog=examples("ottla node status")
)

HTTP_TIMEOUT_S: Final = 5.0
METRICS_BYTES_MAX: Final = 16 * 1024 * 1024


@app.callback()
def node() -> None: ...


@app.command(
    "status",
    epilog=examples(
        "ottla node status",
        "ottla node status --bootstrap kafka-1:9092 --json",
        "ottla node status --http 127.0.0.1:9644",
    ),
)
@on_cluster
def status(
    cluster: Cluster,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="OTTLA_HTTP",
            help="Also ask an Ottla broker's health port.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Shows brokers, controller, topics, and partitions in trouble."""
    admin = cluster.admin()
    described = admin.describe_cluster(request_timeout=cluster.timeout_s).result()
    topics = topics_of(cluster, admin).topics
    partitions = [partition for topic in topics.values() for partition in topic.partitions.values()]
    facts: dict[str, Any] = {
        "cluster_id": described.cluster_id,
        "controller": described.controller.id if described.controller else None,
        "brokers": [f"{each.id}@{each.host}:{each.port}" for each in described.nodes],
        "topics": len(topics),
        "partitions": len(partitions),
        "under_replicated": sum(len(each.isrs) < len(each.replicas) for each in partitions),
        "without_leader": sum(each.leader < 0 for each in partitions),
    }
    if http is not None:
        facts |= _http_facts(http)
    if as_json:
        output.show([facts], as_json=True)
    else:
        width = max(map(len, facts))
        for name, value in facts.items():
            shown = ", ".join(value) if isinstance(value, list) else value
            output.write(f"{name.replace('_', ' '):<{width}}  {shown}\n".encode())
    if facts["without_leader"]:
        raise CommandFailed(f"{facts['without_leader']} partitions have no leader.")


def _http_facts(address: str) -> dict[str, Any]:
    """What only an Ottla broker tells: whether it is ready, and a few of its gauges."""
    import http.client

    try:
        host, port = parse_address(address, "--http")
    except InvalidConfig as error:
        raise WrongUsage(str(error)) from None
    facts: dict[str, Any] = {}
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read(METRICS_BYTES_MAX).decode(errors="replace").strip()
        facts["ready"] = response.status == 200 or body
        connection.close()
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read(METRICS_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise CommandFailed(
            f"Cannot ask {address}: {error}. The port is the broker's http.listener."
        ) from None
    finally:
        connection.close()
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("ottla_") and "{" not in name and not name.endswith(("_sum", "_count")):
            facts[name.removeprefix("ottla_")] = float(value)
    return facts


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="node")
