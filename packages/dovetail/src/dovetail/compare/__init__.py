"""Compare how an agent behaves under two profiles of the serving path."""
