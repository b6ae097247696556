"""The small project and the stand-ins for its processes."""

from support.projects import fakes, project, root

__all__ = ["fakes", "project", "root"]
