"""``badput gate RUN --min-kept-time 0.9 ...``: an exit code for CI."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.books import open_books
from badput_ledger.commands.common import Parser, add_gaps, guarded, tell_broken
from badput_ledger.errors import BooksError
from badput_ledger.gate import GATES, Bound, judge, leaf_gate, parse_bound, parse_measured
from badput_ledger.price import parse_price
from badput_ledger.price_options import add_arguments, tariff_of
from badput_ledger.taxonomy import COMPUTE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_EXAMPLES = """\
examples:
  badput gate RUN --min-kept-time 0.9 --max-lost 2%
  badput gate RUN --min-goodput 0.8 --measured G.data,G.host
  badput gate RUN --max-leaf G.data=3% --max-leaf E.save=1% --max-incidents 0
  badput gate RUN --price 2.50 --max-cost-per-mtok 0.30 --json

A figure that is not known fails. A run that is still going is judged as it stands.
Exit codes: 0 every bound holds, 1 one does not, 2 bad usage or a run that cannot be read."""


def main(argv: Sequence[str]) -> int:
    """Print a sentence for each bound. Exit 1 if one does not hold."""
    args = _parser().parse_intermixed_args(argv)

    def work() -> int:
        bounds = _bounds(args)
        if not bounds:
            raise BooksError("give at least one bound, such as --min-kept-time 0.9.")
        measured = None if args.measured is None else parse_measured(args.measured)
        price = None if args.price is None else parse_price(args.price)
        tariff = tariff_of(args)
        with open_books(
            args.run, price=price, currency=args.currency, gaps=args.gaps, tariff=tariff
        ) as books:
            report = books.report()
            found = judge(report, bounds, measured=measured, certain=args.certain)
            if args.json:
                print(json.dumps(_finite(found), indent=1, allow_nan=False))
            else:
                from badput_ledger.text import clean

                for check in found["checks"]:
                    print(f"{'ok  ' if check['ok'] else 'FAIL'} {clean(check['sentence'])}")
                    if check["option"] == "--min-goodput" and measured is None:
                        _tell_measured(report)
            told = tell_broken("gate", books)
        return told if found["ok"] else told or 1

    return guarded("gate", work)


def _tell_measured(report: dict[str, Any]) -> None:
    names = ",".join(m for m in report["goodput"]["measured"] if m not in COMPUTE)
    print(f"     (fix what it is measured by, so that less evidence cannot score better: "
          f"--measured {names or 'none'})")  # fmt: skip


def _parser() -> Parser:
    parser = Parser("badput gate", "Hold a run against bounds, for CI.", _EXAMPLES)
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    for gate in GATES:
        what = "at least" if gate.least else "at most"
        unit = {"share": "0..1 or %%", "count": "a number", "money": "money"}[gate.kind]
        text = f"{gate.about}: {what} X ({unit})"
        parser.add_argument(gate.option, metavar="X", help=text, dest=gate.option)
    parser.add_argument(
        "--max-leaf",
        metavar="LEAF=X",
        action="append",
        default=[],
        help="one leaf's share of the time: at most X; may be given again",
    )
    parser.add_argument(
        "--measured",
        metavar="G.data,...",
        help="the leaves that goodput must have been measured by; 'none' for none",
    )
    parser.add_argument(
        "--certain",
        action="store_true",
        help="what passes must pass wherever within its bounds the truth lies",
    )
    parser.add_argument("--price", metavar="X", help="money per GPU-hour, such as 2.50")
    parser.add_argument("--currency", default="USD", metavar="C")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    add_arguments(parser)
    add_gaps(parser)
    return parser


def _bounds(args: argparse.Namespace) -> list[Bound]:
    given = cast("dict[str, str | None]", vars(args))
    found = [
        Bound(gate, parse_bound(gate, text))
        for gate in GATES
        if (text := given[gate.option]) is not None
    ]
    for said in cast("list[str]", args.max_leaf):
        name, equals, text = said.partition("=")
        if not equals:
            raise BooksError(f"--max-leaf {said}: give LEAF=X, such as G.data=3%.")
        gate = leaf_gate(name.strip())
        found.append(Bound(gate, parse_bound(gate, text)))
    return found


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """Without the infinite bound of a figure that nothing limits: JSON has no word for it."""
    for check in found["checks"]:
        if check["hi"] is not None and not math.isfinite(check["hi"]):
            check["hi"] = None
    return found
