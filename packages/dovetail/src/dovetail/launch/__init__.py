"""Run coding agents on a Dovetail server: their settings and their processes."""
