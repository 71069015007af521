"""The commands `badput report`, `badput fsck` and `badput sql`."""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from badput_ledger.books import open_books
from badput_ledger.commands.common import Parser, add_gaps, guarded, tell_broken
from badput_ledger.formats import FORMATS, output, writer
from badput_ledger.price import parse_price
from badput_ledger.price_options import add_arguments, tariff_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_REPORT_EXAMPLES = """\
examples:
  badput report RUN --price 2.50
  badput report RUN --format md | gh issue comment 12 -F -
  badput report RUN --format html -o report.html        (opens with the network off)
  badput report RUN --format perfetto -o trace.json     (opens in ui.perfetto.dev)"""
_SQL_EXAMPLES = """\
examples:
  badput sql RUN "SELECT leaf, ns / 1e9 AS seconds FROM leaves ORDER BY ns DESC"
  badput sql RUN "SELECT rank, step, loss FROM steps ORDER BY start_ns" --format csv
  badput sql RUN "SELECT column_name, column_type FROM (DESCRIBE step_rows)\""""


def report_main(argv: Sequence[str]) -> int:
    """Print the books of a run. Exit 2 if the input is bad or parts of it were skipped."""
    parser = Parser(
        "badput report",
        "Print the books of a run: verdict, waterfall, evidence.",
        _REPORT_EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--format", choices=tuple(FORMATS), default="text")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument("-o", "--output", metavar="FILE", help="write there instead of printing")
    parser.add_argument("--price", metavar="X", help="money per GPU-hour, such as 2.50")
    parser.add_argument("--currency", default="USD", metavar="C")
    add_arguments(parser)
    parser.add_argument(
        "--reference", metavar="REF", help="a run whose loss curve this one is held against"
    )
    add_gaps(parser)
    args = parser.parse_intermixed_args(argv)

    def work() -> int:
        price = None if args.price is None else parse_price(args.price)
        write = writer("json" if args.json else args.format, args.output)
        with ExitStack() as opened:
            tariff = tariff_of(args)
            books = opened.enter_context(
                open_books(
                    args.run, price=price, currency=args.currency, gaps=args.gaps, tariff=tariff
                )
            )
            told = 0
            if args.reference is not None:
                books.reference = opened.enter_context(open_books(args.reference))
                told = tell_broken("report", books.reference)
            with output(args.output) as file:
                write(books, file)
            return max(told, tell_broken("report", books))

    return guarded("report", work)


def fsck_main(argv: Sequence[str]) -> int:
    """Check that the books close to the nanosecond. Exit 1 if a check fails."""
    parser = Parser("badput fsck", "Check that the books of a run close to the nanosecond.")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    args = parser.parse_intermixed_args(argv)

    def work() -> int:
        from badput_ledger.fsck import check

        with open_books(args.run) as books:
            checks = check(books)
            if args.json:
                print(json.dumps({"checks": checks, "broken": books.broken}, indent=1))
            else:
                for c in checks:
                    print(f"{'ok  ' if c['ok'] else 'FAIL'} {c['what']}: {c['found']}")
            told = tell_broken("fsck", books)
        return told if all(c["ok"] for c in checks) else 1

    return guarded("fsck", work)


def sql_main(argv: Sequence[str]) -> int:
    """Answer one SELECT over the facts and views of a run."""
    parser = Parser(
        "badput sql",
        "Ask the books of a run with one SELECT; without one, list the views.",
        _SQL_EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("query", metavar="SELECT", nargs="?", help="one SELECT statement")
    parser.add_argument("--format", choices=("table", "csv", "json"), default="table")
    parser.add_argument("--limit", type=_whole, default=1000, metavar="N", help="rows at most")
    args = parser.parse_intermixed_args(argv)

    def work() -> int:
        with open_books(args.run) as books:
            if args.query is None:
                _list_views()
            else:
                names, rows = books.query(args.query, limit=args.limit)
                _WRITERS[args.format](names, rows)
            return tell_broken("sql", books)

    return guarded("sql", work)


_MOST_ROWS = 1_000_000_000


def _whole(text: str) -> int:
    value = 0 if not (text.isascii() and text.isdecimal() and len(text) < 20) else int(text)
    if not 1 <= value <= _MOST_ROWS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of rows; give a whole number from 1 to {_MOST_ROWS:,}"
        )
    return value


def _list_views() -> None:
    from badput.schema import TABLES
    from badput_ledger.chain import views

    made = {
        "sessions": "One life of the world: from its first process to its last exit.",
        "members": "The processes of each session, and how many places each stands for.",
        "slots": "Which rank's time line stands for which place in each session.",
        "allocations": "When each requested place was ours, and whether it was held.",
        "annotations": "What people said about the run (badput annotate).",
    }
    print("facts")
    for table in TABLES.values():
        if table.name not in made:
            print(f"  {table.name:<16}{table.meaning.partition('. ')[0]}")
    print("put together from the processes")
    for name, about in made.items():
        print(f"  {name:<16}{about}")
    print("views, each built on those before it")
    for view in views():
        print(f"  {view.name:<16}{view.about}")


def _plain(value: object) -> object:
    """A value as JSON can hold it: exact integers stay, other numbers and times become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(v) for v in cast("list[object]", value)]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in cast("dict[object, object]", value).items()}
    return str(value)


def _write_json(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    print(
        json.dumps([{n: _plain(v) for n, v in zip(names, r, strict=True)} for r in rows], indent=1)
    )


def _write_csv(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([_cell(n) for n in names])
    writer.writerows([[_cell(v) for v in row] for row in rows])


def _cell(value: object) -> str:
    """A CSV cell that no spreadsheet takes for a formula."""
    text = "" if value is None else str(value)
    if isinstance(value, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + text
    return text


def _write_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    from badput_ledger.text import clean

    cells = [["NULL" if v is None else clean(v) for v in row] for row in rows]
    widths = [max([len(n), *(len(c[i]) for c in cells)]) for i, n in enumerate(names)]
    print("  ".join(clean(n).ljust(w) for n, w in zip(names, widths, strict=True)).rstrip())
    print("  ".join("-" * w for w in widths))
    for row in cells:
        print("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())


_WRITERS: dict[str, Callable[[list[str], list[tuple[Any, ...]]], None]] = {
    "table": _write_table,
    "csv": _write_csv,
    "json": _write_json,
}
