"""What users hand over, made safe: plain numbers and JSON, and never a tensor.

A tensor's ``__int__``, ``__float__`` and ``repr`` can wait for the GPU, so anything that is
not a plain number is refused with one warning, not converted.
"""

from __future__ import annotations

import json
import numbers
import os
import sys
from typing import Any, cast

from badput.guard import foreign, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_COUNT = 1 << 62
MAX_STEP = 1 << 47
"""Limit of step numbers, which share 64 bits with a phase in the state slot."""
SMALL = 1 << 31
"""Limit of what is stored in 32 bits: ranks, stages."""
MAX_PAYLOAD = 32_768
"""Bytes of JSON in one record; what is longer loses its attributes and says so."""
_MAX_DEPTH = 6
_BUDGET = 1 << 18
"""Characters, roughly, that one value may become: lists of lists of lists grow without end."""


def is_tensor(value: object) -> bool:
    """True for a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def as_count(what: str, value: object, limit: int = _MAX_COUNT) -> int | None:
    """``value`` as a count >= 0, or None with one warning if it is none."""
    if value is None:
        return None
    number: int | None = None
    try:
        if isinstance(value, int):  # bool included: True tokens is 1 token
            number = int(value)
        elif isinstance(value, float):
            number = int(value) if value.is_integer() else None
        elif isinstance(value, numbers.Integral) and not is_tensor(value):
            number = int(value)
    except Exception as error:  # the value's own code raised
        if foreign(error):
            raise
    if number is None or not 0 <= number < limit:
        kind = "a tensor" if is_tensor(value) else f"{type(value).__name__}"
        if number is not None:
            kind = "one below 0" if number < 0 else "one that is too large"
        say(f"value {what}", f"{what} wants a whole number >= 0 and got {kind}; it is left out")
        return None
    return number


def as_float(what: str, value: object) -> float | None:
    """``value`` as a float (NaN and infinity are fine), or None with one warning."""
    if value is None:
        return None
    try:
        if isinstance(value, (float, int)) or (
            isinstance(value, numbers.Real) and not is_tensor(value)
        ):
            return float(value)
    except Exception as error:  # too large for a float, or the value's own code raised
        if foreign(error):
            raise
    hint = "use .item()" if is_tensor(value) else "give a float"
    say(f"value {what}", f"{what} wants a plain number and got {type(value).__name__}; {hint}")
    return None


def as_flag(what: str, value: object) -> bool | None:
    """``value`` as True or False, or None with one warning if it is neither."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    say(f"value {what}", f"{what} wants True or False and got {kind.__name__}")
    return None


def plain(value: object) -> Any:
    """``value`` as something JSON can hold. Non-finite floats become text, objects their type."""
    return _plain(value, 0, [_BUDGET])


def _plain(value: object, depth: int, left: list[int]) -> Any:
    left[0] -= 8
    if left[0] <= 0:
        return "..."
    try:
        return _convert(value, depth, left)
    except Exception as error:  # the value's own code raised
        if foreign(error):
            raise
        return f"<{type(value).__name__}>"


def _convert(value: object, depth: int, left: list[int]) -> Any:  # noqa: PLR0911 - one line a type
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        left[0] -= min(len(value), 4000)
        return value[:4000].encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else f"{value:#x}"[:40]
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0 else str(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        items = list(cast("dict[Any, Any]", value).items())[:200]
        return {
            str(_plain(k, _MAX_DEPTH, left)): _plain(v, depth + 1, left)
            for k, v in items
            if left[0] > 0
        }
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple, set, frozenset)):
        inner = list(cast("Iterable[Any]", value))[:1000]
        return [_plain(v, depth + 1, left) for v in inner if left[0] > 0]
    if is_tensor(value):
        return "<Tensor>"
    if isinstance(value, numbers.Integral):
        return _plain(int(value), depth, left)
    if isinstance(value, numbers.Real):
        return _plain(float(value), depth, left)
    if isinstance(value, os.PathLike):
        return _plain(os.fsdecode(cast("os.PathLike[str]", value)), depth, left)
    return f"<{type(value).__name__}>"


def whole_path(path: object) -> object:
    """A checkpoint's path as an absolute one, so that save and load tell the same; URLs stay."""
    if isinstance(path, (str, bytes, os.PathLike)):
        text = os.fsdecode(cast("str | bytes | os.PathLike[str]", path))
        return text if "://" in text or not text else os.path.abspath(text)  # noqa: PTH100
    return path


def to_json(payload: dict[str, Any]) -> bytes:
    """``payload`` as JSON bytes of at most MAX_PAYLOAD; only small values of ``a`` if too long."""
    data = json.dumps(plain(payload), separators=(",", ":"), allow_nan=False).encode()
    if len(data) <= MAX_PAYLOAD:
        return data
    attrs: dict[Any, Any] = payload.get("a") or {}
    small = {k: v for k, v in list(attrs.items())[:200] if _is_small(k) and _is_small(v)}
    kept = {**dict(list(small.items())[:20]), "truncated": True}
    return json.dumps(plain({**payload, "a": kept}), separators=(",", ":")).encode()


def _is_small(value: object) -> bool:
    """What a record that is too long keeps: a save's step and durability must not get lost."""
    return (
        value is None
        or type(value) in (bool, int, float)
        or (type(value) is str and len(value) <= 200)
    )
