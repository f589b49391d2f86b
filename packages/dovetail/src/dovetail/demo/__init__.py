"""An agent session in the terminal: recorded, or of the embedded model."""
