"""A dated price table: the user's TOML file of prices by GPU type, purchase kind and time.

Nothing here knows a price; docs/prices.example.toml shows the form with made-up numbers.
"""

from __future__ import annotations

import fnmatch
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.clock import iso
from badput_ledger.errors import BooksError
from badput_ledger.price import Rate, check_price, is_currency

if TYPE_CHECKING:
    import os

PURCHASES = ("on-demand", "spot", "reserved")
_TOP = {"currency", "purchase", "price", "energy"}
_ENTRY = {"gpu", "purchase", "per_gpu_hour", "currency", "from", "to", "note"}
_ENERGY = {"co2_g_per_kwh", "price_per_kwh"}
_WILD = "*?["


@dataclass(frozen=True, slots=True)
class PriceTable:
    """The rates of a file, and which purchase kind this run was."""

    rates: tuple[Rate, ...]
    path: str
    default_currency: str
    purchase: str | None = None
    """The kind that the user says this run was; None: whatever the table has, if it has one."""
    co2_g_per_kwh: Decimal | None = None
    price_per_kwh: Decimal | None = None

    @property
    def currency(self) -> str:
        """The currency of every rate: a table with two is refused when it is read."""
        return self.rates[0].currency if self.rates else self.default_currency

    @property
    def source(self) -> str | None:
        """The file."""
        return self.path

    def changes(self) -> list[int]:
        """Every instant at which a rate begins or ends."""
        ends = {e for r in self.rates for e in (r.from_ns, r.to_ns) if e is not None}
        return sorted(ends)

    def rate(self, gpu_type: str | None, at_ns: int) -> Rate | str:
        """The most specific rate that holds. Raises BooksError if two are equally specific."""
        typed = [r for r in self.rates if _matches(r.gpu, gpu_type)]
        what = gpu_type or "a GPU of unknown type"
        if not typed:
            return f"{self.path} has no price for {what}"
        wanted = [r for r in typed if self.purchase is None or r.purchase == self.purchase]
        if not wanted:
            return f"{self.path} has no {self.purchase} price for {what}"
        now = [r for r in wanted if _holds(r, at_ns)]
        if not now:
            return f"{self.path} has no price for {what} at {iso(at_ns)}"
        most = max(_specific(r.gpu) for r in now)
        best = [r for r in now if _specific(r.gpu) == most]
        kinds = sorted({str(r.purchase) for r in best})
        if len(kinds) > 1:
            return (
                f"{self.path} has {' and '.join(kinds)} prices for {what}: "
                "say with --purchase which this run paid"
            )
        if len(best) > 1:
            raise BooksError(
                f"{self.path}: gpu = {best[0].gpu!r} and gpu = {best[1].gpu!r} both give a price "
                f"for {what} at {iso(at_ns)}; make one of them more specific."
            )
        return best[0]


def _matches(pattern: str, gpu_type: str | None) -> bool:
    if gpu_type is None:
        return pattern == "*"
    return fnmatch.fnmatchcase(gpu_type.lower(), pattern.lower())


def _specific(pattern: str) -> tuple[bool, int]:
    """A plain name beats a glob, and of two globs the one that says more."""
    return not any(c in pattern for c in _WILD), sum(c not in _WILD for c in pattern)


def _holds(rate: Rate, at_ns: int) -> bool:
    begun = rate.from_ns is None or rate.from_ns <= at_ns
    return begun and (rate.to_ns is None or at_ns < rate.to_ns)


