"""The price of a GPU-hour: from the caller or from the run's own configuration."""

from __future__ import annotations

from dataclasses import dataclass

from badput_ledger.errors import BooksError

GREATEST_PRICE = 1e9
"""Money per GPU-hour; more is a slip of the hand, in any currency."""
HOUR_NS = 3_600_000_000_000
LONGEST_CURRENCY = 12
"""Characters of a currency; anything longer is not one."""


@dataclass(frozen=True, slots=True)
class Price:
    """Money for one place for one hour; ``per_hour`` None makes every dollar NULL."""

    per_hour: float | None
    currency: str
    source: str | None

    def of(self, ns: int) -> float | None:
        """Cost of ``ns`` billed nanoseconds of one place."""
        return None if self.per_hour is None else ns / HOUR_NS * self.per_hour


def parse_price(text: str) -> float:
    """A price given as text. Raises BooksError unless it is a number that can be one."""
    try:
        value = float(text)
    except ValueError:
        raise BooksError(
            f"the price {text!r} is not a number; give money per GPU-hour such as 2.50."
        ) from None
    return check_price(value)


def check_price(value: float) -> float:
    """``value`` if it can be a price. Raises BooksError otherwise."""
    if not 0 <= value <= GREATEST_PRICE:  # neither is nan
        raise BooksError(
            f"the price {value} cannot be; give money per GPU-hour, "
            f"from 0 to {GREATEST_PRICE:,.0f}."
        )
    return value


def choose_price(given: float | None, config: dict[str, object], currency: str) -> Price:
    """The caller's price, else the run's; raises BooksError for a bad given one.

    A bad price or currency in the run's configuration counts as unknown.
    """
    if given is not None:
        return Price(check_price(given), currency, "given")
    said = config.get("price_per_gpu_hour")
    if isinstance(said, bool) or not isinstance(said, int | float):
        return Price(None, currency, None)
    # Not isfinite: a whole number in JSON may be too large for a float.
    if not 0 <= said <= GREATEST_PRICE:
        return Price(None, currency, None)
    own = config.get("currency") or currency
    if not (isinstance(own, str) and len(own) <= LONGEST_CURRENCY and own.isprintable()):
        return Price(None, currency, None)  # a price in an unknown unit is no price
    return Price(float(said), own, "run configuration")
