"""Record batches become rows: the same test vectors for the compiled decoder and for numpy's."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest

from ottla.errors import CorruptBatch, InvalidTimestamp, UnsupportedMessageFormat
from ottla.spark.columns import READ_COLUMNS, arrow_schema
from ottla.spark.decoding.contract import BYTES_MAX, ROWS_MAX, Wanted, java_text
from ottla.spark.decoding.decoder import ArrowDecoder
from ottla.types import TopicPartition
from ottla.wire.compression import Compression
from ottla.wire.records import Record, encode_batch, read_header, seal_batch
from unit.spark.decoding_kit import (
    ABORT,
    COMMIT,
    DECODERS,
    NOW_MS,
    PARTITION,
    arrow_batches,
    batch,
    decoder,
    emptied,
    expected,
    joined,
    marker,
    offsets,
    rows,
)


@pytest.fixture(params=DECODERS.values(), ids=DECODERS.keys())
def make_rows(request):
    return request.param


AWKWARD = [
    Record(0, NOW_MS, b"key", b"value"),
    Record(1, NOW_MS - 5, None, b"no key"),
    Record(2, NOW_MS, b"tombstone", None),
    Record(3, NOW_MS, b"", b""),
    Record(4, NOW_MS, None, None),
    Record(5, NOW_MS, b"k" * 200, b"v" * 20_000),
    Record(6, NOW_MS, b"h", b"v", [("a", b"1")]),
    Record(7, NOW_MS, b"h", b"v", [("a", b"1"), ("a", None), ("", b""), ("ä€😀", b"x" * 300)]),
    Record(9, NOW_MS, b"after a gap", b"v"),
    Record(300, NOW_MS + 10_000_000, b"far away", b"v", [("last", None)]),
]


class TestRows:
    @pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
    def test_every_codec_and_every_kind_of_null(self, make_rows, codec):
        data = encode_batch(AWKWARD, compression=codec)
        assert rows(make_rows, data) == expected(data)
        assert len(expected(data)) == len(AWKWARD)

    def test_batches_of_all_codecs_one_after_the_other(self, make_rows):
        data = joined(
            batch(10 * at, b"a", None, b"c", compression=codec)
            for at, codec in enumerate([*Compression, *reversed(Compression), *Compression])
        )
        assert rows(make_rows, data) == expected(data)

    def test_a_message_without_headers_has_null_and_not_an_empty_list(self, make_rows):
        [without, with_one] = rows(
            make_rows,
            encode_batch([Record(0, 0, b"", b""), Record(1, 0, b"", b"", [("n", None)])]),
            columns=["headers"],
        )
        assert without == {"headers": None}
        assert with_one == {"headers": [{"key": "n", "value": None}]}

    def test_a_header_name_that_is_no_utf8_is_read_as_java_reads_it(self, make_rows):
        name = b"ok \xff \xed\xa0\x80 \xe2\x82".decode("utf-8", "surrogateescape")
        data = encode_batch([Record(0, 0, None, None, [("fine", b"1"), (name, b"\xff")])])
        [row] = rows(make_rows, data)
        assert [header["key"] for header in row["headers"]] == [
            "fine",
            "ok \ufffd \ufffd \ufffd",
        ]
        assert row["headers"][1]["value"] == b"\xff"

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            # Seen from `new String(data, UTF_8)` of Java 17.
            (b"plain \xc3\xa4", "plain ä"),
            (b"\xed\xa0\x80", "\ufffd"),
            (b"\xed\xa0", "\ufffd"),
            (b"\xed\xa0A", "\ufffdA"),
            (b"\xc0\x80", "\ufffd\ufffd"),
            (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
            (b"\xf0\x90\x80", "\ufffd"),
            (b"\xf5\x80", "\ufffd\ufffd"),
        ],
    )
    def test_broken_text_is_replaced_as_java_does(self, data, text):
        assert java_text(data) == text

    def test_append_time_is_the_time_of_all_records_of_a_batch(self, make_rows):
        records = [Record(at, 5 + at, None, b"v") for at in range(3)]
        data = encode_batch(records, append_time_ms=NOW_MS)
        found = rows(make_rows, data, columns=["timestamp", "timestampType"])
        assert found == [{"timestamp": NOW_MS * 1000, "timestampType": 1}] * 3

    def test_both_kinds_of_time_in_one_arrow_batch(self, make_rows):
        data = batch(0, b"a", append_time_ms=NOW_MS + 7) + batch(1, b"b")
        [batch_] = arrow_batches(make_rows, data, columns=["timestampType"])
        assert batch_.to_pydict() == {"timestampType": [1, 0]}

    def test_no_timestamp_is_minus_one_of_create_time(self, make_rows):
        [row] = rows(make_rows, encode_batch([Record(0, -1, None, b"v")]))
        assert (row["timestamp"], row["timestampType"]) == (-1000, 0)

    @pytest.mark.parametrize("timestamp", [2**63 // 1000 + 1, -(2**62), 2**63 - 1])
    def test_a_timestamp_without_microseconds_is_an_error_that_names_the_place(
        self, make_rows, timestamp
    ):
        data = batch(0, b"fine") + encode_batch([Record(1, timestamp, None, b"v")], base_offset=1)
        with pytest.raises(InvalidTimestamp, match="orders-3, the batch at offset 1"):
            rows(make_rows, data)
        assert offsets(make_rows, data) == [0, 1]

    def test_the_delete_horizon_is_what_timestamps_are_counted_from(self, make_rows):
        data = batch(0, None, None)
        header = read_header(data)
        data = seal_batch(header._replace(attributes=header.attributes | 0x40), data[61:])
        assert rows(make_rows, data) == expected(data)

    @pytest.mark.parametrize("column", READ_COLUMNS)
    def test_each_column_alone(self, make_rows, column):
        data = encode_batch(AWKWARD)
        assert rows(make_rows, data, columns=[column]) == [
            {column: row[column]} for row in expected(data)
        ]

    def test_columns_come_in_the_order_asked_for(self, make_rows):
        [found] = arrow_batches(make_rows, batch(4, b"v"), columns=["offset", "value", "key"])
        assert found.to_pydict() == {"offset": [4], "value": [b"v"], "key": [b"k0"]}

    def test_columns_of_only_nulls_keep_their_type(self, make_rows):
        data = encode_batch([Record(at, NOW_MS, None, None) for at in range(9)])
        assert rows(make_rows, data) == expected(data)


class TestRange:
    DATA = joined([batch(10, b"a", b"b", b"c"), batch(13, b"d", b"e"), batch(15, b"f")])

    @pytest.mark.parametrize(("start", "end"), [(0, 99), (10, 16), (11, 14), (12, 13), (13, 13)])
    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
    def test_rows_before_the_start_and_from_the_end_on_are_cut(self, make_rows, start, end, codec):
        data = joined(
            [batch(10, b"a", b"b", b"c", compression=codec), batch(13, b"d", compression=codec)]
        )
        assert rows(make_rows, data, start=start, end=end) == expected(data, start, end)

    def test_the_position_follows_the_headers(self, make_rows):
        reader = decoder(make_rows, 10, 16)
        list(reader.feed(self.DATA[: -len(batch(15, b"f"))]))
        assert reader.position == 15
        list(reader.feed(batch(15, b"f")))
        assert reader.position == 16
        [found] = reader.finish()
        assert found.num_rows == 6

    def test_an_incomplete_batch_at_the_end_is_left_for_the_next_fetch(self, make_rows):
        whole = len(self.DATA) - len(batch(15, b"f"))
        for cut in range(whole, len(self.DATA)):
            reader = decoder(make_rows)
            found = [*reader.feed(self.DATA[:cut]), *reader.finish()]
            assert sum(each.num_rows for each in found) == 5
            assert reader.position == 15

    def test_nothing_after_the_end_is_looked_at(self, make_rows):
        data = self.DATA + b"\xff" * 100
        assert offsets(make_rows, data, end=16) == [10, 11, 12, 13, 14, 15]
        damaged = bytearray(batch(16, b"g"))
        damaged[-1] ^= 1
        assert offsets(make_rows, self.DATA + damaged, end=16) == [10, 11, 12, 13, 14, 15]

    def test_a_batch_that_begins_after_the_end_ends_the_range(self, make_rows):
        reader = decoder(make_rows, 10, 20)
        assert list(reader.feed(batch(10, b"a") + batch(25, b"z"))) == []
        assert reader.position >= 20
        [found] = reader.finish()
        assert found.num_rows == 1

    def test_gaps_and_emptied_batches_move_the_position(self, make_rows):
        gap = encode_batch([Record(5, 0, None, b"x"), Record(8, 0, None, b"y")], base_offset=2)
        reader = decoder(make_rows, 0, 100)
        found = [*reader.feed(gap + emptied(9, 49) + batch(60, b"z") + emptied(61, 99))]
        found += reader.finish()
        assert [row for each in found for row in each.to_pydict()["offset"]] == [5, 8, 60]
        assert reader.position == 100

    def test_fetches_that_overlap_give_each_row_once(self, make_rows):
        assert offsets(make_rows, self.DATA, self.DATA) == [10, 11, 12, 13, 14, 15]

    def test_offsets_never_go_backwards_inside_a_batch(self, make_rows):
        data = encode_batch([Record(at, 0, None, b"v") for at in range(3)])
        # Delta 1 of the second record becomes 0, as broken producers have sent it.
        at = data.index(bytes([2, 1, 2]), 61)
        body = bytearray(data[61:])
        body[at - 61] = 0
        assert offsets(make_rows, seal_batch(read_header(data), body)) == [0, 2]

    def test_an_empty_fetch_gives_nothing(self, make_rows):
        assert rows(make_rows, b"") == []
        assert rows(make_rows, b"\0" * 10) == []


class TestTransactions:
    def transactional(self, first, producer_id, *values):
        return batch(
            first,
            *values,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )

    def read(self, make_rows, *parts, aborted=(), read_committed=True):
        return offsets(make_rows, joined(parts), aborted=aborted, read_committed=read_committed)

    def test_markers_are_for_no_reader(self, make_rows):
        parts = [self.transactional(0, 7, b"a", b"b"), marker(2, 7, COMMIT), batch(3, b"c")]
        for read_committed in (True, False):
            assert self.read(make_rows, *parts, read_committed=read_committed) == [0, 1, 3]

    def test_aborted_rows_are_hidden_until_the_abort_marker(self, make_rows):
        parts = [
            self.transactional(0, 7, b"aborted"),
            self.transactional(1, 8, b"of another"),
            self.transactional(2, 7, b"aborted"),
            marker(3, 7, ABORT),
            self.transactional(4, 7, b"the next transaction"),
            marker(5, 7, COMMIT),
            marker(6, 8, COMMIT),
        ]
        assert self.read(make_rows, *parts, aborted=[(7, 0)]) == [1, 4]
        assert self.read(make_rows, *parts, aborted=[(7, 0)], read_committed=False) == [0, 1, 2, 4]

    def test_an_abort_hides_nothing_before_its_first_offset(self, make_rows):
        parts = [
            self.transactional(0, 7, b"committed"),
            marker(1, 7, COMMIT),
            self.transactional(2, 7, b"aborted"),
            marker(3, 7, ABORT),
        ]
        assert self.read(make_rows, *parts, aborted=[(7, 2)]) == [0]

    def test_a_commit_marker_does_not_end_an_aborted_range(self, make_rows):
        parts = [
            self.transactional(0, 7, b"a"),
            marker(1, 8, ABORT),
            self.transactional(2, 7, b"b"),
            marker(3, 7, COMMIT),
            self.transactional(4, 7, b"c"),
        ]
        assert self.read(make_rows, *parts, aborted=[(7, 0)]) == []

    def test_aborted_ranges_come_in_any_order(self, make_rows):
        parts = [
            self.transactional(0, 7, b"x"),
            marker(1, 7, ABORT),
            self.transactional(2, 8, b"x"),
            marker(3, 8, ABORT),
            self.transactional(4, 7, b"x"),
            marker(5, 7, ABORT),
            batch(6, b"y"),
        ]
        assert self.read(make_rows, *parts, aborted=[(7, 4), (8, 2), (7, 0)]) == [6]

    def test_what_the_producer_wrote_outside_of_transactions_stays(self, make_rows):
        plain = batch(0, b"v", producer_id=7, producer_epoch=0, base_sequence=0)
        assert self.read(make_rows, plain, aborted=[(7, 0)]) == [0]

    def test_a_hidden_batch_moves_the_position(self, make_rows):
        reader = decoder(make_rows, 0, 9, read_committed=True)
        list(reader.feed(self.transactional(0, 7, b"a") + marker(1, 7, ABORT), [(7, 0)]))
        assert reader.position == 2
        assert list(reader.finish()) == []

    def test_aborted_ranges_belong_to_one_fetch(self, make_rows):
        reader = decoder(make_rows, read_committed=True, columns=["offset"])
        list(reader.feed(self.transactional(0, 7, b"a"), [(7, 0)]))
        list(reader.feed(self.transactional(1, 7, b"b"), []))
        [found] = reader.finish()
        assert found.to_pydict() == {"offset": [1]}


class TestLimits:
    def test_an_arrow_batch_ends_at_fifty_thousand_rows(self, make_rows):
        parts = []
        for first in range(0, 120_000, 10_000):
            records = [Record(first + at, NOW_MS, None, b"v") for at in range(10_000)]
            parts.append(encode_batch(records, base_offset=first))
        found = arrow_batches(make_rows, *parts)
        assert [each.num_rows for each in found] == [ROWS_MAX, ROWS_MAX, 20_000]
        assert found[-1].to_pydict()["offset"] == list(range(100_000, 120_000))
        together = arrow_batches(make_rows, joined(parts))
        assert together == found

    def test_a_full_batch_is_given_before_the_next_fetch(self, make_rows):
        records = [Record(at, NOW_MS, None, None) for at in range(ROWS_MAX + 1)]
        reader = decoder(make_rows)
        assert [each.num_rows for each in reader.feed(encode_batch(records))] == [ROWS_MAX]
        assert [each.num_rows for each in reader.finish()] == [1]

    def test_small_fetches_share_an_arrow_batch(self, make_rows):
        reader = decoder(make_rows)
        for at in range(100):
            assert list(reader.feed(batch(at, b"v"))) == []
        [found] = reader.finish()
        assert found.num_rows == 100
        assert list(reader.finish()) == []

    @pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
    def test_an_arrow_batch_ends_before_sixteen_mebibytes(self, make_rows, codec):
        large = bytes(1_000_000)
        data = joined(batch(at, large, compression=codec) for at in range(40))
        found = arrow_batches(make_rows, data)
        assert [each.num_rows for each in found] == [16, 16, 8]
        assert all(each.nbytes <= BYTES_MAX + 65_536 for each in found)
        assert [row["offset"] for each in found for row in each.to_pylist()] == list(range(40))

    def test_a_row_above_the_limit_is_a_batch_of_its_own(self, make_rows):
        huge = bytes(BYTES_MAX + 1)
        data = joined([batch(0, b"a"), batch(1, huge), batch(2, b"b"), batch(3, b"c")])
        found = arrow_batches(make_rows, data)
        assert [each.num_rows for each in found] == [1, 1, 2]
        assert found[1].to_pydict()["value"] == [huge]

    def test_keys_and_headers_count_for_the_limit(self, make_rows):
        half = bytes(6 * 1024 * 1024)
        records = [Record(at, 0, half, b"", [("n", half)]) for at in range(3)]
        data = joined(encode_batch([record], base_offset=record.offset) for record in records)
        assert [each.num_rows for each in arrow_batches(make_rows, data)] == [1, 1, 1]
        keys_only = arrow_batches(make_rows, data, columns=["key"])
        assert [each.num_rows for each in keys_only] == [2, 1]

    def test_buffers_grow_over_many_fetches(self, make_rows):
        """Each fetch is larger than the last, and has more headers than there was room for."""
        parts = []
        for at in range(12):
            headers = [(f"n{number}", b"x" * at) for number in range(2**at)]
            parts.append(
                encode_batch(
                    [Record(at, NOW_MS, b"k" * 2**at, b"v" * 3**at, headers)], base_offset=at
                )
            )
        found = rows(make_rows, *parts)
        assert found == [row for part in parts for row in expected(part)]

    def test_headers_without_a_byte_need_room_too(self, make_rows):
        """There is room for their names and values, but not for so many of them."""
        records = [Record(at, 0, None, bytes(9000), [("", None)] * 700) for at in range(5)]
        data = encode_batch(records)
        assert rows(make_rows, data) == expected(data)

    def test_the_topic_is_as_long_as_it_likes(self, make_rows):
        partition = TopicPartition("t" * 249, 1)
        reader = ArrowDecoder(partition, 0, 9999, ["topic", "partition"], make_rows=make_rows)
        list(reader.feed(batch(0, *[b"v"] * 5000)))
        [found] = reader.finish()
        assert found.to_pylist() == [{"topic": "t" * 249, "partition": 1}] * 5000


class TestDamage:
    def damaged(self, make_rows, data, said, error=CorruptBatch):
        with pytest.raises(error, match=said) as refused:
            rows(make_rows, data)
        assert "orders-3" in str(refused.value)
        assert "\n" not in str(refused.value)

    def test_a_flipped_bit_is_found_by_the_checksum(self, make_rows):
        data = batch(0, b"a") + batch(1, b"b")
        data[-2] ^= 4
        self.damaged(make_rows, data, "batch at offset 1: the CRC does not match")

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_messages_are_refused_in_one_line(self, make_rows, magic):
        data = batch(0, b"a")
        data[16] = magic
        self.damaged(make_rows, data, f"messages of format {magic}", UnsupportedMessageFormat)
        self.damaged(make_rows, data[:20], f"messages of format {magic}", UnsupportedMessageFormat)

    @pytest.mark.parametrize("magic", [3, 127, 128, 255])
    def test_an_unknown_magic_is_damage(self, make_rows, magic):
        data = batch(0, b"a")
        data[16] = magic
        self.damaged(make_rows, data, "magic")

    @pytest.mark.parametrize("length", [-1, -(2**31), 0, 48])
    def test_a_length_too_small_for_a_batch(self, make_rows, length):
        data = batch(0, b"a")
        data[8:12] = length.to_bytes(4, "big", signed=True)
        self.damaged(make_rows, data, f"batch at offset 0: it says that it has {length} bytes")

    @pytest.mark.parametrize(
        "lie",
        [
            {"count": 0},
            {"count": 1},
            {"count": 3},
            {"count": 2**31 - 1},
            {"count": -1},
            {"last_offset_delta": 0},
            {"last_offset_delta": -1},
            {"base_offset": -1},
            {"base_offset": 2**63 - 1},
            {"attributes": 5},
            {"attributes": int(Compression.LZ4)},
        ],
        ids=str,
    )
    def test_a_header_that_lies_is_damage(self, make_rows, lie):
        data = batch(0, b"a", b"b")
        header = read_header(data)._replace(**lie)
        self.damaged(make_rows, seal_batch(header, data[61:]), "batch at offset")

    @pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
    def test_a_compressed_block_that_cannot_be_opened(self, make_rows, codec):
        data = batch(5, b"a" * 1000, compression=codec)
        cut = seal_batch(
            read_header(data)._replace(batch_length=read_header(data).batch_length - 5), data[61:-5]
        )
        self.damaged(make_rows, cut, "batch at offset 5")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\x0e",
            b"\x0c\0\0\0\1\1\0\0",
            b"\x10\0\0\0\1\1\0\0",
            b"\x0f\0\0\0\1\1\0",
            b"\x01",
            b"\0",
            b"\x0e\0\0\0\5\1\0\0",
            b"\x0e\0\0\0\x20\1\0\0",
            b"\x0e\0\0\0\1\x20\0\0",
            b"\x0e\0\0\0\1\1\x20\0",
            b"\x0e\0\0\0\1\1\1\0",
            b"\x0e\0\0\0\1\1\2\0",
            b"\x10\0\0\0\1\1\2\1\0",
            b"\x10\0\0\0\1\1\2\2\0",
            b"\x10\0\0\0\1\1\2\0\x04",
            b"\x0e\0\0\2\1\1\0\0",
            b"\x0e\0\0\1\1\1\0\0",
            b"\x80" * 20,
            b"\xff" * 9 + b"\x01",
            b"\xfe" + b"\xff" * 8 + b"\x01",
            b"\x20\0" + b"\xff" * 9 + b"\x02\0\1\1\0",
            b"\x1e\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\1\0",
            b"\x1e\0\0\0\1\1\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ],
        ids=bytes.hex,
    )
    def test_a_record_that_leads_out_of_its_place(self, make_rows, body):
        header = read_header(batch(7, b"a"))
        data = seal_batch(header._replace(batch_length=49 + len(body)), body)
        self.damaged(make_rows, data, "batch at offset 7: record [01] is damaged")

    def test_damage_is_looked_for_also_in_columns_that_nobody_wants(self, make_rows):
        body = b"\x10\0\0\0\1\1\2\1\0"
        header = read_header(batch(7, b"a"))
        data = seal_batch(header._replace(batch_length=49 + len(body)), body)
        with pytest.raises(CorruptBatch):
            rows(make_rows, data, columns=["offset"])

    def test_spans_outside_of_their_data_are_refused(self, make_rows):
        wanted = Wanted(PARTITION, arrow_schema(), 0, 10)
        for begin, stop in ((-1, 3), (0, 9), (3, 2)):
            span = array("q", [begin, stop, 1, 0, 0, 0, 1, 0])
            with pytest.raises(ValueError, match="outside"):
                list(make_rows(wanted).add(b"12345678", span))


class TestImports:
    def run(self, program: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def test_numba_is_imported_when_a_read_begins_and_not_before(self):
        self.run(
            "import sys; import ottla.spark.decoding.decoder, ottla.spark.columns\n"
            "assert not {'numba', 'llvmlite', 'pyspark'} & set(sys.modules), sys.modules.keys()"
        )

    def test_without_numba_numpy_takes_over_with_one_warning(self):
        said = self.run(
            "import sys; sys.modules['numba'] = None\n"
            "from ottla.spark.decoding.decoder import ArrowDecoder\n"
            "from ottla.types import TopicPartition\n"
            "from ottla.wire.records import Record, encode_batch\n"
            "data = encode_batch([Record(0, 5, b'k', b'v')])\n"
            "for _ in range(2):\n"
            "    decoder = ArrowDecoder(TopicPartition('t', 0), 0, 9, ['key', 'offset'])\n"
            "    list(decoder.feed(data))\n"
            "    [batch] = decoder.finish()\n"
            "    assert batch.to_pydict() == {'key': [b'k'], 'offset': [0]}\n"
            "assert 'ottla.spark.decoding.rows_numpy' in sys.modules\n"
        )
        assert said.count("NumbaMissing") == 1
