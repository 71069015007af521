"""Entry of the app: navigation only."""

import streamlit as st

from badput_app import strings

st.set_page_config(page_title=strings.APP, page_icon=strings.OVERVIEW_ICON, layout="wide")

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
