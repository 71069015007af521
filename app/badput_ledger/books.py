"""Open the books of a run.

``open_books(path)`` reads the parts of a run folder, puts the sessions together, runs the
chain of SQL views and hands out the report, the time line and a locked SQL console.
"""

from __future__ import annotations

import difflib
import re
import tempfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import duckdb

from badput.schema import TABLES
from badput_ledger import chain, store
from badput_ledger.annotations import read_annotations
from badput_ledger.cost import Costs, build_costs
from badput_ledger.errors import BooksError
from badput_ledger.facts import Facts, assemble
from badput_ledger.paths import readable
from badput_ledger.price import Pricing, check_price, choose_price, is_currency
from badput_ledger.price_options import Tariff
from badput_ledger.rate import Rate, settle_rate
from badput_ledger.scan import StepScan, scan_steps
from badput_ledger.tokens import Tokens, count_tokens

if TYPE_CHECKING:
    import os
    from decimal import Decimal
    from pathlib import Path

__all__ = ["Books", "BooksError", "Segment", "open_books"]

Gaps = Literal["unknown", "held", "released"]
"""What is known of time between sessions that nothing accounts for."""
QUERY_SECONDS = 30.0
"""A console query that runs longer is interrupted."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one rank's time line with one leaf; a gap belongs to the session after it."""

    session: str
    rank: int
    leaf: str
    start_ns: int
    end_ns: int


