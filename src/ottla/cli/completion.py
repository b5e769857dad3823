"""What a shell completes beside commands: the names of topics and groups.

They are asked of the cluster that the command itself would speak to. Whoever presses Tab wants an
answer at once or none: where no broker answers in time, nothing is offered and nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from ottla.cli.clients import Cluster

ANSWER_S_MAX: Final = 1.0


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so; the cluster's own only when that is what was begun."""
    shows_internal = incomplete.startswith("_")
    names = _ask(context, _topics)
    return [name for name in _beginning(names, incomplete) if shows_internal or name[:2] != "__"]


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Groups whose names begin so."""
    return _beginning(_ask(context, _groups), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _ask(context: typer.Context, question: Callable[[Cluster], Iterable[str]]) -> Iterable[str]:
    from ottla.cli.clients import Cluster, client_settings, interruptible

    given = context.params
    try:
        settings = client_settings(
            given.get("bootstrap"), given.get("client_config"), given.get("extra") or ()
        )
        cluster = Cluster(settings, ANSWER_S_MAX)
        return interruptible(lambda: question(cluster), timeout_s=ANSWER_S_MAX)
    except Exception:
        return ()


def _topics(cluster: Cluster) -> Iterable[str]:
    return list(cluster.admin().list_topics(timeout=cluster.timeout_s).topics)


def _groups(cluster: Cluster) -> Iterable[str]:
    admin = cluster.admin()  # It must outlive its futures.
    listed = admin.list_consumer_groups(request_timeout=cluster.timeout_s).result()
    return [each.group_id for each in listed.valid]
