"""Version numbers such as 1.4.2-beta."""
