"""From settings to a service: models loaded, engines made, the ledger opened."""
