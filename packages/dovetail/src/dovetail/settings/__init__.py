"""Settings of a server: their definition, and loading them from file, environment and flags."""
