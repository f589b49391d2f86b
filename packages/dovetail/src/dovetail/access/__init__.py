"""Access control: API keys, rate limits and admission."""