class Books:
    """The books of one run. Close it, or use it in a with statement."""

    def __init__(
        self,
        *,
        path: Path,
        con: duckdb.DuckDBPyConnection,
        facts: Facts,
        price: Pricing,
        tariff: Tariff,
        broken: list[str],
        spill: tempfile.TemporaryDirectory[str],
        scan: StepScan | None,
        gaps: Gaps,
    ) -> None:
        self.path = path
        self.facts = facts
        self.price = price
        self.tariff = tariff
        self.broken = broken
        self.gaps: Gaps = gaps
        self._con = con
        self._spill = spill
        self._scan = scan
        self._locked = False
        self._lock = threading.Lock()
        self._report: dict[str, Any] | None = None
        self.reference: Books | None = None
        """A run whose loss curve this one is held against; set it before the report."""
        self._costs: Costs | None = None
        self._tokens: Tokens | None = None
        self.rate = Rate({})
        self.rate = settle_rate(self)

    def __enter__(self) -> Books:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back memory and files."""
        self._con.close()
        self._spill.cleanup()

    def rows(self, query: str, values: list[object] | None = None) -> list[dict[str, Any]]:
        """Answer of one of our own queries over the views, as dicts."""
        return store.rows(self._con.cursor(), query, values)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for one of our own queries with more rows than fit in a list."""
        return self._con.cursor()

    def divide_at(self, instants: list[int]) -> None:
        """Let no stretch of steps reach over one of these instants (ns since the epoch)."""
        if self._scan is not None and instants:
            self._scan.divide_at(instants)

    def report(self) -> dict[str, Any]:
        """The report as docs/ledger.md describes it: plain values, ready for JSON."""
        from badput_ledger.report import build_report

        if self._report is None:
            self._report = build_report(self)
        return self._report

    @property
    def costs(self) -> Costs:
        """What everything cost, exactly."""
        if self._costs is None:
            self._costs = build_costs(self)
        return self._costs

    @property
    def tokens(self) -> Tokens:
        """What every step's tokens became."""
        if self._tokens is None:
            self._tokens = count_tokens(self)
        return self._tokens

    def timeline(self) -> list[Segment]:
        """Level 1 of the books, in order of rank and time, equal neighbours merged."""
        return [
            Segment(
                str(r["session"] or ""),
                int(r["rank"]),
                str(r["leaf"]),
                int(r["start_ns"]),
                int(r["end_ns"]),
            )
            for r in self.rows("FROM timeline ORDER BY rank, start_ns, end_ns")
        ]

    def query(self, sql: str, limit: int = 1000) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Answer exactly one SELECT of a user: column names and at most ``limit`` rows.

        Files, settings and other databases are out of reach. Raises BooksError.
        """
        self._lock_down()
        cursor = self._con.cursor()
        try:
            statements = cursor.extract_statements(sql)
        except duckdb.Error as error:
            raise BooksError(_sentence(error)) from None
        except TypeError:
            raise BooksError("the query is not text that can be written as UTF-8.") from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise BooksError("the console takes exactly one SELECT; anything else is refused.")
        timer = threading.Timer(QUERY_SECONDS, cursor.interrupt)
        timer.start()
        try:
            # WITH x AS (DELETE ... RETURNING *) SELECT counts as a SELECT: without this
            # transaction it would change the books of everyone who has them open.
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            cursor.execute(statements[0])
            names = [str(d[0]) for d in cast(list[Any], cursor.description)]
            return names, cursor.fetchmany(max(0, limit))
        except duckdb.InterruptException:
            raise BooksError(f"the query ran longer than {QUERY_SECONDS:.0f} s.") from None
        except duckdb.TransactionException:
            raise BooksError("the console only reads; a query that writes is refused.") from None
        except duckdb.Error as error:
            raise BooksError(self._hinted(error)) from None
        finally:
            timer.cancel()
            cursor.close()

    def _hinted(self, error: duckdb.Error) -> str:
        """The error of a query, with the names that come close to one that is not there."""
        sentence = _sentence(error)
        missing = re.search(r"Table with name (\S+) does not exist", sentence)
        if missing is None:
            return sentence
        names = [
            str(r["name"])
            for r in self.rows(
                "SELECT view_name AS name FROM duckdb_views() WHERE NOT internal "
                "UNION SELECT table_name FROM duckdb_tables() WHERE NOT internal ORDER BY name"
            )
        ]
        near = difflib.get_close_matches(missing.group(1).lower(), names, 3, 0.6)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        return (
            f"there is no table or view {missing.group(1)}.{meant} "
            "`badput sql RUN` without a query lists them."
        )

    def _lock_down(self) -> None:
        """Take everything into memory, then shut the database off from the outside."""
        with self._lock:
            if self._locked:
                return
            cursor = self._con.cursor()
            views = cursor.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal")
            names = {str(row[0]) for row in views.fetchall()}
            for name in names.intersection(TABLES):
                cursor.execute(f'CREATE TABLE "{name}_held" AS FROM "{name}"')
                cursor.execute(f'DROP VIEW "{name}"')
                cursor.execute(f'ALTER TABLE "{name}_held" RENAME TO "{name}"')
            cursor.execute("SET enable_external_access = false")
            cursor.execute("SET lock_configuration = true")
            self._locked = True


def open_books(
    path: str | os.PathLike[str],
    *,
    price: float | Decimal | None = None,
    currency: str = "USD",
    gaps: Gaps = "unknown",
    tariff: Tariff | None = None,
) -> Books:
    """Open the run folder ``path``; ``price`` is money per GPU-hour.

    ``tariff`` names a price table and what else money depends on; without a table there, the
    environment's BADPUT_PRICES counts.

    ``gaps`` says whether time between sessions that nothing accounts for was paid; unknown
    time counts as paid, and the report says so.
    Raises BooksError with one sentence for a folder or price that cannot be used.
    """
    folder = store.run_folder(path)
    if price is not None:
        check_price(price)
    if not is_currency(currency):
        raise BooksError(f"the currency {currency!r} cannot be; give a short name such as USD.")
    tariff = tariff or Tariff()
    table = tariff.table(price, currency)
    spill = tempfile.TemporaryDirectory(prefix="badput-")
    con = store.connect()
    try:
        con.execute(f"SET temp_directory = '{spill.name}'")
        reading = readable(folder, spill.name)
        skipped, long = store.load(con, reading)
        broken = [b.replace(str(reading), str(folder)) for b in skipped]
        said, bad = read_annotations(folder)
        broken += bad
        scan = scan_steps(con, long)
        facts = assemble(con, gaps=gaps, said=said)
        _want_processes(folder, facts, broken)
        chain.build(con)
        if scan is not None:
            scan.settle()
    except duckdb.Error as error:
        con.close()
        spill.cleanup()
        raise BooksError(f"{folder} cannot be read: {_sentence(error)}") from error
    except BaseException:
        con.close()
        spill.cleanup()
        raise
    return Books(
        path=folder,
        con=con,
        facts=facts,
        price=(table if facts.config.get("place") != "node" else None)
        or choose_price(price, facts.config, currency),
        tariff=tariff,
        broken=broken,
        spill=spill,
        scan=scan,
        gaps=gaps,
    )


def _want_processes(folder: Path, facts: Facts, broken: list[str]) -> None:
    if not facts.sessions and not facts.launchers:
        why = f" ({broken[0]})" if broken else ""
        raise BooksError(f"{folder} holds no process of a run, so there are no books{why}")


def _sentence(error: BaseException) -> str:
    """The first line of a DuckDB error, without its kind."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    head, found, rest = first.partition("Error: ")
    text = rest if found and len(head) < 40 else first
    return text if text.endswith((".", "!", "?")) else text + "."
