"""The lives of brokers: registered, unfenced, silent, leaving, gone.

What is decided of a broker is one record; what follows for partitions is a sweep, whose first step
is in the same batch and whose others follow as deadlines. A broker that comes back without proof
of a clean stop (KIP-966) is registered only when it has left the in-sync and eligible replicas: a
controller that fails in between leaves it unregistered, and it asks again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.cluster import features
from ottla.cluster.brokers import next_epoch
from ottla.cluster.elections import Rules, Standing
from ottla.cluster.heartbeats import State, next_state, reply
from ottla.cluster.image import BrokerImage, MetadataImage
from ottla.cluster.registrations import (
    amended,
    check,
    check_epoch,
    check_no_other,
    fencing,
    leaving,
    registration,
    unfencing,
)
from ottla.cluster.sessions import Predecessor, Sessions
from ottla.cluster.sweep import Sweep
from ottla.errors import BrokerNotRegistered, RequestTimedOut, StaleBrokerEpoch
from ottla.machine import Decision, Ticket
from ottla.types import Now
from ottla.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.wire.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from ottla.wire.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
)
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from ottla.wire.schema import Message

AT_ONCE_MS = 0


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A broker that is registered once the sweep is done."""

    request: BrokerRegistrationRequest
    ticket: Ticket


