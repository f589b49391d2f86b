"""Run requests: prepare prompts, stream from engines, decode tokens into events, record turns."""
