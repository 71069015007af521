"""Colours: Okabe and Ito's eight, which colour-blind readers can tell apart, and greys.

A leaf group has the same colour in every chart and in both themes. Only black, which
would vanish on a dark page, is swapped for a light grey there.
"""

from __future__ import annotations

from dataclasses import dataclass

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILLION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#8C8C8C", "#BFBFBF"

CATEGORICAL: tuple[str, ...] = (
    GREEN,
    SKY,
    ORANGE,
    PURPLE,
    VERMILLION,
    YELLOW,
    BLUE,
    GREY,
    PALE,
    BLACK,
)
"""Exactly ten: with fewer, streamlit falls back to plotly's own colours without a word."""

GROUP_COLORS: dict[str, str] = {
    "A": GREY,
    "B": VERMILLION,
    "C": ORANGE,
    "D": PURPLE,
    "E": YELLOW,
    "F": BLACK,
    "G": SKY,
    "H": GREEN,
    "U": PALE,
}
TOTAL_COLOR = BLUE
GROUP_PATTERNS: dict[str, str] = {"U": "/", "F": "x"}
"""Groups that are also hatched, so that colour is not the only sign."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What differs between the light and the dark page."""

    text: str
    grid: str
    outline: str
    black: str


LIGHT = Mode(text="#1F2328", grid="#D9DCE0", outline="rgba(0,0,0,0.35)", black=BLACK)
DARK = Mode(text="#E6E8EB", grid="#3A3F47", outline="rgba(255,255,255,0.25)", black="#E8E8E8")


def mode(dark: bool) -> Mode:
    """The mode of the page."""
    return DARK if dark else LIGHT


def group_color(group: str, dark: bool) -> str:
    """The fixed colour of a leaf group, given by its letter."""
    color = GROUP_COLORS.get(group, PALE)
    return mode(dark).black if color == BLACK else color
