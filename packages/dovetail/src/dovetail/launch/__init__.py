"""Run coding agents on a Dovetail server: configuration and processes."""
