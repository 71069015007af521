"""``badput annotate RUN``: what only a person knows, kept beside the run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from badput_ledger import store
from badput_ledger.annotate import check, kinds, parse_note, parse_said, run_window
from badput_ledger.annotations import (
    FILE,
    Annotation,
    add_annotations,
    read_annotations,
    remove_annotations,
)
from badput_ledger.books import open_books
from badput_ledger.commands.common import Parser, guarded, tell_broken
from badput_ledger.errors import BooksError
from badput_ledger.paths import shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

_EXAMPLES = """\
examples:
  badput annotate RUN --stop 2026-05-01T18:00Z..2026-05-02T08:00Z --note "maintenance"
  badput annotate RUN --released +3h..+5h30m --by ann
  badput annotate RUN --rewind 12000 --note "loss spike, data skipped"
  badput annotate RUN --spare 2
  badput annotate RUN --list
  badput annotate RUN --remove a3

Times are ISO 8601 (without a zone: UTC), +1h30m from the start of the run or -10m from its
end; in A..B an end left out is the run's. Every option may be given again.
Exit codes: 0 done, 2 refused; nothing is written then."""


def main(argv: Sequence[str]) -> int:
    """Write, list or take back annotations. Exit 2 if one of them cannot be."""
    parser = Parser(
        "badput annotate",
        "Add what only a person knows to a run: kept beside its facts, shown as such in reports.",
        _EXAMPLES,
    )
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    for kind, placeholder, about in kinds():
        parser.add_argument(
            f"--{kind}", metavar=placeholder, action="append", default=[], help=about
        )
    parser.add_argument("--note", metavar="TEXT", help="why; alone it is a note on the run")
    parser.add_argument("--by", metavar="NAME", help="who says so")
    parser.add_argument("--list", action="store_true", help="show what was said")
    parser.add_argument("--remove", metavar="ID", action="append", default=[], help="take it back")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    args = parser.parse_intermixed_args(_joined(argv))
    return guarded("annotate", lambda: _work(args))


def _joined(argv: Sequence[str]) -> list[str]:
    """The arguments with times such as -10m joined to their option: argparse takes them for one."""
    options = {f"--{kind}" for kind, _, _ in kinds()}
    out: list[str] = []
    for arg in argv:
        if out and out[-1] in options and re.match(r"-\d", arg):
            out[-1] += f"={arg}"
        else:
            out.append(arg)
    return out


def _work(args: argparse.Namespace) -> int:
    folder = store.run_folder(args.run)
    by = None if args.by is None else parse_note(args.by)
    given = [
        (kind, text) for kind, _, _ in kinds() for text in cast("list[str]", getattr(args, kind))
    ]
    remove = cast("list[str]", args.remove)
    if remove and (given or args.note is not None):
        raise BooksError("--remove goes with --by alone; say anew what is true in a command after.")
    if remove:
        remove_annotations(folder, remove, by)
    elif given or args.note is not None:
        return _add(args, folder, given, by)
    elif not args.list:
        raise BooksError("say what you know, such as --stop A..B, or see what was said: --list.")
    said, broken = read_annotations(folder)
    _show(said, args.json)
    for sentence in broken:
        print(shown(f"badput annotate: {sentence}"))
    return 2 if broken else 0


def _add(
    args: argparse.Namespace, folder: Path, given: list[tuple[str, str]], by: str | None
) -> int:
    note = None if args.note is None else parse_note(args.note)
    with open_books(args.run) as books:
        window = run_window(books)
        said = [parse_said(kind, text, books, window) for kind, text in given]
        said = [replace(one, note=note, by=by) for one in said]
        if not said and note is not None:
            said = [Annotation("", "note", note=note, by=by)]
        check(said, books.facts.said, books)
        told = tell_broken("annotate", books)
    made = add_annotations(folder, said)
    if args.list:
        made, _ = read_annotations(folder)
    _show(made, args.json)
    return told


def _show(said: Sequence[Annotation], as_json: bool) -> None:
    from badput_ledger.text import clean

    if as_json:
        print(json.dumps([a.plain() for a in said], indent=1))
        return
    for one in said:
        note = f": {one.note}" if one.note else ""
        who = f" ({one.by})" if one.by else ""
        print(clean(f"{one.id:<4} {one.what()}{note}{who}"))
    if not said:
        print(f"nothing is said ({FILE})")
