"""Who may write the metadata log, and what of it is committed: Raft as in KIP-595, KIP-996 and
KIP-853, pure: events in, decisions out, without a clock, a disk or a network.

    quorum = Quorum(own, cluster_id, voters, state, times, random)
    for decision in quorum.handle(Started(), log.end, now_ms): ...

- `Quorum` (`quorum.py`): `handle(event, log, now_ms)` and, to be read between calls, `role`,
  `epoch`, `leader_id`, `voters`, `is_voter`, `high_watermark`, `describe`. `BrokenQuorum`
  (`node.py`) from `handle` means that the node must stop: what was committed is in danger.
- `events.py` what it is told, `decisions.py` what it wants done: all of it, each with its meaning.
- `LogEnd` (`node.py`): the log's end, last epoch and synced end, handed in with every event.
- `Voter`, `ReplicaKey`, `VoterSet`, `VoterHistory` (`voters.py`): the history is built at the start
  from the setting (`can_change=False`) or from the first snapshot and each VotersRecord in the log.
- `Times.from_config` (`times.py`), `QuorumState` with its file (`state.py`), `Role` (`roles.py`).

Whoever runs it keeps to this:

1. One event at a time. All decisions of a call are carried out, in their order, before the next
   event goes in; a Save is on stable storage before the decision after it is looked at. What is
   sent need not be answered first: answers are events. `log` is the log at the moment of the call.
2. `Lead`, `AppendVoters` and `TakeRecords` append at once; each VotersRecord among it is told by
   `VotersAppended` before any other event. `LogMoved` follows every sync.
3. A follower has one fetch under way, from its synced end, when all it has is synced. `Follow`,
   `Seek` and `Hold` replace each other; the answer to a fetch from before may still be handed in.
4. A snapshot is on stable storage when `SnapshotFetched` tells of it, and `BeginAfter` keeps to 1.
5. `Commit` is remembered: it reaches as far as this node has synced, and further with each sync.
6. A node with another disk has another directory id. With voters from a setting (kraft.version 0)
   nothing tells an emptied disk from a new one: its node votes where nobody has anything yet, and
   otherwise not before it has caught up with a leader.
"""
