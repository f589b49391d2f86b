"""From turns to token ids: chat templates, what they can do, and the splice of exact turns."""
