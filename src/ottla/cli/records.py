"""`ottla records`: removing messages from the front of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import output
from ottla.cli.clients import (
    Cluster,
    check_partitions,
    on_cluster,
    report,
    topic_of,
    wait_each,
)
from ottla.cli.failures import WrongUsage
from ottla.cli.help import examples
from ottla.cli.kafka import OFFSET_END, TopicPartition
from ottla.cli.options import JsonOption, TopicArgument, YesOption

app = typer.Typer(
    help="Messages: delete old ones.",
    no_args_is_help=True,
    epilog=examples("ottla records delete orders --before 1000 --partition 0"),
)


@app.callback()
def records() -> None: ...


@app.command(
    "delete",
    epilog=examples(
        "ottla records delete orders --before 1000 --partition 0",
        "ottla records delete orders --before latest --yes",
    ),
)
@on_cluster
def delete(
    cluster: Cluster,
    topic: TopicArgument,
    before: Annotated[
        str,
        typer.Option(
            metavar="OFFSET",
            help="The first offset to keep; latest keeps none.",
            show_default=False,
        ),
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option(
            "--partition", min=0, help="Only this one; may be repeated.", show_default=False
        ),
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deletes the messages below an offset."""
    if before != "latest" and not before.isdecimal():
        raise WrongUsage(f"--before {before} is neither an offset nor latest.")
    admin = cluster.admin()
    known = topic_of(cluster, admin, topic).partitions
    check_partitions(topic, known, partition or ())
    chosen = partition or sorted(known)
    offset = OFFSET_END if before == "latest" else int(before)
    listed = ", ".join(map(str, chosen))
    what = "all messages" if before == "latest" else f"the messages below offset {before}"
    output.confirm(f"Delete {what} in {topic}, partition {listed}?", yes=yes)
    futures = admin.delete_records(
        [TopicPartition(topic, index, offset) for index in chosen],
        request_timeout=cluster.timeout_s,
    )
    results, failures = wait_each(futures)
    rows = [
        {"topic": topic, "partition": place.partition, "first_offset": result.low_watermark}
        for place, result in sorted(results.items(), key=lambda item: item[0].partition)
    ]
    output.show(rows, as_json=as_json)
    report(
        {f"{topic}-{place.partition}": reason for place, reason in failures.items()}, len(results)
    )


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="records")
