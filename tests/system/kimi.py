"""A tiny Kimi K2.5 as the hub has it: the text model inside one that also sees, and routed experts in INT4."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from torch import Tensor

from paceline.quantize.options import Options
from paceline.quantize.run import quantize
from tests.system.tiny import CONTEXT, save_tokenizer

library: Any = transformers  # typed only in part

_GROUP = 32
_LAYERS = 3
_EXPERTS = 8
# Printable bytes alone, as the byte-level alphabet spells them: no two answers are one text.
_ALPHABET = ("Ċ", "Ġ", *map(chr, range(33, 127)))
# Rounding KV to FP8 tips no token of the answers in the tests.
_SEED = 37
# The hub's list, which names modules from the beginning of their names in the files.
_NOT_QUANTISED = (
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
)


def save_kimi(directory: Path) -> Any:
    """Save the model to `directory`, which is made; the same in transformers, with its experts as INT4 left them."""
    directory.mkdir()
    vocab = save_tokenizer(directory, _ALPHABET)
    plain, quantised = (directory.with_name(f"{directory.name}-{part}") for part in ("plain", "int4"))
    model = _random_model(vocab)
    model.save_pretrained(plain)
    quantize(plain, quantised, Options("int4", _GROUP, experts_only=True), lambda done, total: None)
    tensors = safetensors.torch.load_file(quantised / "model-00001-of-00001.safetensors")
    _dequantise_experts(model, tensors)
    renamed = {f"language_model.{name}": values for name, values in tensors.items()}
    renamed["vision_tower.patch_embed.proj.weight"] = torch.zeros(4, 4)
    safetensors.torch.save_file(renamed, directory / "model.safetensors")
    text = json.loads((quantised / "config.json").read_text()) | {"model_type": "kimi_k2"}
    text["quantization_config"]["ignore"] = _NOT_QUANTISED
    config = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": text,
        "vision_config": {"hidden_size": 16},
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The answer of a model in transformers."""
    found = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    answer: list[int] = found[0, len(prompt) :].tolist()
    return answer


def _random_model(vocab: int) -> Any:
    config = library.DeepseekV3Config(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=32,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=_EXPERTS,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.827,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=128,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 50000.0,
            "factor": 64.0,
            "original_max_position_embeddings": 256,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        initializer_range=0.15,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=None,
    )
    torch.manual_seed(_SEED)
    model = library.DeepseekV3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, values in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name or "bias" in name:
                values.add_(torch.randn_like(values) * 0.2)
        # Attention that outweighs the token itself would let every rounding decide the next one.
        model.model.embed_tokens.weight.mul_(1.5)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.03)
    return model


def _dequantise_experts(model: Any, tensors: dict[str, Tensor]) -> None:
    """By hand: codes of 4 bits, the first in the lowest, less 8, times the scale of their group."""

    def matrix(layer: int, expert: int, module: str) -> Tensor:
        name = f"model.layers.{layer}.mlp.experts.{expert}.{module}"
        words, scales = tensors[f"{name}.weight_packed"], tensors[f"{name}.weight_scale"]
        codes = words[..., None] >> torch.arange(0, 32, 4) & 15
        values = (codes.view(*scales.shape, _GROUP) - 8) * scales[..., None].float()
        return values.view(len(words), -1)

    with torch.no_grad():
        for i in range(1, _LAYERS):
            experts = model.model.layers[i].mlp.experts
            for e in range(_EXPERTS):
                experts.gate_up_proj[e] = torch.cat([matrix(i, e, m) for m in ("gate_proj", "up_proj")])
                experts.down_proj[e] = matrix(i, e, "down_proj")
