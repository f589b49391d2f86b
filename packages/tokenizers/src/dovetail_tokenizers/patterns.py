"""The regular expressions by which vocabularies split text into words, keyed by the names in files.

Merges never cross a word boundary, so the pattern is as much a part of a tokenizer as its
vocabulary. GGUF files only name it (`tokenizer.ggml.pre`), and `.tiktoken` files not even that.
The patterns are those of the models' own tokenizers.
"""

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = rf"{CONTRACTION}|{WORD}|\p{{N}}|{PUNCTUATION}|{TAIL}"
QWEN3_5 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{TAIL}"
)
LLAMA3 = rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}|{PUNCTUATION}|{TAIL}"
O200K = (
    CASED % (f"{CONTRACTION}?", f"{CONTRACTION}?")
    + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
)
TEKKEN = CASED % ("", "") + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
NOT_HAN = r"&&[^\p{Han}]]"
KIMI = (
    r"[\p{Han}]+|"
    + (CASED % (f"{CONTRACTION}?", f"{CONTRACTION}?")).replace(r"\p{M}]", r"\p{M}" + NOT_HAN)
    + rf"|\p{{N}}{{1,3}}|{PUNCTUATION}|{TAIL}"
)
SEED = rf"{CONTRACTION}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{TAIL}"
BAILING = rf"{CONTRACTION}|{WORD}|\p{{N}}|{PUNCTUATION}|\s*[\r\n]|\s+(?!\S)|\s+"
DEEPSEEK3_WORD = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{TAIL}"
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    DEEPSEEK3_WORD,
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
SUPERBPE = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
SINGLE_DIGITS = (r"\p{N}", GPT2)
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")
BLOOM = (r" ?[^(\s|.,!?…。，、।۔،)]+",)

# Value of `tokenizer.ggml.pre` -> patterns, each applied to the parts left by the previous one.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "default": DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1"), (LLAMA3,)),
    **dict.fromkeys(("pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe"), (LLAMA3,)),
    **dict.fromkeys(("glm4", "chatglm-bpe"), (LLAMA3,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), DEEPSEEK3),
    "deepseek-llm": DEEPSEEK_LLM,
    "deepseek-coder": DEEPSEEK_CODER,
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), (QWEN2,)),
    **dict.fromkeys(("megrez", "solar-open", "grok-2"), (QWEN2,)),
    "qwen35": (QWEN3_5,),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), SINGLE_DIGITS),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), SINGLE_DIGITS),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"), (GPT2,)),
    **dict.fromkeys(("a.x-4.0", "exaone4", "granite-docling", "mellum"), (GPT2,)),
    "superbpe": SUPERBPE,
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2", "kanana2"), (O200K,)),
    "tekken": (TEKKEN,),
    "kimi-k2": (KIMI,),
    "seed-coder": (SEED,),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), (BAILING,)),
    "falcon": FALCON,
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), BLOOM),
}
# Vocabularies that encode a word directly, without merges, if the word is a token.
WHOLE_WORDS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2")
) | {"tekken"}

# Prefix of a `.tiktoken` file's name -> pattern, if the folder's config does not specify one.
FILE_PATTERNS = {
    "qwen3_5": QWEN3_5,
    "qwen3_6": QWEN3_5,
    "qwen": QWEN2,
    "o200k": O200K,
    "cl100k": LLAMA3,
    "glm": LLAMA3,
    "tiktoken": KIMI,
}
