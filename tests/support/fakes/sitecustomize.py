"""Lets any Python process with this folder on PYTHONPATH, however it was started, use the stand-ins on request."""

import os

if os.environ.get("HEADRACE_FAKES"):
    import fake_commands

    fake_commands.install()
