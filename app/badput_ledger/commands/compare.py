"""``badput compare A B``: the difference of two runs, bucket by bucket."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from badput_ledger.books import open_books
from badput_ledger.commands.common import Parser, add_gaps, guarded, tell_broken
from badput_ledger.compare import Side, compare, side_of
from badput_ledger.price import parse_price
from badput_ledger.price_options import add_arguments, tariff_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXAMPLES = """\
examples:
  badput compare runs/before runs/after
  badput compare runs/h100 runs/a100 --price-a 3.10 --price-b 1.40
  badput compare runs/before runs/after --format md | gh issue comment 12 -F -

B - A: what is negative got smaller from A to B. The rows sum to the total.
Exit codes: 0 compared, 2 not comparable or not readable."""


def main(argv: Sequence[str]) -> int:
    """Print the comparison. Exit 2 if the runs cannot be compared or parts were skipped."""
    parser = Parser(
        "badput compare",
        "Compare two runs bucket by bucket: hours, money, and both for a kept token.",
        _EXAMPLES,
    )
    parser.add_argument("a", metavar="A", help="folder of the first run")
    parser.add_argument("b", metavar="B", help="folder of the second run")
    parser.add_argument("--format", choices=("text", "json", "md"), default="text")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("--price", metavar="X", help="money per GPU-hour, for both runs")
    parser.add_argument("--price-a", metavar="X", help="money per GPU-hour of A")
    parser.add_argument("--price-b", metavar="X", help="money per GPU-hour of B")
    parser.add_argument("--currency", default="USD", metavar="C")
    parser.add_argument(
        "--so-far", action="store_true", help="compare runs that may still be going as they stand"
    )
    add_arguments(parser)
    add_gaps(parser)
    args = parser.parse_intermixed_args(argv)

    def work() -> int:
        tariff = tariff_of(args)
        sides: list[Side] = []
        told = 0
        prices = (args.price_a or args.price, args.price_b or args.price)
        for label, path, said in zip("AB", (args.a, args.b), prices, strict=True):
            price = None if said is None else parse_price(said)
            with open_books(
                path, price=price, currency=args.currency, gaps=args.gaps, tariff=tariff
            ) as books:
                sides.append(side_of(label, books))
                told = max(told, tell_broken("compare", books))
        found = compare(sides[0], sides[1], so_far=args.so_far)
        if args.json or args.format == "json":
            json.dump(found, sys.stdout, indent=1, allow_nan=False)
            print()
        else:
            from badput_ledger import compare_words as words

            text = words.render_markdown if args.format == "md" else words.render_text
            print(text(found), end="")
        return told

    return guarded("compare", work)
