"""Every text that a person reads in the app."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from badput_ledger.books import Gaps

APP = "badput"

# launcher
SERVE_HELP = "Open the app on one or more folders of runs, on 127.0.0.1 only. Ctrl-C ends it."
DEMO_HELP = (
    "Open the app on the sample runs of this checkout, on 127.0.0.1 only, with an example "
    "price of ${price:.2f} a rank-hour unless --price says otherwise. Ctrl-C ends it."
)
PATH_HELP = "a run folder, or a folder that holds some"
PORT_HELP = "port on 127.0.0.1; default: 8501 or the next free one; 0: any free one"
PRICE_OPTION_HELP = (
    "price of one GPU-hour (rank-hour on a CPU run) in dollars; default: what the run says"
)
NO_BROWSER_HELP = "print the address and open no browser"
NO_TOKEN_HELP = "let in everyone on this machine, without the token in the address"  # noqa: S105
SERVING = "badput is at {address}\nCtrl-C ends it."
NO_FOLDER = (
    "there is no folder {path!r}; give a folder of runs, such as the one named in badput.init()."
)
NOT_A_FOLDER = (
    "{path!r} is a file; give the folder of a run or one that holds runs (logs: `badput import`)."
)
NO_PERMISSION = "no permission to read the folder {path!r}; give a folder that you may read."
NO_SAMPLES = (
    "no sample_logs/ here: they come with the source, not with the package. Run this in a "
    "clone of the badput repository, or open your own runs with `badput serve PATH`."
)
BAD_PORT = "{text!r} is not a port; give a whole number from 0 to 65535"
BAD_PRICE = "{text!r} is not a price; give dollars a GPU-hour as a number above 0, such as 2.5"
PORT_BUSY = (
    "port {port} is taken; choose another with --port, or leave it out to get the next free one."
)
PORT_REFUSED = "port {port} cannot be used ({error}); choose another with --port."
NO_PORT = "no free port from {first} to {last}; choose one with --port."
WRONG_HOST = "badput answers only to 127.0.0.1 and localhost.\n"
NO_TOKEN = "Open the address that badput printed when it started: it holds the token.\n"  # noqa: S105

# reading
READING = "Reading the books"
UNREADABLE = "{path}: the run could not be read ({error}); the server's terminal has the details."

# pages
RUNS_TITLE, RUNS_ICON = "Runs", ":material/list:"
RUNS_PAGE_HELP = "All runs below the folders that were opened. Pick one to see where its time went."
OVERVIEW_TITLE, OVERVIEW_ICON = "Overview", ":material/account_balance:"
OVERVIEW_PAGE_HELP = (
    "One run: the verdict, the waterfall of its time or money, and when things happened."
)

# sidebar
PRICE_LABEL = "Price per hour"
PRICE_HELP = (
    "In dollars, for one GPU; for one rank where the run has no GPU. It is part of this page's "
    "address, so a copied link shows the same dollars. Empty: the price that the run itself "
    "states, if any."
)
PRICE_PLACEHOLDER = "as the run says"
GAPS_LABEL = "Time between sessions"
GAPS: tuple[Gaps, ...] = ("unknown", "held", "released")
GAPS_HELP = (
    "Were the GPUs held, and so paid, between sessions where nothing in the run says so? Unknown "
    "counts as paid and is marked; released costs nothing. The same as --gaps of `badput report`. "
    "It is part of this page's address."
)
GAPS_OPTION, GAPS_CONTROL = "--gaps ", "Time between sessions: "
PRICE_EXAMPLE = "${price:.2f} is an **example**, not what this run cost. Type your own."
RUN_LABEL, RUN_PLACEHOLDER = "Run", "choose a run"

# runs page
EMPTY_TITLE = "No runs here yet"
EMPTY = (
    "badput looked in {paths}, three folders deep, and found no run. "
    "To record one, add two lines to a training script:"
)
EMPTY_CODE = (
    'import badput\n\nbadput.init("runs/my-run")  # then: with badput.step(tokens=...): ...'
)
EMPTY_TRY = "Or record the reference trainer, or import the log that a run left:"
EMPTY_COMMANDS = "badput train --help\nbadput import LOG -o runs/"
COLUMNS = (
    "Started, UTC",
    "State",
    "Kept time",
    "{spent}",
    "{wasted}",
    "Size",
    "Sessions",
    "Lost steps",
)
COLUMNS_CAPTION = (
    "Kept time: share of the held time that went into steps that the final model descends "
    "from. Wasted: everything that is not productive, stalls and bubbles of kept steps included. "
    "Lost steps: done and lost with a failure, a rollback or an abandoned branch. "
    "State: how the last session ended, and how many before it failed."
)
SPENT_MONEY, SPENT_TIME = "Spent, $", "Held"
TOTAL_MONEY = "{spent} spent on {runs}: {bought} bought progress, {wasted} ({share}) did not."
TOTAL_TIME = "{total} held by {runs}: {bought} made progress, {wasted} ({share}) did not."
TOTAL_PAGE = "These are the runs of this page."
TOTAL_UNPRICED = "{runs} without a price are not in these sums."
WASTED_MONEY, WASTED_TIME = "Wasted, $", "Wasted"
BROKEN = "cannot be read"
SHOWN = "Runs {first} to {last} of {total}, the one that started last first."
STATES = {
    None: "running or unknown",
    "completed": "completed",
    "killed": "killed",
    "signal": "ended by a signal",
    "exit": "exited",
    "exception": "ended by an exception",
    "unknown": "end unknown",
}

# overview
NO_RUN_TITLE = "Choose a run"
NO_RUN = "This page shows one run. Choose it at the left, or start from the list of runs."
UNKNOWN_RUN = "There is no run {name} below the folders that were opened."
BACK = "All runs"
NEXT_LABEL = "Next"
KEPT, KEPT_HELP = (
    "Kept time",
    (
        "(G + H) / total: the share of the allocated time that went into steps that the final "
        "model descends from. In brackets: the least and the greatest value that the evidence "
        "allows."
    ),
)
WASTED, WASTED_HELP = (
    "Wasted",
    (
        "Everything allocated but the compute of kept steps: groups A to G without G.recompute "
        "and G.kernel, and the unaccounted time U. "
        "It counts the stalls and bubbles inside kept steps too, which kept time does not."
    ),
)
LOST, LOST_HELP = (
    "Lost steps",
    "Steps that ran and that the final model does not descend from, of all steps executed.",
)
SESSIONS, SESSIONS_HELP = "Sessions", "Incarnations of the run. Every restart begins a new one."
TOKENS, TOKENS_HELP = (
    "Tokens",
    "Tokens of the kept steps, padding included, of all tokens processed.",
)
COST, COST_HELP = "Cost", "Allocated {unit}-hours that were paid for, times the price of one."
NO_PRICE = "no price"
NO_PRICE_HELP = "No dollars: neither the run nor you gave a price. Type one at the left."
OF_EXECUTED, OF_PROCESSED = "of {total} executed", "kept, of {total}"
OF_ALLOCATED = "of allocated time"
OF_HELD = "{share} of held time"
RESTARTS = {0: "no restart", 1: "1 restart"}
RESTARTS_MANY = "{count} restarts"
WATERFALL = "Where the {what} went"
WATERFALL_CAPTION = (
    "From everything that was allocated, group by group, to what trained the final model. "
    "Hover a bar for its leaves. Nothing was booked under: {empty}."
)
WATERFALL_CAPTION_FULL = (
    "From everything that was allocated, group by group, to what trained the final model. "
    "Hover a bar for its leaves."
)
WATERFALL_ALT = (
    "Waterfall from {total} allocated to {kept} productive; the largest loss is {worst}."
)
TIME, DOLLARS = "Time", "Dollars"
UNIT_LABEL, UNIT_HELP = "Show", "Time or money. The choice is part of the page's address."
TIMELINE = "When it happened"
TIMELINE_LANES = (
    "One lane for each rank, in UTC. Kept steps are drawn whole; the waterfall divides them. "
    "Diamonds mark incidents: hover for the cause."
)
TIMELINE_STANDS = (
    "One lane for each rank that left a record, standing for all {places}, in UTC. Kept steps "
    "are drawn whole; the waterfall divides them. Diamonds mark incidents: hover for the cause."
)
TIMELINE_SESSIONS = (
    "More than {most} ranks: one lane for each session, showing its lowest rank, in UTC. Kept "
    "steps are drawn whole; the waterfall divides them. Diamonds mark incidents: hover for the "
    "cause."
)
TIMELINE_BINNED = " Drawn in bins of {width}: each shows the leaf that took most of it."
TIMELINE_ALT = (
    "Timeline of {sessions} sessions and {incidents} incidents, "
    "coloured by what the time was booked under."
)
TIMELINE_EMPTY = "No process of this run left a record of when it did what."
LEAVES_TITLE = "Every leaf"
LEAVES_CAPTION = (
    "The leaves are mutually exclusive; with the unaccounted time they sum to {total} exactly."
)
LEAVES_ALT = "Leaves with time, share, bounds, cost and definition"
LEAF, SHARE, DEFINITION = "Leaf", "Share", "Definition"
ALL_LEAVES = "Show empty leaves too"
LOW, HIGH = "Least", "Most"
BOUNDS_HELP = "The least and the greatest value over all histories that the evidence allows."
CSV_LABEL, CSV_HELP = (
    "Leaves as CSV",
    "Every leaf in exact nanoseconds and seconds, with bounds and cost.",
)
INCIDENTS = "Incidents"
NO_INCIDENTS = "No incident: no session ended before its time and nothing was lost."
INCIDENT_FACTS = "{lost} steps lost · {time} · {cost}"
EVIDENCE = "Evidence"
NO_EVIDENCE = "no rows named"
QUALITY = "What is not known"
NO_QUALITY = "Nothing to report: every figure above was measured."
SKIPPED = "Parts of the run that were skipped"