class Membership:
    """All of it is soft state; what counts is in the image."""

    def __init__(self, own_id: int, cluster_id: str | None, session_timeout_ms: int) -> None:
        self._own_id = own_id
        self._cluster_id = cluster_id
        self._sessions = Sessions(own_id, session_timeout_ms)
        self._session_timeout_ms = session_timeout_ms
        self._sweep = Sweep()
        self._newcomers: dict[int, Newcomer] = {}

    # The machine's part.

    def loaded(self, image: MetadataImage, now: Now, predecessor: Predecessor | None) -> None:
        """Whatever the controller before left undone is found by a sweep."""
        for broker in image.brokers.values():
            if not broker.is_fenced:
                self._sessions.begin(broker.id, now.steady_ms, predecessor)
        self.look_again(image)

    def look_again(self, image: MetadataImage) -> None:
        """Something has changed that may move leaders; a node alone has nowhere to move them."""
        if image.brokers.keys() - {self._own_id}:
            self._sweep.begin(image)

    def next_deadline_ms(self, image: MetadataImage) -> int | None:
        if not self._sweep.is_done or self._newcomers:
            return AT_ONCE_MS
        return self._sessions.next_deadline_ms(image.brokers)

    def on_deadline(self, rules: Rules, now: Now) -> Decision[Message]:
        brokers = rules.image.brokers
        silent = self._sessions.expired(brokers, now.steady_ms)
        if not silent:
            return self._step(rules, [], brokers)
        for node_id in silent:
            # When it is back, it has to have read who leads instead.
            self._sessions.end(node_id)
        changes: list[Message] = [fencing(brokers[node_id]) for node_id in silent]
        fenced = {node_id: brokers[node_id]._replace(is_fenced=True) for node_id in silent}
        return self._moved(rules, changes, brokers | fenced)

    def abandon(self) -> list[Ticket]:
        tickets = [newcomer.ticket for newcomer in self._newcomers.values()]
        self._newcomers.clear()
        self._sessions = Sessions(self._own_id, self._session_timeout_ms)
        self._sweep = Sweep()
        return tickets

    # What brokers ask.

    def register(
        self, rules: Rules, request: BrokerRegistrationRequest, now: Now, ticket: Ticket
    ) -> Decision[Message]:
        image, node_id = rules.image, request.broker_id
        check(image, self._cluster_id, request)
        existing = image.brokers.get(node_id)
        is_alive = self._sessions.is_alive(node_id, now.steady_ms)
        if existing is not None and is_alive and not existing.is_shutting_down:
            check_no_other(existing, request)
        changes: list[Message] = [*features.finalize(image)]
        if existing is not None and existing.incarnation_id == request.incarnation_id:
            record = amended(existing, request)
            after = existing._replace(log_dirs=tuple(request.log_dirs))
            decision = self._moved(rules, [*changes, record], image.brokers | {node_id: after})
            decision.replies.append((ticket, _registered(existing.epoch)))
            return decision
        self._sessions.end(node_id)
        replaced = self._newcomers.pop(node_id, None)
        if existing is not None and not existing.is_fenced:
            changes.append(fencing(existing))
            existing = existing._replace(is_fenced=True)
        brokers = image.brokers if existing is None else image.brokers | {node_id: existing}
        if existing is not None and existing.epoch == request.previous_broker_epoch:
            epoch = next_epoch(image)
            changes.append(registration(request, epoch))
            decision = self._moved(rules, changes, brokers)
            decision.replies.append((ticket, _registered(epoch)))
        else:
            self._newcomers[node_id] = Newcomer(request, ticket)
            decision = self._moved(rules, changes, brokers)
        if replaced is not None:
            late = RequestTimedOut("The broker has asked again.")
            decision.replies.append((replaced.ticket, late))
        return decision

    def heartbeat(
        self,
        rules: Rules,
        request: BrokerHeartbeatRequest,
        end_offset: int,
        now: Now,
        ticket: Ticket,
    ) -> Decision[Message]:
        """`end_offset` is where the metadata log ends as this is decided."""
        image, node_id = rules.image, request.broker_id
        broker = check_epoch(image, node_id, request.broker_epoch)
        if node_id in self._newcomers:
            raise StaleBrokerEpoch(f"Broker {node_id} is being registered anew.")
        session = self._sessions.heard(
            node_id, request.current_metadata_offset, end_offset, now.steady_ms
        )
        if broker.is_fenced and not self._sweep.is_done:
            # What is still to be moved away from it, it is to know before it serves.
            session.caught_up_offset = None
        if broker.is_shutting_down and self._sweep.is_done and session.moved_offset is None:
            session.moved_offset = end_offset - 1
        others = [other.id for other in image.brokers.values() if other.is_active]
        lowest_offset = self._sessions.lowest_offset([id for id in others if id != node_id])
        state = next_state(image, broker, session, request, lowest_offset)
        changes, after = _transition(broker, state)
        after, offline = _without(after, request.offline_log_dirs)
        changes += offline
        answer = reply(state, session, request)
        if state is State.SHUT_DOWN or (state is State.FENCED and not broker.is_fenced):
            self._sessions.end(node_id)
        if not changes:
            return Decision(replies=[(ticket, answer)])
        decision = self._moved(rules, changes, image.brokers | {node_id: after})
        decision.replies.append((ticket, answer))
        return decision

    def fence(self, rules: Rules, node_id: int, epoch: int, ticket: Ticket) -> Decision[Message]:
        """The broker of this epoch is found gone before its session has ended."""
        broker = check_epoch(rules.image, node_id, epoch)
        self._sessions.end(node_id)
        if broker.is_fenced:
            return Decision(replies=[(ticket, None)])
        fenced = rules.image.brokers | {node_id: broker._replace(is_fenced=True)}
        decision = self._moved(rules, [fencing(broker)], fenced)
        decision.replies.append((ticket, None))
        return decision

    def unregister(
        self, rules: Rules, request: UnregisterBrokerRequest, ticket: Ticket
    ) -> Decision[Message]:
        node_id = request.broker_id
        broker = rules.image.brokers.get(node_id)
        if broker is None:
            raise BrokerNotRegistered(f"Broker {node_id} is not registered.")
        self._sessions.end(node_id)
        brokers = {id: other for id, other in rules.image.brokers.items() if id != node_id}
        gone = UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.epoch)
        decision = self._moved(rules, [gone], brokers)
        response = UnregisterBrokerResponse(error_message=None)
        decision.replies.append((ticket, response))
        return decision

    # What follows for partitions.

    def _moved(
        self, rules: Rules, changes: list[Message], brokers: dict[int, BrokerImage]
    ) -> Decision[Message]:
        self._sweep.begin(rules.image)
        return self._step(rules, changes, brokers)

    def _step(
        self, rules: Rules, changes: list[Message], brokers: dict[int, BrokerImage]
    ) -> Decision[Message]:
        standing = Standing(brokers, self._newcomers.keys())
        decision: Decision[Message] = Decision([*changes, *self._sweep.step(rules, standing)])
        if self._sweep.is_done:
            epoch = next_epoch(rules.image)
            for newcomer in self._newcomers.values():
                decision.records.append(registration(newcomer.request, epoch))
                decision.replies.append((newcomer.ticket, _registered(epoch)))
                epoch += 1
            self._newcomers.clear()
        return decision


def _registered(epoch: int) -> BrokerRegistrationResponse:
    return BrokerRegistrationResponse(broker_epoch=epoch)


def _transition(broker: BrokerImage, state: State) -> tuple[list[Message], BrokerImage]:
    """The records that take a broker to a state, and the broker as it is then."""
    if state is State.UNFENCED and broker.is_fenced:
        return [unfencing(broker)], broker._replace(is_fenced=False)
    if state in (State.FENCED, State.SHUT_DOWN) and not broker.is_fenced:
        return [fencing(broker)], broker._replace(is_fenced=True)
    if state is State.LEAVING and not broker.is_shutting_down:
        return [leaving(broker)], broker._replace(is_shutting_down=True)
    return [], broker


def _without(
    broker: BrokerImage, offline: list[bytes]
) -> tuple[BrokerImage, list[BrokerRegistrationChangeRecord]]:
    """The broker without the directories that have failed. Without any it would soon be gone."""
    left = [directory_id for directory_id in broker.log_dirs if directory_id not in offline]
    if not left or len(left) == len(broker.log_dirs):
        return broker, []
    record = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left
    )
    return broker._replace(log_dirs=tuple(left)), [record]
