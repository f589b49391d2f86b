"""Run requests: prepare prompts, stream tokens, decode them into events, record turns."""
