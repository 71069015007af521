"""What money depends on besides the price of an hour, and the options that say it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from badput_ledger.errors import BooksError
from badput_ledger.price_table import PURCHASES, PriceTable, parse_factor, read_table

if TYPE_CHECKING:
    import argparse
    from decimal import Decimal

PRICES = "BADPUT_PRICES"
"""Environment variable that names a price table."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """A price table, what the run bought, and what a kilowatt-hour means."""

    prices: str | os.PathLike[str] | None = None
    """TOML file; None: the one that BADPUT_PRICES names."""
    purchase: str | None = None
    co2_g_per_kwh: Decimal | None = None
    price_per_kwh: Decimal | None = None

    def table(self, price: float | Decimal | None, currency: str) -> PriceTable | None:
        """The price table, if there is one and no single price overrides the environment's.

        Raises BooksError for a table that cannot be used, and for two prices at once.
        """
        if price is not None and self.prices is not None:
            raise BooksError("give either --price or --prices, not both.")
        path = self.prices if self.prices is not None else os.environ.get(PRICES)
        if price is not None or not path:
            return None
        return read_table(path, purchase=self.purchase, currency=currency)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that prices a run, beside --price and --currency."""
    parser.add_argument(
        "--prices",
        metavar="FILE",
        help=f"price table, TOML: prices by GPU type, purchase and date (default: ${PRICES}; "
        "docs/cost.md)",
    )
    parser.add_argument(
        "--purchase", choices=PURCHASES, help="which of the table's prices this run paid"
    )
    parser.add_argument(
        "--co2", metavar="G", help="grams of CO2 that a kWh of your grid stands for"
    )
    parser.add_argument("--kwh-price", metavar="X", help="price of a kWh, in the same currency")


def tariff_of(args: argparse.Namespace) -> Tariff:
    """The tariff of parsed options. Raises BooksError for a number that cannot be one."""
    return Tariff(
        args.prices,
        args.purchase,
        None if args.co2 is None else parse_factor(args.co2, "--co2"),
        None if args.kwh_price is None else parse_factor(args.kwh_price, "--kwh-price"),
    )
