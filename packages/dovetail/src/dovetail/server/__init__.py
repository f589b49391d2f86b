"""Several processes that serve one port over one store of turns, and the parent that keeps them."""
