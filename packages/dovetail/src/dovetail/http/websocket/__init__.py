"""The Responses API over WebSockets: each message that asks is a request like any other.

A message becomes an `Exchange` whose answer leaves as messages, so that everything between (keys,
limits, admission, the pipeline, accounts) is the way that HTTP takes too.
"""
