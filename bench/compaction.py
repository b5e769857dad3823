"""How fast the compaction process cleans a dirty log: `python -m bench.compaction`.

A log is written with a producer's batches, then the broker's own compaction process is asked to
clean it, as the broker would ask. Figures are dirty bytes per second of wall time and of the
process's CPU. `--profile` runs the same work here instead and prints what takes the time.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.nodes import data_root
from ottla.broker.storage.compaction_helper import CompactionHelper
from ottla.broker.storage.disk import RealDisk
from ottla.log.compaction.job import CompactionJob, Source
from ottla.log.compaction.rewrite import Compaction
from ottla.log.segment import LOG, path_of
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, stamp

NOW_MS: Final = 1_700_000_000_000
MAP_BYTES: Final = 128 * 1024 * 1024
SEGMENT_BYTES: Final = 64 * 1024 * 1024


def write_log(directory: Path, args: argparse.Namespace) -> list[Source]:
    """Segments as a producer with `linger.ms` fills them; each key is written several times."""
    chance = random.Random(1)
    value = chance.randbytes(args.message_bytes)
    key_count = max(1, args.megabytes * 1_000_000 // args.message_bytes // args.writes_per_key)
    sources, offset, total = [], 0, 0
    while total < args.megabytes * 1_000_000:
        base, size = offset, 0
        with Path(path_of(str(directory), base, LOG)).open("wb") as file:
            while size < SEGMENT_BYTES and total < args.megabytes * 1_000_000:
                records = [
                    Record(at, NOW_MS, b"user-%08d" % chance.randrange(key_count), value)
                    for at in range(args.records_per_batch)
                ]
                batch = encode_batch(records, compression=Compression[args.codec.upper()])
                stamp(memoryview(batch), offset, 0)
                file.write(batch)
                size += len(batch)
                total += len(batch)
                offset += args.records_per_batch
        sources.append(Source(base, size))
    args.end = offset
    return sources


def job_for(directory: Path, sources: list[Source], end: int) -> CompactionJob:
    return CompactionJob(
        directory=str(directory),
        sources=sources,
        first_dirty=0,
        end=end,
        now_ms=NOW_MS,
        delete_retention_ms=86_400_000,
        segment_bytes=SEGMENT_BYTES,
        segment_index_bytes=10 * 1024 * 1024,
        index_interval_bytes=4096,
        map_bytes=MAP_BYTES,
        producers={},
    )


async def in_the_process(job: CompactionJob) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds, bytes left)."""
    helper = await CompactionHelper.start()
    try:
        started, left = time.perf_counter(), 0
        async for cleaned in helper.compact(job):
            left += cleaned.size
        seconds = time.perf_counter() - started
        cpu = _cpu_seconds(helper.process_id)
    finally:
        await helper.close()
    return seconds, cpu, left


def _cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def phases(job: CompactionJob, messages: int) -> str:
    """Where the CPU goes, per message: the same work once more, in this process."""
    compaction = Compaction(RealDisk(), job)
    started = time.process_time()
    for source in job.sources:
        for _ in compaction.batches_of(source):
            pass
    reading = time.process_time()
    compaction.build_map()
    mapping = time.process_time()
    for _ in Compaction(RealDisk(), job).run():
        pass
    ended = time.process_time()
    read_us, map_us, all_us = (
        seconds / messages * 1e6
        for seconds in (reading - started, mapping - reading, ended - mapping)
    )
    return (
        f"CPU per message: {all_us:.1f} µs, of which {2 * read_us:.1f} reading and checking CRCs "
        f"(twice), {map_us - read_us:.1f} finding keys and filling the map, "
        f"{all_us - map_us - read_us:.1f} finding them again, asking the map and writing"
    )


def profiled(job: CompactionJob) -> None:
    profile = cProfile.Profile()
    profile.enable()
    for _ in Compaction(RealDisk(), job).run():
        pass
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--message-bytes", type=int, default=1000)
    parser.add_argument("--records-per-batch", type=int, default=16)
    parser.add_argument("--writes-per-key", type=int, default=3)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="compaction-", dir=data_root()))
    try:
        sources = write_log(directory, args)
        job = job_for(directory, sources, args.end)
        if args.profile:
            profiled(job)
            return
        dirty = sum(source.size for source in sources)
        seconds, cpu, left = asyncio.run(in_the_process(job))
        print(
            f"{dirty / 1e6:.0f} MB dirty, {args.end} messages of {args.message_bytes} bytes, "
            f"{args.records_per_batch} per batch, {args.codec}: {seconds:.2f} s, "
            f"{dirty / seconds / 1e6:.0f} MB/s, {args.end / seconds / 1e3:.0f}k messages/s, "
            f"{cpu:.2f} s CPU ({dirty / cpu / 1e6:.0f} MB per CPU second), {left / 1e6:.0f} MB left"
        )
        print(phases(job, args.end))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
