"""Usage accounting: tokens, requests, time and cost by tenant, key, model, session and harness."""
