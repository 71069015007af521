"""Entry of the app: navigation only."""

from pathlib import Path

import streamlit as st

from badput_app import strings

st.set_page_config(
    page_title=strings.APP,
    # A file of our own: a named icon would be fetched from another host.
    page_icon=Path(__file__).with_name("favicon.svg"),
    layout="wide",
    initial_sidebar_state=240,
)

st.navigation(
    [
        st.Page(
            "app_pages/runs.py",
            title=strings.RUNS_TITLE,
            icon=strings.RUNS_ICON,
            help=strings.RUNS_PAGE_HELP,
            default=True,
        ),
        st.Page(
            "app_pages/overview.py",
            title=strings.OVERVIEW_TITLE,
            icon=strings.OVERVIEW_ICON,
            help=strings.OVERVIEW_PAGE_HELP,
            url_path="overview",
        ),
    ]
).run()
