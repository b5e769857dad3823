"""`ottla features`: levels that hold for the whole cluster, raised when all nodes know them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from ottla.cli import output
from ottla.cli.asking import ask
from ottla.cli.clients import Cluster, on_cluster
from ottla.cli.failures import CommandFailed, WrongUsage
from ottla.cli.help import examples
from ottla.cli.options import JsonOption
from ottla.client.settings import SOFTWARE
from ottla.errors import ErrorCode, error_of
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2

app = typer.Typer(
    help="Levels of features: they hold for all nodes, and are raised when all know them.",
    no_args_is_help=True,
    epilog=examples(
        "ottla features list", "ottla features upgrade --dry-run", "ottla features upgrade"
    ),
)
LevelsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="FEATURE=LEVEL", help="Which, and to what.", show_default=False),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say whether it could be done.")]


@app.command("list", epilog=examples("ottla features list", "ottla features list --json"))
@on_cluster
def show(cluster: Cluster, as_json: JsonOption = False) -> None:
    """Shows the level of each feature, and those that the broker that answers can work with."""
    output.show(_rows(_features(cluster)), as_json=as_json)


@app.command(
    "upgrade",
    epilog=examples(
        "ottla features upgrade --dry-run",
        "ottla features upgrade",
        "ottla features upgrade metadata.version=23",
    ),
)
@on_cluster
def upgrade(cluster: Cluster, levels: LevelsArgument = None, dry_run: DryRunOption = False) -> None:
    """Raises features once all nodes run the new version; all of them to the last level, or those
    that are named.

    Nodes of the version before cannot join any more then.
    """
    wanted = _parse(levels or ())
    if not wanted:
        rows = _rows(_features(cluster))
        wanted = {row["feature"]: row["last"] for row in rows if row["level"] < row["last"]}
    if not wanted:
        output.say("All features are at the last level.")
        return
    _update(cluster, wanted, UPGRADE, dry_run)


@app.command("downgrade", epilog=examples("ottla features downgrade metadata.version=21 --dry-run"))
@on_cluster
def downgrade(
    cluster: Cluster,
    levels: Annotated[
        list[str],
        typer.Argument(metavar="FEATURE=LEVEL", help="Which, and to what.", show_default=False),
    ],
    dry_run: DryRunOption = False,
) -> None:
    """Lowers features where all that was written can still be read then, and not elsewhere."""
    _update(cluster, _parse(levels), SAFE_DOWNGRADE, dry_run)


def _parse(levels: list[str] | tuple[str, ...]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for text in levels:
        name, equals, level = text.partition("=")
        if not (name and equals and level.isascii() and level.isdecimal()):
            raise WrongUsage(
                f"{text} is no level; write FEATURE=LEVEL, such as metadata.version=23."
            )
        wanted[name] = int(level)
    return wanted


def _update(cluster: Cluster, wanted: dict[str, int], kind: int, dry_run: bool) -> None:
    request = UpdateFeaturesRequest(
        timeout_ms=int(cluster.timeout_s * 1000),
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in wanted.items()
        ],
        validate_only=dry_run,
    )
    reply = ask(cluster, request, UpdateFeaturesResponse)
    failures = [(reply.error_code, reply.error_message)]
    failures += [(result.error_code, result.error_message) for result in reply.results]
    for code, message in failures:
        if code != ErrorCode.NONE:
            raise CommandFailed(str(error_of(code, message)))
    for name, level in wanted.items():
        output.say(f"{name} {'can be set' if dry_run else 'is set'} to {level}.")


def _features(cluster: Cluster) -> ApiVersionsResponse:
    return ask(cluster, ApiVersionsRequest(SOFTWARE, "1"), ApiVersionsResponse)


def _rows(reply: ApiVersionsResponse) -> list[dict[str, Any]]:
    finalized = {each.name: each.max_version_level for each in reply.finalized_features}
    return [
        {
            "feature": each.name,
            "level": finalized.get(each.name, 0),
            "first": each.min_version,
            "last": each.max_version,
            "epoch": reply.finalized_features_epoch,
        }
        for each in sorted(reply.supported_features, key=lambda each: each.name)
    ]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="features")
