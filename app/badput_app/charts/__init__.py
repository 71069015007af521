"""Figures: data in, plotly figure out. Nothing here knows streamlit, so that the same
figures serve the app, a report and the tests.

Budgets: at most ``MAX_BARS`` bars a figure, no WebGL, text of the run escaped.
"""

from badput_app.charts.timeline import MAX_BARS, MAX_RANK_LANES, timeline_figure
from badput_app.charts.waterfall import waterfall_bars, waterfall_figure

__all__ = ["MAX_BARS", "MAX_RANK_LANES", "timeline_figure", "waterfall_bars", "waterfall_figure"]
