"""The step: the hot path. One object is used again for every step of a process.

``badput.step`` begins a step: it writes number and time to the step's state slot. The end
writes one record of six words. A step that has more than tokens takes the slow way: a wait for
data makes it a record of 40 bytes, anything else, gathered in a buffer, one of 256.

Two threads never write at once: the training thread sets ``open`` to ENDING and looks at
``spool.other``, every other writer raises ``other`` under a lock and looks at ``open``.
Whatever order the interpreter runs them in, at least one sees the other and steps back. That
rests on the interpreter lock; without one ``other`` stays raised and every step takes the lock.

What a step costs a training loop is the number of cache lines that it touches, of code as of
data: by the time that it ends they have gone to the model's own work. Hence slots, and six stores
by the same function that the state slot needs anyway, in place of struct and zlib.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from zlib import crc32

from badput import Nothing, clock
from badput import layout as lo
from badput.guard import fail, runs_elsewhere, say
from badput.values import MAX_STEP, as_count, as_flag, as_float, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from badput.recorder import Recorder

_now = clock.mono
_body, _into = lo.SHORT_BODY.pack, lo.SHORT_WRITE.pack_into
_hot_into, _whole_into = lo.STEP_HOT.pack_into, lo.STEP_WRITE.pack_into
_SHORT, _PLAIN, _LAST_POS = lo.SHORT_SIZE, lo.PLAIN_SIZE, lo.SEGMENT_END - lo.PLAIN_SIZE
_UNKNOWN = lo.SHORT_UNKNOWN
_TOKENS, _PRE = lo.TOKENS_AT // 8, lo.PRE_AT // 8
_LOCK_WAIT_S = 0.5
_NEVER = object()
"""Tokens that a short record cannot hold: no later step's are the same, so each is taken anew."""
CLOSED, OPEN, MORE, ENDING, WAITING = 0, 1, 2, 3, 4
"""``Step.open``. MORE: open, and the end takes the slow way. A step that is being written takes
no other in: a signal handler or a second thread that begins one meanwhile would write into the
same place. WAITING: for another thread to finish writing."""


