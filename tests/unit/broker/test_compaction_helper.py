"""The compaction process: what it is asked, what it answers, and that it may die."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ottla.broker.storage import compaction_pipe as pipe
from ottla.broker.storage.compaction_helper import CompactionFailed, CompactionHelper, HelperLost
from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.output import CleanedSegment
from ottla.wire.records import Record, encode_batch


def job_in(directory: Path, values: int = 3) -> CompactionJob:
    """A segment with one key, written several times."""
    data = b"".join(
        bytes(encode_batch([Record(number, 5, b"k", b"%d" % number)], base_offset=number))
        for number in range(values)
    )
    (directory / f"{0:020d}.log").write_bytes(data)
    return CompactionJob(
        directory=str(directory),
        sources=[Source(0, len(data))],
        first_dirty=0,
        end=values,
        now_ms=1000,
        delete_retention_ms=1000,
        segment_bytes=10_000,
        segment_index_bytes=1000,
        index_interval_bytes=4096,
        map_bytes=4096,
        producers={5: (1, 0)},
    )


def test_a_job_comes_out_of_the_pipe_as_it_went_in(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    frame = pipe.encode_job(job)
    assert pipe.body_bytes(frame[:4]) == len(frame) - 4
    assert pipe.decode_job(pipe.decode(frame[4:])) == job
    cleaned = CleanedSegment((0, 7), 100, True, 3)
    assert pipe.decode_cleaned(pipe.decode(pipe.encode_cleaned(cleaned)[4:])) == cleaned


def test_no_frame_is_larger_than_its_bound() -> None:
    with pytest.raises(pipe.FrameTooLarge):
        pipe.encode("job", text="x" * pipe.FRAME_BYTES_MAX)
    with pytest.raises(pipe.FrameTooLarge):
        pipe.body_bytes(b"\xff\xff\xff\xff")


def test_the_process_compacts_fails_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    good, bad = job_in(tmp_path / "good"), job_in(tmp_path / "bad")
    path = tmp_path / "bad" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")

    async def go() -> None:
        helper = await CompactionHelper.start()
        try:
            with pytest.raises(CompactionFailed, match="a wrong CRC") as failure:
                [cleaned async for cleaned in helper.compact(bad)]
            assert failure.value.kind == "CorruptBatch"
            found = [cleaned async for cleaned in helper.compact(good)]
            assert [(one.bases, one.is_changed) for one in found] == [((0,), True)]
            assert helper.cleaned_to == 3
        finally:
            await helper.close()

    asyncio.run(go())
    assert (tmp_path / "good" / f"{0:020d}.log.cleaned").stat().st_size < good.sources[0].size
    assert (tmp_path / "good" / f"{0:020d}.log").stat().st_size == good.sources[0].size


def test_a_process_that_dies_is_noticed(tmp_path: Path) -> None:
    async def go() -> None:
        helper = await CompactionHelper.start()
        try:
            os.kill(helper.process_id, signal.SIGKILL)
            with pytest.raises(HelperLost):
                [cleaned async for cleaned in helper.compact(job_in(tmp_path))]
        finally:
            await helper.close()

    asyncio.run(go())


def test_a_stop_that_comes_as_the_process_takes_an_order_is_not_lost() -> None:
    async def cancelled_after(turns: int) -> bool:
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        helper = CompactionHelper(process)

        async def orders() -> None:
            for _ in range(3):
                await helper._ask(pipe.encode(pipe.GO_ON))
            await asyncio.Event().wait()

        asking = asyncio.create_task(orders())
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        ended, _ = await asyncio.wait([asking], timeout=1)
        asking.cancel()
        await helper.close()
        return bool(ended)

    for turns in range(12):
        assert asyncio.run(cancelled_after(turns)), f"lost after {turns} turns of the loop"
