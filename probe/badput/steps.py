"""The step: the hot path. One object is used again for every step of a process.

What changes with every step is packed into a buffer of one record, whose other fields are
written only when given and put back afterwards; then the record is copied to the spool.

Two threads never write at once: the training thread raises ``spool.busy`` and looks at
``spool.other``, every other writer raises ``other`` under a lock and looks at ``busy``.
Whatever order the interpreter runs them in, at least one sees the other and steps back. That
rests on the interpreter lock; without one ``other`` stays raised and every step takes the lock.
"""

from __future__ import annotations

from zlib import crc32

from badput import Nothing, clock
from badput import layout as lo
from badput.guard import fail, say
from badput.values import MAX_STEP, as_count, as_flag, as_float, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from badput.recorder import Recorder

_now = clock.mono
_hot_into = lo.STEP_HOT.pack_into
_HOT_AT, _PHASE_STEP, _TURN, _SIZE = lo.STEP_HOT_AT, lo.PHASE_STEP, lo.SLOT_TURN, lo.STEP_SIZE
_LAST_POS = lo.SEGMENT_END - lo.STEP_SIZE
_TOKENS = lo.TOKENS_AT // 8
_PRE = lo.PRE_AT // 8
_CRC = lo.STEP_CRC_AT // 4
_LOCK_WAIT_S = 0.5
CLOSED, OPEN, ENDING = 0, 1, 2
"""``Step.open``. A step that is being written takes no other in: a signal handler or a second
thread that begins one meanwhile would write into the same buffer."""


