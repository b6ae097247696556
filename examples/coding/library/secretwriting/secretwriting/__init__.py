"""Text written shorter, or so that not everybody reads it."""
