"""How things are written: object stores, shards, the ledger, claims and leases, audits."""
