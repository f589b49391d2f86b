"""Chat templates that are used instead of a model's own, where that one does it harm."""
