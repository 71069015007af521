"""The price of a GPU-hour: one number for the whole run, or what a price table says.

Both answer the same question, what one place of a GPU type cost an hour at an instant, with
a rate or with the reason why there is none. Amounts are exact decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Protocol

from badput_ledger.errors import BooksError

GREATEST_PRICE = 1_000_000_000
"""Money per GPU-hour; more is a slip of the hand, in any currency."""
LONGEST_CURRENCY = 12
"""Characters of a currency; anything longer is not one."""
NO_PRICE = "no price is known: give --price or --prices"


@dataclass(frozen=True, slots=True)
class Rate:
    """What one place cost for one hour, and for which places and instants that holds."""

    per_hour: Decimal
    currency: str
    gpu: str = "*"
    """Glob of GPU types."""
    purchase: str | None = None
    """on-demand, spot or reserved; None where nothing says so."""
    from_ns: int | None = None
    """First instant (ns since the epoch); None: since ever."""
    to_ns: int | None = None
    """First instant at which it holds no more; None: it still does."""
    note: str | None = None


class Pricing(Protocol):
    """What a price table and a single price have in common."""

    @property
    def currency(self) -> str:
        """The one currency of every amount."""
        ...

    @property
    def source(self) -> str | None:
        """Who says so; None without a price."""
        ...

    def rate(self, gpu_type: str | None, at_ns: int) -> Rate | str:
        """The rate of a place at an instant, or why there is none."""
        ...

    def changes(self) -> list[int]:
        """Instants at which a rate may change, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Price:
    """Money for one place for one hour; ``per_hour`` None makes every dollar NULL."""

    per_hour: Decimal | None
    currency: str
    source: str | None

    def rate(self, gpu_type: str | None, at_ns: int) -> Rate | str:
        """The same for every place and instant."""
        del gpu_type, at_ns
        return NO_PRICE if self.per_hour is None else Rate(self.per_hour, self.currency)

    def changes(self) -> list[int]:
        """None: one price holds for ever."""
        return []


def exact(value: float | Decimal) -> Decimal:
    """A number as the decimal that a person wrote: 2.1 is 2.1, not its nearest double."""
    return value if isinstance(value, Decimal) else Decimal(str(value))


def parse_price(text: str) -> Decimal:
    """A price given as text. Raises BooksError unless it is a number that can be one."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        raise BooksError(
            f"the price {text!r} is not a number; give money per GPU-hour such as 2.50."
        ) from None
    return check_price(value)


def check_price(value: float | Decimal) -> Decimal:
    """``value`` if it can be a price. Raises BooksError otherwise."""
    price = exact(value)
    if price.is_nan() or not 0 <= price <= GREATEST_PRICE:
        raise BooksError(
            f"the price {value} cannot be; give money per GPU-hour, "
            f"from 0 to {GREATEST_PRICE:,.0f}."
        )
    return price


def is_currency(text: object) -> bool:
    """Can this be the name of a currency?"""
    return isinstance(text, str) and 0 < len(text) <= LONGEST_CURRENCY and text.isprintable()


def choose_price(given: float | Decimal | None, config: dict[str, object], currency: str) -> Price:
    """The caller's price, else the run's; raises BooksError for a bad given one.

    A bad price or currency in the run's configuration counts as unknown. So does every price
    where a place is a node of unknown GPUs: money per GPU-hour says nothing of it.
    """
    if config.get("place") == "node":
        return Price(None, currency, None)
    if given is not None:
        return Price(check_price(given), currency, "given")
    said = config.get("price_per_gpu_hour")
    if isinstance(said, bool) or not isinstance(said, int | float):
        return Price(None, currency, None)
    # Not isfinite: a whole number in JSON may be too large for a float.
    if not 0 <= said <= GREATEST_PRICE:
        return Price(None, currency, None)
    own = config.get("currency") or currency
    if not (isinstance(own, str) and is_currency(own)):
        return Price(None, currency, None)  # a price in an unknown unit is no price
    return Price(exact(said), own, "run configuration")
