"""Build and run the server: engines, HTTP server, worker processes and their supervisor."""
