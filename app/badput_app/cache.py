"""Cached reading. A run is read again when its newest part changes; each reading opens the
books, takes what the pages need and closes them, so that no connection is shared."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamlit as st

from badput_app import state, strings
from badput_ledger.books import BooksError, Gaps, open_books

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Loaded:
    """What the pages know of a run: its books, or the sentence why there are none."""

    report: dict[str, Any] | None = None
    segments: list[Any] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    error: str | None = None


@st.cache_data(ttl=5, max_entries=8, show_spinner=False)
def runs(paths: tuple[str, ...]) -> list[state.Run]:
    """The runs below ``paths``; looked for again every few seconds."""
    return state.list_runs(tuple(Path(p) for p in paths))


def load(run: state.Run, price: float | None, gaps: Gaps = "unknown") -> Loaded:
    """The books of ``run`` at ``price``, from the cache if nothing changed."""
    return _load(str(run.path), price, gaps, state.stamp(run.path))


@st.cache_data(ttl=3600, max_entries=64, show_spinner=strings.READING)
def _load(path: str, price: float | None, gaps: Gaps, stamp: tuple[int, int]) -> Loaded:
    try:
        books = open_books(path, price=price, gaps=gaps)
        try:
            return Loaded(books.report(), books.timeline(), list(books.broken))
        finally:
            books.close()
    except BooksError as error:
        return Loaded(error=str(error))
    except Exception as error:  # noqa: BLE001 - one run must not take the list with it
        _LOG.exception("reading %s", path)
        return Loaded(error=strings.UNREADABLE.format(path=path, error=type(error).__name__))
