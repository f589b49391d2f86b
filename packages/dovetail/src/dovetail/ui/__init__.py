"""The web UI: recent sessions, live statistics, their views as JSON, and the static page."""
