"""The step: the hot path. One object is used again for every step of a process."""

from __future__ import annotations

import threading
import time
from zlib import crc32

from badput import Nothing
from badput import layout as lo
from badput.guard import fail, say
from badput.values import as_count, as_flag, as_float

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from badput.recorder import Recorder

_now = time.monotonic_ns
_body_into = lo.STEP_BODY.pack_into
_acc_into = lo.ACC.pack_into
_crc_into = lo.CRC.pack_into
_slot_into = lo.SLOT.pack_into
_LAST_POS = lo.SEGMENT_END - lo.STEP_SIZE
_LOCK_WAIT_S = 0.5


class Step:
    """The step under way: a context manager, and ``log`` for what is known only later.

    A step whose block raises is not a finished step: it gets no row in ``steps``.
    """

    __slots__ = (
        "_base", "_buf", "_head", "_rec", "_start", "_whole", "flags", "grad_norm", "loss",
        "number", "open", "padding", "samples", "source", "tokens", "wanted",
    )  # fmt: skip

    def __init__(self, recorder: Recorder) -> None:
        self._rec = recorder
        self._buf = bytearray(lo.STEP_SIZE)
        self._head = memoryview(self._buf)[: lo.STEP_USED]
        self._whole = memoryview(self._buf)[: lo.ACC_END]
        self._start = self._base = self.number = self.flags = self.source = 0
        self.wanted: int | None = None
        self.tokens: int | None = None
        self.samples: int | None = None
        self.padding: int | None = None
        self.loss = self.grad_norm = 0.0
        self.open = False

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied step is one that does nothing."""
        return (Nothing, ())

    def take(
        self,
        number: object,
        tokens: object,
        samples: object,
        padding: object,
        source: object,
        committed: object,
    ) -> None:
        """Take what ``step()`` was given, checking each: only whole numbers get in."""
        self.wanted = as_count("number", number)
        self.tokens = as_count("tokens", tokens)
        self.samples = as_count("samples", samples)
        self.padding = as_count("padding", padding)
        if source is not None:
            self.source = self._rec.name_id(str(source))
        if committed is not None:
            self.flag("committed", committed, lo.COMMITTED_KNOWN, lo.COMMITTED)

    def __enter__(self) -> Step:
        try:
            rec = self._rec
            wanted = self.wanted
            self.number = number = rec.last_step + 1 if wanted is None else wanted
            if rec.fresh:
                rec.fresh = False
                rec.owner = threading.get_ident()
            self._base = len(rec.stack)
            self.open = rec.in_step = True
            rec.version = version = rec.version + 1
            at = lo.SLOT_AT + (version & 1) * lo.SLOT_STRIDE
            self._start = now = _now()
            _slot_into(rec.control, at, version, number, lo.PHASE_STEP, now, version)
        except Exception as error:  # noqa: BLE001 - guard
            fail("step begin", error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = _now()
        try:
            rec = self._rec
            self.open = rec.in_step = False
            if len(rec.stack) > self._base:  # a span entered by hand and never left
                del rec.stack[self._base :]
            if kind is not None:
                self._failed(end, kind, trace)
                return
            lock = rec.lock
            if not lock.acquire(False) and not lock.acquire(timeout=_LOCK_WAIT_S):
                self._dropped(end)
                return
            try:
                written = self._write(end)
            finally:
                lock.release()
            if not written:
                self._dropped(end)
            rec.last_step = self.number
            rec.pre_data = None
            if rec.pending:
                rec.flush_pending()
        except Exception as problem:  # noqa: BLE001 - guard
            fail("step end", problem)

    def _write(self, end: int) -> bool:
        """Append the step's record. The caller holds the lock."""
        rec = self._rec
        spool = rec.spool
        if spool.pos > _LAST_POS and not spool.room(lo.STEP_SIZE):
            return False
        pos, seq, buf = spool.pos, spool.seq, self._buf
        tokens, samples, padding, pre = self.tokens, self.samples, self.padding, rec.pre_data
        flags, covered = self.flags, self._head
        if rec.acc_used:
            flags, covered = flags | lo.HAS_ACC, self._whole
            _acc_into(buf, lo.ACC_AT, *rec.acc)
            rec.acc = [v if v == lo.ACC_NULL else 0 for v in rec.acc]
        start = self._start
        _body_into(
            buf, 0, lo.STEP, flags, lo.STEP_SIZE, seq, self.number, start, end - start,
            lo.ACC_NULL if pre is None else pre,
            -1 if tokens is None else tokens,
            -1 if samples is None else samples,
            -1 if padding is None else padding,
            self.loss, self.grad_norm, self.source, 0,
        )  # fmt: skip
        _crc_into(buf, lo.STEP_CRC_AT, crc32(covered))
        spool.map[pos : pos + lo.STEP_SIZE] = buf
        spool.pos = pos + lo.STEP_SIZE
        spool.seq = seq + 1
        return True

    def _dropped(self, end: int) -> None:
        rec = self._rec
        rec.spool.dropped += 1
        rec.spool.note()
        rec.set_phase(lo.PHASE_LOOP, end)

    def _failed(self, end: int, kind: type[BaseException], trace: TracebackType | None) -> None:
        """Record a step whose block raised: a span, and the first sign of a failure."""
        rec = self._rec
        rec.acc = [v if v == lo.ACC_NULL else 0 for v in rec.acc]
        attrs = {"step": self.number, "exception": kind.__name__}
        span = {"n": "failed_step", "t": self._start, "d": end - self._start}
        rec.append(lo.SPAN, {**span, "s": rec.last_step, "i": False, "a": attrs})
        if issubclass(kind, Exception):
            rec.failure(f"{kind.__name__} in step {self.number}", kind, trace)
        rec.set_phase(lo.PHASE_LOOP, end)

    def log(
        self,
        *,
        loss: float | None = None,
        grad_norm: float | None = None,
        applied: bool | None = None,
        committed: bool | None = None,
        tokens: int | None = None,
        samples: int | None = None,
        padding: int | None = None,
        source: str | None = None,
        **unknown: object,
    ) -> None:
        """Add to the step under way. Numbers must be plain: a tensor is left out, not converted.

        ``applied``: did the update change the weights; ``committed``: was the result committed.
        """
        try:
            if not self.open:
                say("log", "step.log() outside its step is ignored")
                return
            if loss is not None and (value := as_float("loss", loss)) is not None:
                self.loss, self.flags = value, self.flags | lo.HAS_LOSS
            if grad_norm is not None and (value := as_float("grad_norm", grad_norm)) is not None:
                self.grad_norm, self.flags = value, self.flags | lo.HAS_GRAD_NORM
            if applied is not None:
                self.flag("applied", applied, lo.APPLIED_KNOWN, lo.APPLIED)
            if committed is not None:
                self.flag("committed", committed, lo.COMMITTED_KNOWN, lo.COMMITTED)
            if tokens is not None:
                self.tokens = as_count("tokens", tokens)
            if samples is not None:
                self.samples = as_count("samples", samples)
            if padding is not None:
                self.padding = as_count("padding", padding)
            if source is not None:
                self.source = self._rec.name_id(str(source))
            if unknown:
                say("log names", f"step.log() does not know {', '.join(sorted(unknown))}")
        except Exception as error:  # noqa: BLE001 - guard
            fail("step log", error)

    def flag(self, what: str, value: object, known: int, true: int) -> None:
        """Set a yes/no/unknown flag of the step."""
        truth = as_flag(what, value)
        if truth is not None:
            self.flags = (self.flags & ~(known | true)) | known | (true if truth else 0)
