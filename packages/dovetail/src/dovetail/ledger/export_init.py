"""Turns out of the ledger, token for token, for people who train on what their agents said."""

from dovetail.ledger.export import Export, Missing
from dovetail.ledger.export_sample import SCHEMA, Sample, SpanPart, TurnPart

__all__ = ["SCHEMA", "Export", "Missing", "Sample", "SpanPart", "TurnPart"]
