"""Responses that the server keeps, so that they can be fetched again and gone on from."""
