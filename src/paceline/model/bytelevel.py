"""What tokenizers on bytes have in common: GPT-2's printable alphabet, and text split by a regular expression."""

from tokenizers import Regex, pre_tokenizers

# How Llama 3 and its successors split what is no word: numbers in threes, signs with the ends of their lines, spaces.
AFTER_WORDS = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Pieces of text that match `pattern`, in Oniguruma's language, and what lies between; each as its bytes."""
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _alphabet() -> str:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next character from U+0100 on."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    hidden = [b for b in range(256) if b not in printable]
    return "".join(chr(b) if b in printable else chr(256 + hidden.index(b)) for b in range(256))


# The character that stands for byte b is at b.
ALPHABET = _alphabet()