class Log:
    """What ``with step() as ...`` gives: only ``log``. It is not the step itself, so that whoever
    keeps it does not look like a ``with`` block that is still under way (see ``Step.stale``)."""

    __slots__ = ("log",)
    log: Callable[..., None]

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied one does nothing."""
        return (Nothing, ())


def make_step(recorder: Recorder) -> Step:
    """The step object of ``recorder``, of a class of its own."""
    view = Log()
    # A C function, where a method would cost a frame: ``next`` of an endless row of views. Called
    # without the step, as ``with`` does, or with it, as ExitStack does, when it is next's default.
    enter = staticmethod(partial(next, repeat(view)))
    step: Step = type("Step", (Step,), {"__slots__": (), "__enter__": enter})(recorder)
    view.log = step.log
    return step


class Step:
    """The step under way: a context manager, and ``log`` for what is known only later.

    A step whose block raises is not a finished step: it gets no row in ``steps``.
    """

    __slots__ = (
        "_blank", "_buf", "_covered", "_more", "_pending", "_rec", "_spool", "_words", "acc",
        "count", "counts", "flags", "floats", "head", "last", "normal", "number", "open", "pre",
        "refs", "seed", "slot", "start", "state", "tokens",
    )  # fmt: skip

    def __init__(self, recorder: Recorder) -> None:
        self._rec = recorder
        self._spool = recorder.spool
        self._pending = recorder.pending
        self.state = recorder.spool.state
        self._buf = bytearray(lo.STEP_SIZE)
        self.counts = memoryview(self._buf).cast("q")
        self.floats = memoryview(self._buf).cast("d")
        self._words = memoryview(self._buf).cast("I")
        self._covered = memoryview(self._buf)[: lo.STEP_WHOLE]
        self.acc = memoryview(self._buf)[lo.ACC_AT : lo.STEP_WHOLE].cast("Q")
        empty = (lo.STEP, lo.WHOLE, lo.STEP_SIZE, 0, 0, 0, 0, -1, 0.0, lo.ACC_NULL, -1, -1, 0.0, 0,
                 0, 0.0, -1)  # fmt: skip
        lo.STEP_BODY.pack_into(self._buf, 0, *empty)
        lo.ACC.pack_into(self._buf, lo.ACC_AT, *[lo.ACC_NULL] * len(self.acc))
        self._blank = bytearray(self._buf)
        self.start = self.number = self.flags = self.last = self.refs = 0
        self.slot = lo.SLOT_WORD
        self.open, self.normal = CLOSED, OPEN
        self._more = False
        self.pre = -1
        self.take_tokens(None)

    def __reduce__(self) -> str | tuple[object, ...]:
        """A pickled or copied step is one that does nothing."""
        return (Nothing, ())

    # -- the hot path: the begin is badput.step ----------------------------------------------
    if TYPE_CHECKING:

        def __enter__(self) -> Log: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = 0
        try:
            end = _now()
            if kind is not None or self.open != OPEN:
                self._end(end, kind, trace)
                return
            self.open = ENDING
            spool = self._spool
            pos = spool.pos
            if spool.other or pos > _LAST_POS:
                self._finish(end)
                return
            # Nothing from here to the new position is a call: no thread, no signal handler between.
            words, at = spool.words, pos >> 3
            words[at + 1] = start = self.start
            words[at + 2] = end
            words[at + 3] = number = self.number
            words[at + 4] = seq = spool.seq
            words[at + 5] = self.seed + start + end + number
            words[at] = self.head  # last, see layout.PLAIN
            spool.pos = pos + _PLAIN
            spool.seq = seq + 1
            self.last = number
            self.open = CLOSED
            if self._pending:
                self._rec.flush_pending()
        except ValueError:  # a sum beyond 64 bits
            self._beyond(end)
        except BaseException as problem:  # noqa: BLE001 - guard
            self.give_up("step end", problem)

    def give_up(self, what: str, problem: BaseException) -> None:
        """Begin or end of a step failed: it is not recorded, the next one is."""
        try:
            self.open = CLOSED
            self.reset()
            fail(what, problem)
        finally:
            del problem  # or it, its traceback and this frame hold each other, and the step, alive

    def stale(self, refs: int) -> bool:
        """Give up an open step that no ``with`` block holds any more; True if it was one.

        A signal handler that raises right at the begin or the end of a step can keep Python
        from ever calling ``__exit__``; all later steps would then pass for nested ones. Only
        the block's reference tells it from a nested step. ``refs``: references counted now.
        """
        if refs != self.refs or self._spool.always:
            return False
        # Counts can agree by chance, and two threads must never write at once.
        if self.open >= ENDING and runs_elsewhere(__file__):
            return False
        self.open = CLOSED
        self._rec.unwind(0)
        self.reset()
        return True

    def _end(self, end: int, kind: type[BaseException] | None, trace: TracebackType | None) -> None:
        if self.open not in (OPEN, MORE):  # its begin failed, or another thread ended it
            return
        self.open = ENDING
        if kind is not None:
            self._failed(end, kind, trace)
            return
        self._rec.unwind(end)
        self._finish(end)

    def _beyond(self, end: int) -> None:
        try:
            self._more = True
            self._finish(end)
        except BaseException as problem:  # noqa: BLE001 - guard
            self.give_up("step end", problem)

    def _finish(self, end: int) -> None:
        """Write the step, with fields beyond the hot ones or beside another thread."""
        written = self._write_beside(end)
        self.open = CLOSED
        if not written:
            self._dropped(end)
        self._rec.step_ended()

    def _write_beside(self, end: int) -> bool:
        spool, lock = self._spool, self._rec.lock
        locked = False
        if spool.other:
            self.open = WAITING  # let the other one finish; the lock keeps the next one out
            locked = not self._rec.mine() and lock.acquire(timeout=_LOCK_WAIT_S)
            self.open = ENDING
            if not locked:
                self.reset()
                return False
        try:
            if self._more or max(self.number, self.count, self.pre) >= _UNKNOWN:
                return spool.room(lo.STEP_SIZE) and self._write(end)
            return spool.room(_SHORT) and self._write_short(end)
        finally:
            self.reset()
            if locked:
                lock.release()

    def _write_short(self, end: int) -> bool:
        spool, seq, pos = self._spool, self._spool.seq, self._spool.pos
        tokens, pre = (_UNKNOWN if n < 0 else n for n in (self.count, self.pre))
        head = lo.SHORT_HEAD.pack(lo.STEP_SHORT, 0, tokens, pre)
        body = _body(seq & 0xFFFFFFFF, self.start, end, self.number)
        _into(spool.map, pos, head, body, crc32(body, crc32(head)))
        spool.pos, spool.seq, self.last = pos + _SHORT, seq + 1, self.number
        return True

    def _write(self, end: int) -> bool:
        spool, buf = self._spool, self._buf
        buf[lo.FLAGS_AT] = self.flags | lo.WHOLE
        self.counts[_TOKENS] = self.count
        self.counts[_PRE] = self.pre
        pos, seq = spool.pos, spool.seq
        _hot_into(buf, lo.STEP_HOT_AT, seq, self.number, self.start, end)
        body = bytes(self._covered)  # a signal handler may still add to the buffer
        _whole_into(spool.map, pos, body, crc32(body))
        spool.pos, spool.seq, self.last = pos + lo.STEP_SIZE, seq + 1, self.number
        return True

    def reset(self) -> None:
        """Put back the fields that only some steps have."""
        self._buf[:] = self._blank
        self.flags = 0
        self.pre = -1
        self._more = self._rec.acc_used
        self.normal = MORE if self._more else OPEN

    def extra(self) -> None:
        """The step under way, or else the next one, has more than the hot fields."""
        self._more = True
        self.slow()

    def slow(self) -> None:
        """The end of the step under way, or else of the next one, takes the slow way."""
        if self.open == OPEN:
            self.open = MORE
        elif not self.open:
            self.normal = MORE

    def add(self, category: int, ns: int) -> None:
        """Add nanoseconds to an accumulator, whose use makes it 0, not unknown, in later steps."""
        ns = max(ns, 0)  # below 0: a wait began before the span around it, as a generator's can
        have = self.acc[category]
        if have != lo.ACC_NULL:
            self.acc[category] = have + ns
            return
        self.acc[category] = ns
        lo.WORD.pack_into(self._blank, lo.ACC_AT + 8 * category, 0)
        self._rec.acc_used = True
        self.extra()

    def wait(self, ns: int) -> None:
        """Add to the wait for data before the next step."""
        self.pre = ns if self.pre < 0 else self.pre + ns
        self.slow()

    def _dropped(self, end: int) -> None:
        self._spool.drop()
        self.last = self.number
        self._rec.set_phase(lo.PHASE_LOOP, end)

    def _failed(self, end: int, kind: type[BaseException], trace: TracebackType | None) -> None:
        """Record a step whose block raised: a span, and the first sign of a failure."""
        rec = self._rec
        rec.unwind(end)
        self.open = CLOSED
        self.reset()
        attrs = {"step": self.number, "exception": kind.__name__}
        span = {"n": "failed_step", "t": self.start, "d": end - self.start}
        rec.append(lo.SPAN, {**span, "s": self.last, "i": False, "a": attrs})
        if issubclass(kind, Exception):
            rec.failure(f"{kind.__name__} in step {self.number}", kind, trace)
        rec.set_phase(lo.PHASE_LOOP, end)
        rec.step_ended()

    # -- what the user gives ----------------------------------------------------------------
    def take_tokens(self, tokens: object) -> None:
        """Take the step's tokens; what is no count becomes unknown."""
        count = as_count("tokens", tokens)
        self.tokens: object = count
        self.count = -1 if count is None else count
        if count is None or count >= _UNKNOWN:
            self.tokens, count = None if count is None else _NEVER, _UNKNOWN
        self.head = lo.STEP_PLAIN | count << 32
        self.seed = lo.PLAIN_SEED + count
        if self.count >= _UNKNOWN:
            self.slow()

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
            self.extra()
        if padding is not None and (count := as_count("padding", padding)) is not None:
            self.counts[lo.PADDING_AT // 8] = count
            self.extra()
        if source is not None:
            self._words[lo.SOURCE_AT // 4] = self._rec.name_id(str(plain(source)))
            self.extra()
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
        that part's samples; with ``grad_norm`` and ``samples``: the noise scale.
        """
        try:
            if self.open not in (OPEN, MORE):
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
            self.extra()

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
            self.extra()
