"""Text and tools: engines, agents, environments, episodes, workers. Never imports trainer."""
