"""Who may ask, and how much: keys, limits, and room."""
