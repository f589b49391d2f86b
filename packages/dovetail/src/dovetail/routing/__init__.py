"""Which replica generates, what happens when one dies, and what is warmed between turns."""
