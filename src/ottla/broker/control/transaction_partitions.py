"""Asking coordinators about the partitions of transactions, before anything is appended (KIP-890).

One request to a coordinator at a time: all that is asked in a turn of the loop, and while another
request is under way, goes in one. Its answer counts only for who asked before the append, and the
partition itself sees to it that no marker came in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.broker.control.node_batches import NodeBatches
from ottla.coordinators.transaction_records import by_topic
from ottla.errors import ErrorCode, OttlaError
from ottla.types import NO_NODE, TRANSACTIONS_TOPIC, NodeId, TopicPartition
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from ottla.broker.control.needs import ControlServices
    from ottla.broker.control.node_connection import Brokers
    from ottla.broker.control.transactions import TransactionService

logger = logging.getLogger(__name__)

QUESTIONS_AT_ONCE: Final = 1000

Verdicts: TypeAlias = dict[TopicPartition, ErrorCode]


class Question:
    """Of one producer, about partitions of its transaction."""

    __slots__ = ("answer", "asked")

    def __init__(
        self, asked: AddPartitionsToTxnTransaction, answer: asyncio.Future[Verdicts]
    ) -> None:
        self.asked = asked
        self.answer = answer

    def answer_all(self, code: ErrorCode) -> None:
        if not self.answer.done():
            self.answer.set_result(
                {
                    TopicPartition(topic.name, index): code
                    for topic in self.asked.topics
                    for index in topic.partitions
                }
            )


class TransactionPartitions:
    def __init__(
        self, services: ControlServices, brokers: Brokers, transactions: TransactionService
    ) -> None:
        self._services = services
        self._brokers = brokers
        self._transactions = transactions
        self._batches: NodeBatches[Question] = NodeBatches(
            services.loop,
            self._send,
            lambda question: question.asked.transactional_id,
            QUESTIONS_AT_ONCE,
        )

    async def ask(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        verify_only: bool,
    ) -> Verdicts:
        """Whether each is in the transaction, or has been added to it now."""
        asked = AddPartitionsToTxnTransaction(
            transactional_id=name,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=verify_only,
            topics=[AddPartitionsToTxnTopic(*topic) for topic in by_topic(frozenset(partitions))],
        )
        question = Question(asked, self._services.loop.create_future())
        coordinator = self._coordinator_of(name)
        if coordinator == NO_NODE:
            question.answer_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._batches.add(coordinator, question)
        return await question.answer

    def _coordinator_of(self, name: str) -> NodeId:
        metadata = self._services.metadata
        if not metadata.has_topic(TRANSACTIONS_TOPIC):
            return NO_NODE
        index = self._transactions.partition_of(name)
        return NodeId(metadata.leader_of(TRANSACTIONS_TOPIC, index))

    async def _send(self, node_id: NodeId, questions: list[Question]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[question.asked for question in questions])
        timeout_s = self._services.config.request_timeout_ms / 1000
        failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
        answers: dict[str, AddPartitionsToTxnResult] = {}
        try:
            reply = await self._brokers.ask(node_id, request, AddPartitionsToTxnResponse, timeout_s)
        except (OttlaError, OSError, TimeoutError) as error:
            logger.info("coordinator %d does not answer: %s", node_id, error)
        else:
            answers = {each.transactional_id: each for each in reply.results_by_transaction}
        finally:
            for question in questions:
                answer = answers.get(question.asked.transactional_id)
                if answer is None:
                    question.answer_all(failure)
                elif not question.answer.done():
                    question.answer.set_result(_verdicts(answer))

    def close(self) -> None:
        self._batches.close()


def _verdicts(answer: AddPartitionsToTxnResult) -> Verdicts:
    return {
        TopicPartition(topic.name, each.partition_index): ErrorCode(each.partition_error_code)
        for topic in answer.topic_results
        for each in topic.results_by_partition
    }
