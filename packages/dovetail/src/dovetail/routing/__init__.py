"""Select the replica that generates, handle replica failures, and warm prompts between turns."""
