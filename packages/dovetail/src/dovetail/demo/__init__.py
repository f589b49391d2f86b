"""A recorded agent session, played without weights: what the product does, in ten seconds."""
