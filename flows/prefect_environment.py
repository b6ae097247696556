"""What Prefect must be told before it is imported. What the user has set stays."""

import os

DEFAULTS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_DEPLOYMENTS_CLEAR_SCHEDULES_ON_EMPTY": "true",  # deployed again without a cron line, it has none
}
QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
}
JOB_VARIABLES = {"env": {"PYTHONSAFEPATH": "1"}}
"""For deployments on a work pool: no folder of Prefect's, nor the job's own, may shadow a room of ours."""


def prepare(*, quiet: bool) -> None:
    """Set the defaults; `quiet` leaves the terminal to our own progress."""
    for key, value in (DEFAULTS | (QUIET if quiet else {})).items():
        os.environ.setdefault(key, value)
