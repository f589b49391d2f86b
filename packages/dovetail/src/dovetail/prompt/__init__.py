"""Build prompts from turns: chat templates, normalization, and splicing of exact turns."""
