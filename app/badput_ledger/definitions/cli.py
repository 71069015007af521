"""The command `badput definitions`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from badput_ledger.books import open_books
from badput_ledger.commands.common import add_gaps, guarded, tell_broken
from badput_ledger.definitions import ORDER, results, summarize
from badput_ledger.errors import BooksError
from badput_ledger.text import clean
from badput_ledger.units import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from badput_ledger.definitions.result import Input, Result

_DESCRIPTION = """\
Computes every published definition of goodput, effective training time and utilisation from
the same books, and shows leaf by leaf why each differs from kept time, (G + H) / total.
docs/definitions.md compares them."""
_EPILOG = """\
examples:
  badput definitions RUN
  badput definitions RUN --only MFU --peak-tflops 989.4
  badput definitions RUN --json"""


def definitions_main(argv: Sequence[str]) -> int:
    """Print the definitions. Exit 2 if the input is bad or parts of it were skipped."""
    args = _parser().parse_intermixed_args(argv)

    def work() -> int:
        with open_books(args.run, gaps=args.gaps) as books:
            summary = summarize(
                books,
                learning=books.report()["learning"],
                step_time_s=args.step_time,
                peak_tflops=args.peak_tflops,
            )
            found = results(summary)
            if args.only is not None:
                found = [r for r in found if args.only.casefold() in r.name.casefold()]
                if not found:
                    raise BooksError(
                        f"no definition has {args.only[:80]!r} in its name; they are "
                        f"{', '.join(ORDER)}."
                    )
            kept = summary.kept / summary.total if summary.total else None
            if args.json:
                reply: dict[str, Any] = {
                    "kept_time": kept,
                    "definitions": {r.name: r.plain() for r in found},
                }
                json.dump(reply, sys.stdout, indent=1, allow_nan=False)
                print()
            else:
                _print(found, kept)
            return tell_broken("definitions", books)

    return guarded("definitions", work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="badput definitions",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--only", metavar="NAME", help="definitions with NAME in their name")
    parser.add_argument(
        "--step-time", type=_positive, metavar="S", help="reference time of a step in seconds"
    )
    parser.add_argument(
        "--peak-tflops", type=_positive, metavar="X", help="dense bf16 peak of one GPU in TFLOP/s"
    )
    add_gaps(parser)
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number above 0")
    return value


def _print(found: list[Result], kept: float | None) -> None:
    print(f"kept time, (G + H) / total: {'-' if kept is None else f'{kept:.4%}'}")
    for result in found:
        print()
        print(f"{result.name}: {_value(result)}")
        print(f"  formula  {result.formula}")
        print(f"  source   {result.source}")
        print(f"  note     {result.note}")
        if result.badge:
            print(f"  ERROR    {result.badge}")
        # Of a definition that only sorts leaves the bridge shows what there is to know.
        if any(i.unit != "GPU-seconds" for i in result.inputs):
            _print_inputs(result.inputs)
        if result.bridge is not None:
            rows = result.bridge.rows()
            if rows:
                print(f"  from kept time {float(result.bridge.ours):.4%}:")
            for row in rows:
                effect, seconds = f"{100 * row['effect']:+9.4f} %", f"{row['gpu_seconds']:+,.1f} s"
                print(f"    {effect}  {row['leaf']:<14} {seconds:>18}  {row['what']}")


def _value(result: Result) -> str:
    if result.value is None:
        return f"NULL ({clean(result.reason or 'not known')})"
    if result.unit == "ratio":
        return f"{float(result.value):.5%}"
    return f"{amount(float(result.value))} {result.unit}"


def _print_inputs(inputs: tuple[Input, ...]) -> None:
    for item in inputs:
        value = item.plain()["value"]
        if isinstance(value, float):
            value = f"{value:,.6g}"
        shown = "not known" if value is None else clean(value)
        print(f"    {clean(item.name)} = {shown} {item.unit}".rstrip())
