"""The way of an answer from the pipeline to the client."""
