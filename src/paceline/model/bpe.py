"""The byte-level BPE tokenizer in a GGUF file's metadata.

`tokenizer.ggml.pre` names how text is split before merging; the rules are those of the model's own tokenizer.json, not
of the converters that lose some of them (SmolLM splits digits one by one, of every script).
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from paceline.model.bytelevel import AFTER_WORDS, split_by
from paceline.model.fields import Fields
from paceline.model.gguf import GgufFile

# Values of tokenizer.ggml.token_type.
_CONTROL = 3
_USER_DEFINED = 4

_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + AFTER_WORDS
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def from_gguf(file: GgufFile) -> Tokenizer:
    """Raises `InvalidRequest` for a tokenizer that is not byte-level BPE, or splits text in an unknown way."""
    fields = Fields(file.metadata, file.path)
    if (kind := fields.text("tokenizer.ggml.model")) != "gpt2":
        raise fields.refuse(f"tokenizer {kind!r} is not supported, only byte-level BPE ('gpt2')")
    pre = fields.text("tokenizer.ggml.pre", "default")
    tokens = file.strings("tokenizer.ggml.tokens")
    merges = [merge.split(" ") for merge in file.strings("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or any(len(pair) != 2 for pair in merges):
        raise fields.refuse("the vocabulary repeats a token, or a merge is not a pair")
    try:
        # Llama 3 takes a word that is in the vocabulary as it is, though no merges lead to it.
        model = models.BPE(vocab, [(a, b) for a, b in merges], ignore_merges=pre == "llama-bpe")
    except Exception as e:  # the bindings raise nothing narrower
        raise fields.refuse(f"the merges do not fit the vocabulary: {e}") from e
    tokenizer = Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, fields)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, tokens, file.integers("tokenizer.ggml.token_type"))
    return tokenizer


def _pre_tokenizer(pre: str, fields: Fields) -> pre_tokenizers.PreTokenizer:
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre in ("default", "gpt-2"):
        return gpt2
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    if pre not in ("llama-bpe", "qwen2"):
        raise fields.refuse(f"pre-tokenizer {pre!r} is none of default, gpt-2, llama-bpe, qwen2, smollm")
    return split_by(_LLAMA3 if pre == "llama-bpe" else _QWEN2)


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    named = list(zip(tokens, types, strict=False))
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, kind in named if kind == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token, kind in named if kind == _USER_DEFINED]
    )
