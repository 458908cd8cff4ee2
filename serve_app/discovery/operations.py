"""The table of operations: what the interface document, its pages and their tests are made from."""

from __future__ import annotations

from serve_app.discovery.operations_account import ACCOUNT, DASHBOARD, DISCOVERY, WEBHOOKS
from serve_app.discovery.operations_forms import Operation
from serve_app.discovery.operations_jobs import CREATIONS, JOBS, RESULTS

OPERATIONS: tuple[Operation, ...] = (
    *CREATIONS,
    *JOBS,
    *RESULTS,
    *ACCOUNT,
    *WEBHOOKS,
    *DISCOVERY,
    *DASHBOARD,
)

TAGS: dict[str, str] = {
    "Jobs": "Create jobs, follow them, cancel them.",
    "Results": "Scenes, transcripts and audio tracks, once their stages are completed.",
    "Account": "Credits and usage.",
    "Webhooks": "The delivery log, and test events.",
    "Discovery": "Open to everybody; 120 requests a minute for each client address.",
    "Dashboard": "For the dashboard's signed-in sessions only; API keys do not open these.",
}
