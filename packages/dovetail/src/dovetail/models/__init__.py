"""Find, download and load models: files, templates, parsers and template profiles."""
