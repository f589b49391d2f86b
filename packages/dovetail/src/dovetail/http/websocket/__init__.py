"""The Responses API over WebSockets: each `response.create` message is a request like any other.

A message becomes an `ApiExchange` whose response is sent as messages, so that keys, limits,
admission, the pipeline and tracking are shared with HTTP.
"""
