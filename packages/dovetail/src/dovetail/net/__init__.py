"""HTTP transport: client connections to engines, server connections, TLS and trace context."""
