"""Watch mode: relay traffic to an unmodified server and analyze its prefix cache use."""
