"""The step protocol: one connection carries all streams of an engine.

An engine that runs in another process, or on another machine, sends one message per engine step
with the new tokens of all streams. The server reads it in one call and processes all its streams
there, instead of one socket read and one wake-up per stream.

`messages`, `framing`, `server` and `child_main` also run in the process of the engine, whose
interpreter may have only the engine's own dependencies and msgspec. They import neither the HTTP
server nor its dependencies.
"""
