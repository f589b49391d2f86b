"""Server tools: run web searches and fetch pages within a response."""
