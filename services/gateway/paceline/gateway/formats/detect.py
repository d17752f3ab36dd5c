"""Which form a model speaks, told from its chat template."""
# ruff: noqa: RUF001 - the bars of DeepSeek's markers are not those of ASCII

from collections.abc import Collection

from paceline.gateway.formats.deepseek_v3 import DeepSeekV3
from paceline.gateway.formats.deepseek_v32 import SECTIONS, DeepSeekV32
from paceline.gateway.formats.family import THINK, Family
from paceline.gateway.formats.glm import Glm
from paceline.gateway.formats.harmony import Harmony
from paceline.gateway.formats.hermes import Hermes
from paceline.gateway.formats.interface import Format
from paceline.gateway.formats.kimi_k2 import KimiK2
from paceline.gateway.formats.llama3 import Llama3
from paceline.gateway.formats.plain import Plain
from paceline.gateway.formats.pythonic import Pythonic
from paceline.gateway.formats.qwen3_coder import Qwen3Coder

# What a template contains, and the family that this means; the first counts.
_SIGNS: tuple[tuple[str, type[Family]], ...] = (
    ("<|channel|>", Harmony),
    ("<|tool_calls_section_begin|>", KimiK2),
    ("<function=", Qwen3Coder),
    ("<tool_call>", Hermes),
    ("[func_name1(", Pythonic),
    ("<|python_start|>", Pythonic),
    ("<|python_tag|>", Llama3),
    ('"parameters": dictionary of argument name', Llama3),
    ("tools", Hermes),
)


def detect(template: str, special_tokens: Collection[str]) -> Format:
    """The form of the model with this chat template (its source). `special_tokens` are those that llguidance takes for
    special in the model's vocabulary: a grammar has to name them."""
    special = frozenset(special_tokens)
    thinks = THINK in template
    if "｜DSML｜" in template:
        section = next((section for section in SECTIONS if f"{section}>" in template), SECTIONS[0])
        return DeepSeekV32(special, thinks=thinks, section=section)
    if "<｜tool▁calls▁begin｜>" in template:
        return DeepSeekV3(special, thinks=thinks, fenced="```json" in template)
    if "<arg_key>" in template:
        return Glm(special, thinks=thinks, lines="<tool_call>{function-name}\n" in template)
    family = next((family for sign, family in _SIGNS if sign in template), Plain)
    return family(special, thinks=thinks)
