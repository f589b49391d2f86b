"""The server under the application: connections, TLS, drain."""
