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

from badput.guard import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_COUNT = 1 << 62
SMALL = 1 << 31
"""Limit of what is stored in 32 bits: ranks, stages."""
MAX_PAYLOAD = 32_768
"""Bytes of JSON in one record; what is longer loses its attributes and says so."""
_MAX_DEPTH = 6


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
    if isinstance(value, int):  # bool included: True tokens is 1 token
        number = value
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    elif isinstance(value, numbers.Integral) and not is_tensor(value):
        number = int(value)
    if number is None or not 0 <= number < limit:
        kind = "a tensor" if is_tensor(value) else f"{type(value).__name__}"
        say(f"value {what}", f"{what} wants a whole number >= 0 and got {kind}; it is left out")
        return None
    return int(number)


def as_float(what: str, value: object) -> float | None:
    """``value`` as a float (NaN and infinity are fine), or None with one warning."""
    if value is None:
        return None
    if isinstance(value, (float, int)) or (
        isinstance(value, numbers.Real) and not is_tensor(value)
    ):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return None
    hint = "use .item()" if is_tensor(value) else "give a float"
    say(f"value {what}", f"{what} wants a plain number and got {type(value).__name__}; {hint}")
    return None


def as_flag(what: str, value: object) -> bool | None:
    """``value`` as True or False, or None with one warning if it is neither."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    say(f"value {what}", f"{what} wants True or False and got {type(value).__name__}")
    return None


def plain(value: object, depth: int = 0) -> Any:  # noqa: PLR0911 - one line a type
    """``value`` as something JSON can hold. Non-finite floats become text, objects their type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:4000].encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, int):
        return int(value) if -(1 << 63) <= value < 1 << 63 else f"{value:#x}"[:40]
    if isinstance(value, float):
        value = float(value)
        return value if value - value == 0 else str(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        items = list(cast("dict[Any, Any]", value).items())[:200]
        return {str(plain(k, _MAX_DEPTH)): plain(v, depth + 1) for k, v in items}
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v, depth + 1) for v in list(cast("Iterable[Any]", value))[:1000]]
    if is_tensor(value):
        return "<Tensor>"
    if isinstance(value, numbers.Integral):
        return plain(int(value))
    if isinstance(value, numbers.Real):
        return plain(float(value))
    if isinstance(value, os.PathLike):
        return plain(os.fsdecode(cast("os.PathLike[str]", value)))
    return f"<{type(value).__name__}>"


def to_json(payload: dict[str, Any]) -> bytes:
    """``payload`` as JSON bytes of at most MAX_PAYLOAD; key ``a`` is given up if too long."""
    data = json.dumps(plain(payload), separators=(",", ":"), allow_nan=False).encode()
    if len(data) <= MAX_PAYLOAD:
        return data
    short = {k: v for k, v in payload.items() if k != "a"}
    kept: dict[str, Any] = {"truncated": True}
    step = payload.get("a", {}).get("step")
    if isinstance(step, int):
        kept["step"] = step
    return json.dumps(plain({**short, "a": kept}), separators=(",", ":")).encode()
