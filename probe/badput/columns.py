"""What a table of the run folder is made of; schema.py says which there are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, storage type, unit and meaning."""

    name: str
    type: str
    """One of int64, int32, float64, bool, string."""
    unit: str
    meaning: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the run folder."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


def col(name: str, type_: str, unit: str, meaning: str) -> Column:
    """A column that may be NULL."""
    return Column(name, type_, unit, meaning)


def key(name: str, type_: str, unit: str, meaning: str) -> Column:
    """A column that every row has."""
    return Column(name, type_, unit, meaning, nullable=False)
