"""The bytes of a spool: what the recorder writes and the collector reads.

A spool is a folder of its own for each process incarnation, on a node-local disk::

    ROOT/<process_id as 16 hex digits>/
        facts.json     who the process is (written before the folder gets its name)
        control        one page: counters, and the state slot rewritten while training
        seg-00000000   segments of append-only records, 1 MiB each
        ack.json       what the reader has put into Parquet for good
        ack.spare      the same, in space that was reserved, for when the disk is full

Every record carries its type, sequence number and a check, for all but one type a crc32, and
all but that one are written with one copy. Integers are little-endian; times are nanoseconds of
CLOCK_MONOTONIC, which all processes of a node share. Mixed versions on one machine are normal: a
reader skips types that it does not know and refuses a format version above its own.
"""

from __future__ import annotations

from struct import Struct

FORMAT_VERSION = 3
"""Version of everything in this module; raised when an older reader would go wrong.

2: STEP_SHORT, TRACE, COLLECTIVES and DEVICE records, the step's own state slot, and the noise
scale's inputs in steps. 3: STEP_PLAIN. A reader takes every older version: what it had not is
unknown there.
"""

# -- control page ---------------------------------------------------------------------------
CONTROL_SIZE = 4096
CONTROL_MAGIC = b"BADPUTC1"
CONTROL_HEAD = Struct("<8sIIQ")  # magic, format version, segment size, process id
WRITER_AT = 64
WRITER = Struct("<QQQ")  # segment being written, records dropped, closed (0 or 1)
LEAVING_AT = 88
LEAVING = Struct("<Q")
"""1 once the interpreter ends: it gives back our maps, and the lock with them, before it goes."""
READER_AT = 128
READER = Struct("<QQQ")  # first segment not yet drained, next sequence number, ended (0 or 1)
STATE_AT = 192
STATE = Struct("<Q")
"""Error number of the collector's last failure to write into the run folder; 0: it can."""
SLOT_AT = 256
SLOT = Struct("<QQ")  # since (monotonic ns), step << 16 | phase id
"""Two state slots take turns, and the one with the later time holds. The time is written last,
so a slot that a kill left half written still has its old time, and the other one holds."""
SLOT_WORD = SLOT_AT // 8
SLOT_TURN = 8
"""The same in 8-byte words: where the first slot is, and what to xor to get the other one."""
STEP_SLOT_AT = 384
STEP_SLOT = Struct("<QQ")  # step, since (monotonic ns)
"""The slot of the phase "step" alone; it holds if its time is the latest. One is enough: cut off
between the two it names the next step with the begin of one that is finished and recorded."""

# -- segments -------------------------------------------------------------------------------
SEGMENT_SIZE = 1 << 20
MAX_SEGMENTS = 128
"""Segments that may wait for the reader: 128 MiB, 10 s at 50,000 steps a second."""
SEGMENT_MAGIC = b"BADPUTS1"
SEGMENT_HEAD = Struct("<8sIIQQ")  # magic, format version, size, process id, index
SEGMENT_START = 64
SEGMENT_END = SEGMENT_SIZE - 64
"""No record reaches past this; the rest holds the mark that the segment is full."""

# -- records --------------------------------------------------------------------------------
HEAD = Struct("<HHIQ")  # type, flags, size with everything, sequence number
CRC = Struct("<I")
WORD = Struct("<Q")

STEP, NAME, SPAN_BEGIN, SPAN, EVENT, CLOSE, FULL = 1, 2, 3, 4, 5, 6, 7
TRACE, COLLECTIVES, DEVICE = 8, 9, 10
STEP_SHORT, STEP_PLAIN = 11, 12
"""Record types; 0 is a place not written yet. FULL says: go on in the next segment.

The payloads of the last three are lists of equal length, at most MAX_ROWS long:
TRACE {"s": step, "n": names, "t": begins (monotonic ns), "d": ns, "l": depths, "m": microbatches
or null}; COLLECTIVES {"s": step, "n": operations, "g": groups, "t": begins, "d": ns or null,
"b": bytes or null}; DEVICE {"s": steps, "d": ns}."""
MAX_ROWS = 200