def read_table(
    path: str | os.PathLike[str], *, purchase: str | None = None, currency: str = "USD"
) -> PriceTable:
    """The price table in the TOML file ``path``; ``purchase`` is the kind that this run paid.

    Raises BooksError with one sentence for a file that cannot be used.
    """
    name = str(path)
    try:
        with Path(path).open("rb") as file:
            # numbers as decimals: 2.1 in the file is 2.1 in the books
            said = tomllib.load(file, parse_float=Decimal)
    except OSError as error:
        raise BooksError(f"the price table {name} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BooksError(f"the price table {name} is not TOML: {error}.") from None
    _only(said, _TOP, name, "the file")
    entries = said.get("price", [])
    if not isinstance(entries, list) or not entries:
        raise BooksError(f"the price table {name} has no [[price]] entry.")
    general = said.get("currency", currency)
    rates = tuple(
        _rate(entry, general, f"{name}, entry {number} of [[price]]")
        for number, entry in enumerate(cast("list[Any]", entries), 1)
    )
    _refuse_two_currencies(rates, name)
    _refuse_overlaps(rates, name)
    chosen = purchase or said.get("purchase")
    if chosen is not None and chosen not in PURCHASES:
        raise BooksError(f"{name}: purchase is {chosen!r}; it is one of {', '.join(PURCHASES)}.")
    energy = said.get("energy", {})
    if not isinstance(energy, dict):
        raise BooksError(f"{name}: [energy] is a table with {' and '.join(sorted(_ENERGY))}.")
    energy = cast("dict[str, Any]", energy)
    _only(energy, _ENERGY, name, "[energy]")
    co2, per_kwh = (
        None if key not in energy else parse_factor(energy[key], f"{name}: {key}")
        for key in ("co2_g_per_kwh", "price_per_kwh")
    )
    return PriceTable(rates, name, currency, chosen, co2, per_kwh)


def parse_factor(value: object, what: str) -> Decimal:
    """A number of at least 0, such as grams of CO2 a kWh. Raises BooksError naming ``what``."""
    try:
        # true and false are no numbers, though Python counts with them
        return check_price(Decimal("nan" if isinstance(value, bool) else str(value)))
    except (BooksError, ArithmeticError):
        raise BooksError(f"{what} is {str(value)!r}; give a number from 0.") from None


def _rate(entry: object, general: object, where: str) -> Rate:
    if not isinstance(entry, dict):
        raise BooksError(f"{where} is not a table.")
    said = cast("dict[str, Any]", entry)
    _only(said, _ENTRY, where, "it")
    gpu, purchase = said.get("gpu"), said.get("purchase")
    if not isinstance(gpu, str) or not gpu:
        raise BooksError(
            f'{where}: gpu is missing; give a GPU type or glob such as "NVIDIA H100*".'
        )
    if purchase not in PURCHASES:
        raise BooksError(f"{where}: purchase is {purchase!r}; it is one of {', '.join(PURCHASES)}.")
    if "per_gpu_hour" not in said:
        raise BooksError(f"{where}: per_gpu_hour is missing; give money per GPU-hour such as 2.50.")
    amount = parse_factor(said["per_gpu_hour"], f"{where}: per_gpu_hour")
    currency = said.get("currency", general)
    if not is_currency(currency):
        raise BooksError(f"{where}: currency is {currency!r}; give a short name such as USD.")
    begin, end = (_instant(said.get(key), f"{where}: {key}") for key in ("from", "to"))
    if begin is not None and end is not None and begin >= end:
        raise BooksError(f"{where}: from lies after to; `to` is the first day without this price.")
    note = said.get("note")
    return Rate(amount, currency, gpu, purchase, begin, end, None if note is None else str(note))


def _only(said: dict[str, Any], known: set[str], where: str, what: str) -> None:
    unknown = sorted(set(said) - known)
    if unknown:
        raise BooksError(
            f"{where}: {what} has {', '.join(unknown)}, which no price table has; "
            f"known are {', '.join(sorted(known))}."
        )


def _instant(value: object, what: str) -> int | None:
    """A TOML date or time as ns since the epoch; a day begins at midnight UTC."""
    if value is None:
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day, tzinfo=UTC)
    else:
        raise BooksError(f"{what} is {value!r}; give a date such as 2026-01-31, without quotes.")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds
    return seconds * 1_000_000_000 + since.microseconds * 1000


def _refuse_two_currencies(rates: tuple[Rate, ...], name: str) -> None:
    found = sorted({r.currency for r in rates})
    if len(found) > 1:
        raise BooksError(
            f"the price table {name} mixes {' and '.join(found)}, which cannot be added; "
            "write one file for each currency."
        )


def _refuse_overlaps(rates: tuple[Rate, ...], name: str) -> None:
    groups: dict[tuple[str, str | None], list[Rate]] = {}
    for rate in rates:
        groups.setdefault((rate.gpu.lower(), rate.purchase), []).append(rate)
    for (gpu, purchase), group in groups.items():
        group.sort(key=lambda r: -1 if r.from_ns is None else r.from_ns)
        for before, after in pairwise(group):
            if before.to_ns is None or after.from_ns is None or before.to_ns > after.from_ns:
                raise BooksError(
                    f"the price table {name} has two {purchase} prices for {gpu!r} "
                    f"at {iso(after.from_ns or 0)}; let the earlier end where the later begins."
                )
