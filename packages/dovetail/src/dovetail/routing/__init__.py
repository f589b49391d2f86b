"""Select the replica for each request, handle replica failures, and warm prompts between turns."""
