"""A model means the same whether its weights come from safetensors or from GGUF, where llama.cpp reorders some."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from paceline.contracts.errors import InvalidRequest
from paceline.model.config import DenseMlp, GroupedAttention, read_config
from paceline.model.files import ModelFiles
from paceline.model.rope import inverse_frequencies
from paceline.model.weights import open_weights
from tests.unit.engine_torch.models import Reference, save_model, start_engine
from tests.unit.engine_torch.steps import Rows, make_step
from tests.unit.engine_torch.test_parity import assert_same, prompt
from tests.unit.model.files import QUANTS, write_gguf


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of the llama architecture."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def convert(reference: Reference, path: Path, quant: str = "F32") -> ModelFiles:
    """The reference's weights as a GGUF file, under llama.cpp's names and in its order."""
    config = read_config(reference.files)
    arch, attention, mlp = config.family, config.layers[0].attention, config.layers[0].mlp
    assert isinstance(attention, GroupedAttention)
    assert isinstance(mlp, DenseMlp)
    rope = attention.rope
    assert rope is not None
    metadata = {
        "general.architecture": arch,
        f"{arch}.embedding_length": config.hidden,
        f"{arch}.block_count": len(config.layers),
        f"{arch}.attention.head_count": attention.heads,
        f"{arch}.attention.head_count_kv": attention.kv_heads,
        f"{arch}.attention.key_length": attention.head_dim,
        f"{arch}.feed_forward_length": mlp.intermediate,
        f"{arch}.context_length": config.context,
        f"{arch}.rope.freq_base": rope.theta,
        f"{arch}.attention.layer_norm_rms_epsilon": config.norm_eps,
    }
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), len(config.layers))
    tensors = {}
    for name, stored in open_weights(reference.files, config).items():
        values = stored.float32(0, len(stored.arrays[0])).reshape(stored.shape)
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permute(values, attention.heads if "q_proj" in name else attention.kv_heads)
        hf_name = name if name.startswith("lm_head") else f"model.{name}"
        found = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert found is not None
        tensors[found] = (quant if values.ndim == 2 and values.shape[1] % 32 == 0 else "F32", values)
    if rope.scaling is not None:
        plain = rope.theta ** -(np.arange(0, rope.dim, 2) / rope.dim)
        factors = (plain / inverse_frequencies(rope)[0]).astype(np.float32)
        tensors["rope_freqs.weight"] = ("F32", factors)
    return ModelFiles("m", "gguf", write_gguf(path, metadata, tensors))


@pytest.mark.parametrize("name", ["llama", "llama3-rope", "qwen2", "qwen3"])
def test_logits_are_those_of_the_model_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Heads permuted or not, tied head or not, biases, head norms, Llama 3's rotary factors."""
    reference = save_model(name, tmp_path / "hf")
    engine = start_engine(convert(reference, tmp_path / "m.gguf"))
    tokens = prompt(100)
    assert_same(engine.execute(make_step(Rows(tokens, 0, [3, 1]))), reference.logits(tokens))


@pytest.mark.parametrize("quant", QUANTS)
def test_quantized_weights_are_used_as_they_are(quant: str, tmp_path: Path) -> None:
    """Equal to transformers with the dequantized values."""
    reference = save_model("llama", tmp_path / "hf")
    files = convert(reference, tmp_path / "m.gguf", quant)
    with torch.no_grad():
        for name, stored in open_weights(files, read_config(files)).items():
            values = torch.tensor(stored.float32(0, len(stored.arrays[0])).reshape(stored.shape))
            reference.model.get_parameter(f"model.{name}").copy_(values)
    tokens = prompt(40)
    assert_same(start_engine(files).execute(make_step(Rows(tokens, 0, [3]))), reference.logits(tokens))


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    reference = save_model("llama", tmp_path / "hf")
    config = (tmp_path / "hf" / "config.json").read_text()
    (tmp_path / "hf" / "config.json").write_text(
        config.replace('"intermediate_size": 160', '"intermediate_size": 96')
    )
    with pytest.raises(InvalidRequest, match=r"gate_proj.weight has shape \(160, 96\), expected \(96, 96\)"):
        start_engine(reference.files)
