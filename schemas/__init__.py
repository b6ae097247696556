"""What is written: configuration, trajectories, ledger rows, manifests. Pure descriptions; no I/O."""
