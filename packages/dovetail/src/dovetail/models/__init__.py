"""Find, download and load models: files, templates, parsers, and what their templates support."""