STEP_SIZE = 256
STEP_BODY = Struct("<HHIQqQQqdQqqdIIdq")
"""Head, then step, start, end, tokens, loss, pre_data, samples, padding, grad_norm, source id,
spare, grad_norm_small, samples_small. Counts that are not known are -1; the flags say which of
the others are known."""
STEP_COVERED = 64
"""Without the flag WHOLE only the bytes up to here, pre_data included, are meant and covered by
the crc. Version 1 wrote most steps so; later ones write STEP_SHORT."""
STEP_HOT_AT = 8
STEP_HOT = Struct("<QqQQ")
"""What changes with every step: sequence number, step, start, end."""
FLAGS_AT, TOKENS_AT, LOSS_AT, PRE_AT, SAMPLES_AT, PADDING_AT, GRAD_NORM_AT, SOURCE_AT = (
    2, 40, 48, 56, 64, 72, 80, 88,
)  # fmt: skip
GRAD_NORM_SMALL_AT, SAMPLES_SMALL_AT = 96, 104
ACC_AT = 112
ACC = Struct("<15Q")
"""Nanoseconds by category, in the order of schema.STEP_CATEGORIES; ACC_NULL: never used."""
ACC_NULL = (1 << 64) - 1
STEP_WHOLE = ACC_AT + ACC.size
STEP_WRITE = Struct(f"<{STEP_WHOLE}s{STEP_SIZE - STEP_WHOLE - CRC.size}xI")
"""The bytes up to STEP_WHOLE, and the crc at the end of the record."""

SHORT_HEAD = Struct("<HHII")
"""Type STEP_SHORT, flags (none yet), tokens, pre_data (ns)."""
SHORT_BODY = Struct("<IQQI")
"""Low half of the sequence number, start, end, step."""
SHORT_WRITE = Struct(f"<{SHORT_HEAD.size}s{SHORT_BODY.size}sI")
"""Head, body and the crc32 of both. All that most steps need, in a sixth of a STEP record: it
has no size field, and a step with more, or with a number that does not fit, is a STEP."""
SHORT_SIZE, SHORT_COVERED = SHORT_WRITE.size, SHORT_HEAD.size + SHORT_BODY.size
SHORT_UNKNOWN = (1 << 32) - 1
"""Tokens or pre_data that are not known."""

PLAIN = Struct("<HHIQQQQQ")
"""Type STEP_PLAIN, flags (none yet), tokens; start, end, step, sequence number, check: six words,
of which the first is written last. So a record whose type is there was written to its end where
the machine keeps stores in order, as x86 does; the check is for those that do not, and for damage.

The check is PLAIN_SEED + tokens + start + end + step: with these at most as large as they were
meant, a part that is still 0 makes the sum too small, and no byte of the seed is 0, so parts
missing from all words at the same place do not agree either. A crc32 costs more on a step than all
else that it writes: its code and table are out of the caches by the time that a step ends."""
PLAIN_SIZE = PLAIN.size
PLAIN_SEED = 0x1357_9BDF_0246_8ACE

WHOLE, HAS_LOSS, HAS_GRAD_NORM = 1, 2, 4
APPLIED_KNOWN, APPLIED, COMMITTED_KNOWN, COMMITTED = 8, 16, 32, 64
HAS_SMALL = 128
"""Flags of a step record. HAS_SMALL: grad_norm_small and samples_small are known."""

# -- phases of the state slot ---------------------------------------------------------------
PHASE_UNKNOWN, PHASE_INIT, PHASE_LOOP, PHASE_STEP = 0, 1, 2, 3
FIXED_PHASES = ("unknown", "init", "loop", "step")
PHASE_CATEGORY = 16
"""Phase id of the first step category; the others follow in order."""
FIRST_NAME = 64
"""Ids from here on are names that the stream itself defines (NAME records)."""
MAX_NAMES = 4096


def spool_name(process_id: int) -> str:
    """Folder name of a process's spool."""
    return f"{process_id:016x}"


def segment_name(index: int) -> str:
    """File name of a segment."""
    return f"seg-{index:08d}"
