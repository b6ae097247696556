"""Arrays: losses, batches, staleness, the learner and its ledger. Never imports rollout."""
