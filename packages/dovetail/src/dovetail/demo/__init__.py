"""A recorded agent session, replayed through the pipeline without weights."""
