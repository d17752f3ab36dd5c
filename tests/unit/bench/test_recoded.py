import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import pre_tokenizers

from bench.recoded import Recoding, recoded
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.floats import decode_bfloat16, encode_bfloat16
from paceline.model.tokenizer import Tokenizer
from paceline.model.weights import open_weights
from tests.unit.model.files import SPECIAL, train_tokenizer, write_gguf

HIDDEN, INTERMEDIATE = 64, 96
MATRIX = "layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A GGUF of two layers, in 4 bits but for the embedding."""
    tokenizer = train_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    vocab = tokenizer.get_vocab()
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INTERMEDIATE,
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(vocab, key=vocab.__getitem__),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocab) - len(SPECIAL)),
        "tokenizer.ggml.merges": [
            " ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (HIDDEN // 2, HIDDEN),
        "attn_v": (HIDDEN // 2, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
    }
    random = np.random.default_rng(0)

    def values(*shape: int) -> npt.NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    tensors = {
        "token_embd.weight": ("Q8_0", values(len(vocab), HIDDEN)),
        "output_norm.weight": ("F32", values(HIDDEN)),
    }
    for i in range(2):
        tensors |= {f"blk.{i}.{name}.weight": ("Q4_1", values(*shape)) for name, shape in layer.items()}
        tensors |= {f"blk.{i}.{name}.weight": ("F32", values(HIDDEN)) for name in ("attn_norm", "ffn_norm")}
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return ModelFiles("m", "gguf", write_gguf(path, metadata, tensors))


def weights(files: ModelFiles) -> dict[str, npt.NDArray[np.float32]]:
    stored = open_weights(files, read_config(files))
    return {name: tensor.float32(0, max(1, *tensor.shape[:-1], 1)) for name, tensor in stored.items()}


def through(files: ModelFiles, directory: Path, recoding: Recoding) -> ModelFiles:
    found, _ = recoded(files, directory / "recoded", recoding)
    return found


def test_float32_is_the_same_model(files: ModelFiles, tmp_path: Path) -> None:
    found = through(files, tmp_path, "float32")
    before, after = weights(files), weights(found)
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before)
    a, b = read_config(files), read_config(found)
    assert (a.layers, a.norm_eps, a.bos_id, a.eos_ids) == (b.layers, b.norm_eps, b.bos_id, b.eos_ids)
    text = "Don't 12:34 größe <|im_end|>\n"
    assert Tokenizer.load(found).encode(text) == Tokenizer.load(files).encode(text)


def test_bfloat16_changes_matrices_alone(files: ModelFiles, tmp_path: Path) -> None:
    before, after = weights(files), weights(through(files, tmp_path, "bfloat16"))
    assert (after[MATRIX] == decode_bfloat16(encode_bfloat16(before[MATRIX]))).all()
    assert (after[MATRIX] != before[MATRIX]).any()
    for kept in ("embed_tokens.weight", "norm.weight", "layers.0.input_layernorm.weight"):
        assert (after[kept] == before[kept]).all()


def test_dither_is_as_wide_as_a_step_of_4_bits(files: ModelFiles, tmp_path: Path) -> None:
    before = weights(files)[MATRIX].reshape(-1, 32)
    (tmp_path / "again").mkdir()
    once, again = (weights(through(files, d, "dithered"))[MATRIX] for d in (tmp_path, tmp_path / "again"))
    assert (once == again).all()
    noise = (once.reshape(-1, 32) - before) / (np.ptp(before, axis=1, keepdims=True) / 15)
    assert -0.501 < noise.min() < -0.49
    assert 0.49 < noise.max() < 0.501
    assert abs(noise.mean()) < 4 * 12**-0.5 / noise.size**0.5
    assert noise.std() == pytest.approx(12**-0.5, rel=0.02)
