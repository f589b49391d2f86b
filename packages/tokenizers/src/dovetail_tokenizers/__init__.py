"""Encode text to token ids and decode ids, keeping control tokens separate from message text."""

from dovetail_tokenizers.byte import ByteTokenizer
from dovetail_tokenizers.detokenizer import Detokenizer, TokenTextCache
from dovetail_tokenizers.encoding import EncodeError, encode_suffix
from dovetail_tokenizers.gguf import read_gguf_metadata
from dovetail_tokenizers.gguf_tokenizer import from_gguf, gguf_tokenizer_json
from dovetail_tokenizers.guard import ControlTokenGuard
from dovetail_tokenizers.hf import HfTokenizer
from dovetail_tokenizers.loader import load_tokenizer
from dovetail_tokenizers.tiktoken import TiktokenTokenizer
from dovetail_tokenizers.tokenizer import Piece, Segment, Tokenizer

__all__ = [
    "ByteTokenizer",
    "ControlTokenGuard",
    "Detokenizer",
    "EncodeError",
    "HfTokenizer",
    "Piece",
    "Segment",
    "TiktokenTokenizer",
    "TokenTextCache",
    "Tokenizer",
    "encode_suffix",
    "from_gguf",
    "gguf_tokenizer_json",
    "load_tokenizer",
    "read_gguf_metadata",
]
