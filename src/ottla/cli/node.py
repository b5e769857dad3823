"""`ottla node`: how the cluster and its brokers are."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import typer

from ottla.cli import interrupts, output
from ottla.cli.clients import Cluster, on_cluster, topics_of
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.figures import Figures, figures_for_people
from ottla.cli.help import examples
from ottla.cli.options import JsonOption
from ottla.config import parse_address
from ottla.errors import InvalidConfig

app = typer.Typer(
    help="Brokers: their state, and partitions in trouble.",
    no_args_is_help=True,
    epilog=examples("ottla node status"),
)

HTTP_TIMEOUT_S: Final = 5.0
# Two looks at the counters make a rate.
SAMPLE_S: Final = 1.0
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
    described = interrupts.result(admin.describe_cluster(request_timeout=cluster.timeout_s))
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
    shown = {name.replace("_", " "): _text(value) for name, value in facts.items()}
    if http is not None:
        ready, before = _ask(http)
        started = time.monotonic()
        time.sleep(SAMPLE_S)
        _, after = _ask(http)
        seconds = time.monotonic() - started
        # What the cluster has said is not replaced by what one broker says.
        facts = {**after.plain(), **facts, "ready": ready}
        shown["ready"] = _text(ready)
        shown |= figures_for_people(before, after, seconds, time.time())
    if as_json:
        output.show([facts], as_json=True)
    else:
        width = max(map(len, shown))
        for name, text in shown.items():
            output.write(f"{name:<{width}}  {text}\n".encode())
    if facts["without_leader"]:
        raise CommandFailed(f"{facts['without_leader']} partitions have no leader.")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _ask(address: str) -> tuple[bool | str, Figures]:
    """What only an Ottla broker tells: whether it is ready or why not, and its figures."""
    import http.client

    try:
        host, port = parse_address(address, "--http")
    except InvalidConfig as error:
        raise WrongUsage(str(error)) from None
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        body = response.read(METRICS_BYTES_MAX).decode(errors="replace").strip()
        ready = response.status == 200 or body
        connection.close()
        connection.request("GET", "/metrics")
        metrics = connection.getresponse().read(METRICS_BYTES_MAX).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise CommandFailed(
            f"Cannot ask {address}: {error}. The port is the broker's http.listener."
        ) from None
    finally:
        connection.close()
    return ready, Figures.parse(metrics)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="node")