class Log:
    """What ``with step() as ...`` gives: only ``log``. It is not the step itself, so that whoever
    keeps it does not look like a ``with`` block that is still under way (see ``Step.stale``)."""

    __slots__ = ("log",)
    log: Callable[..., None]

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied one does nothing."""
        return (Nothing, ())


class Step:
    """The step under way: a context manager, and ``log`` for what is known only later.

    A step whose block raises is not a finished step: it gets no row in ``steps``.
    """

    __slots__ = (
        "_blank", "_buf", "_crc", "_extra", "_pending", "_rec", "_short", "_spool", "_stack",
        "_start",
        "_whole", "acc", "counts", "flags", "floats", "last", "number", "open", "refs", "slot",
        "state", "tokens", "view",
    )  # fmt: skip

    def __init__(self, recorder: Recorder) -> None:
        self._rec = recorder
        self._spool = recorder.spool
        self._stack = recorder.stack
        self._pending = recorder.pending
        self.state = recorder.spool.state
        self._buf = bytearray(lo.STEP_SIZE)
        self.counts = memoryview(self._buf).cast("q")
        self.floats = memoryview(self._buf).cast("d")
        self._crc = memoryview(self._buf).cast("I")
        self._short = memoryview(self._buf)[: lo.STEP_SHORT]
        self._whole = memoryview(self._buf)[: lo.STEP_WHOLE]
        self.acc = memoryview(self._buf)[lo.ACC_AT : lo.STEP_WHOLE].cast("Q")
        empty = (
            lo.STEP,
            0,
            lo.STEP_SIZE,
            0,
            0,
            0,
            0,
            -1,
            0.0,
            lo.ACC_NULL,
            -1,
            -1,
            0.0,
            0,
            0,
            0.0,
            -1,
        )
        lo.STEP_BODY.pack_into(self._buf, 0, *empty)
        lo.ACC.pack_into(self._buf, lo.ACC_AT, *[lo.ACC_NULL] * len(self.acc))
        self._blank = bytearray(self._buf)
        self._start = self.number = self.flags = self.last = 0
        self.slot = lo.SLOT_WORD
        self.tokens: int | None = None
        self.open = CLOSED
        self._extra = False
        self.refs = 0
        self.view = Log()
        self.view.log = self.log

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied step is one that does nothing."""
        return (Nothing, ())

    # -- the hot path -----------------------------------------------------------------------
    def __enter__(self) -> Log:
        try:
            if self.open:  # another thread was quicker
                say("nested step", "a step inside a step is ignored")
                return self.view
            self.open = OPEN
            self.number = number = self.last + 1
            self.slot = at = self.slot ^ _TURN
            state = self.state
            self._start = now = _now()
            state[at + 1] = number << 16 | _PHASE_STEP
            state[at] = now
        except BaseException as error:  # noqa: BLE001 - guard
            self.open = CLOSED  # nobody ends a step whose begin raised
            self.reset()
            fail("step begin", error)
        return self.view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            end = _now()
            if self.open != OPEN:  # its begin failed, or another thread ended it
                return
            self.open = ENDING
            spool = self._spool
            if kind is not None:
                self._failed(end, kind, trace)
                return
            if self._stack:
                self._rec.unwind()
            spool.busy = True
            try:
                pos = spool.pos
                if self._extra or spool.other or pos > _LAST_POS:
                    written = self._write_slowly(end)
                else:
                    seq = spool.seq
                    buf = self._buf
                    _hot_into(buf, _HOT_AT, seq, self.number, self._start, end)
                    self._crc[_CRC] = crc32(self._short)
                    spool.map[pos : pos + _SIZE] = buf
                    spool.pos = pos + _SIZE
                    spool.seq = seq + 1
                    self.last = self.number  # no call since the copy, so no signal handler either
                    written = True
            finally:
                spool.busy = False
            self.open = CLOSED
            if not written:
                self._dropped(end)
            if self._pending:
                self._rec.flush_pending()
        except BaseException as problem:  # noqa: BLE001 - guard
            self.open = CLOSED
            self.reset()
            fail("step end", problem)

    def stale(self, refs: int) -> bool:
        """Give up an open step that no ``with`` block holds any more; True if it was one.

        A signal handler that raises right at the begin or the end of a step can keep Python
        from ever calling ``__exit__``; all later steps would then pass for nested ones. Only
        the block's reference tells it from a nested step. ``refs``: references counted now.
        """
        if refs != self.refs or self.open != OPEN or self._spool.always:
            return False
        self.open = CLOSED
        self._rec.unwind()
        self.reset()
        return True

    # -- less usual -------------------------------------------------------------------------
    def _write_slowly(self, end: int) -> bool:
        """Write a step with fields beyond the hot ones, or beside another thread."""
        spool, lock = self._spool, self._rec.lock
        locked = False
        if spool.other:
            spool.busy = False  # let the other one finish; the lock keeps the next one out
            locked = not self._rec.mine() and lock.acquire(timeout=_LOCK_WAIT_S)
            if not locked:
                return False
            spool.busy = True
        try:
            if spool.pos > _LAST_POS and not spool.room(lo.STEP_SIZE):
                return False
            return self._write(end)
        finally:
            self.reset()
            if locked:
                lock.release()

    def _write(self, end: int) -> bool:
        spool, buf = self._spool, self._buf
        buf[lo.FLAGS_AT] = self.flags | lo.WHOLE
        pos, seq = spool.pos, spool.seq
        _hot_into(buf, _HOT_AT, seq, self.number, self._start, end)
        self._crc[_CRC] = crc32(self._whole)
        spool.map[pos : pos + _SIZE] = buf
        spool.pos, spool.seq, self.last = pos + _SIZE, seq + 1, self.number
        return True

    def reset(self) -> None:
        """Put back the fields that only some steps have."""
        self._buf[:] = self._blank
        self.tokens = None
        self.flags = 0
        self._extra = self._rec.acc_used

    def extra(self) -> None:
        """The step under way has more than the hot fields."""
        self._extra = True

    def add(self, category: int, ns: int) -> None:
        """Add nanoseconds to an accumulator, whose use makes it 0, not unknown, in later steps."""
        ns = max(ns, 0)  # below 0: a wait began before the span around it, as a generator's can
        have = self.acc[category]
        if have != lo.ACC_NULL:
            self.acc[category] = have + ns
            return
        self.acc[category] = ns
        lo.WORD.pack_into(self._blank, lo.ACC_AT + 8 * category, 0)
        self._rec.acc_used = self._extra = True

    def wait(self, ns: int) -> None:
        """Add to the wait for data before the next step."""
        have = self.counts[_PRE]
        self.counts[_PRE] = ns if have < 0 else have + ns
        self._extra = True

    def _dropped(self, end: int) -> None:
        self._spool.drop()
        self.last = self.number
        self._rec.set_phase(lo.PHASE_LOOP, end)

    def _failed(self, end: int, kind: type[BaseException], trace: TracebackType | None) -> None:
        """Record a step whose block raised: a span, and the first sign of a failure."""
        rec = self._rec
        self.open = CLOSED
        rec.unwind()
        self.reset()
        attrs = {"step": self.number, "exception": kind.__name__}
        span = {"n": "failed_step", "t": self._start, "d": end - self._start}
        rec.append(lo.SPAN, {**span, "s": self.last, "i": False, "a": attrs})
        if issubclass(kind, Exception):
            rec.failure(f"{kind.__name__} in step {self.number}", kind, trace)
        rec.set_phase(lo.PHASE_LOOP, end)

    # -- what the user gives ----------------------------------------------------------------
    def take_tokens(self, tokens: object) -> None:
        """Take the step's tokens; what is no count becomes unknown."""
        count = as_count("tokens", tokens)
        self.counts[_TOKENS] = -1 if count is None else count
        self.tokens = count

    def take(
        self,
        *,
        number: object = None,
        samples: object = None,
        padding: object = None,
        source: object = None,
        committed: object = None,
    ) -> None:
        """Take the rarer things a step can be given, checking each."""
        if number is not None and (count := as_count("number", number, MAX_STEP)) is not None:
            self.last = count - 1
        if samples is not None and (count := as_count("samples", samples)) is not None:
            self.counts[lo.SAMPLES_AT // 8] = count
            self._extra = True
        if padding is not None and (count := as_count("padding", padding)) is not None:
            self.counts[lo.PADDING_AT // 8] = count
            self._extra = True
        if source is not None:
            self._crc[lo.SOURCE_AT // 4] = self._rec.name_id(str(plain(source)))
            self._extra = True
        if committed is not None:
            self._flag("committed", committed, lo.COMMITTED_KNOWN, lo.COMMITTED)

    def log(
        self,
        /,
        *,
        loss: float | None = None,
        grad_norm: float | None = None,
        applied: bool | None = None,
        committed: bool | None = None,
        tokens: int | None = None,
        samples: int | None = None,
        padding: int | None = None,
        source: str | None = None,
        grad_norm_small: float | None = None,
        samples_small: int | None = None,
        **unknown: object,
    ) -> None:
        """Add to the step under way. Numbers must be plain: a tensor is left out, not converted.

        ``applied``: did the update change the weights; ``committed``: was the result committed.
        ``grad_norm_small`` with ``samples_small``: norm of the gradient of a part of the batch and
        that part's samples; with ``grad_norm`` and ``samples`` they give the noise scale.
        """
        try:
            if not self.open:
                say("log", "step.log() outside its step is ignored")
                return
            if loss is not None:
                self._float("loss", loss, lo.LOSS_AT, lo.HAS_LOSS)
            if grad_norm is not None:
                self._float("grad_norm", grad_norm, lo.GRAD_NORM_AT, lo.HAS_GRAD_NORM)
            if grad_norm_small is not None:
                self._small(grad_norm_small, samples_small)
            if applied is not None:
                self._flag("applied", applied, lo.APPLIED_KNOWN, lo.APPLIED)
            if tokens is not None:
                self.take_tokens(tokens)
            if not samples is padding is source is committed is None:
                self.take(samples=samples, padding=padding, source=source, committed=committed)
            if unknown:
                say("log names", f"step.log() does not know {', '.join(sorted(unknown))}")
        except Exception as error:  # noqa: BLE001 - guard
            fail("step log", error)

    def _float(self, what: str, value: object, at: int, known: int) -> None:
        number = value if type(value) is float else as_float(what, value)
        if number is not None:
            self.floats[at // 8] = number
            self.flags |= known
            self._extra = True

    def _small(self, norm: object, samples: object) -> None:
        count = as_count("samples_small", samples)
        if not count:
            say("samples_small", "grad_norm_small is left out: samples_small must come with it")
            return
        self._float("grad_norm_small", norm, lo.GRAD_NORM_SMALL_AT, lo.HAS_SMALL)
        self.counts[lo.SAMPLES_SMALL_AT // 8] = count

    def _flag(self, what: str, value: object, known: int, true: int) -> None:
        truth = as_flag(what, value)
        if truth is not None:
            self.flags = (self.flags & ~(known | true)) | known | (true if truth else 0)
            self._extra = True
