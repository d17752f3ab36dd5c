"""What the user asked for."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from paceline.contracts.errors import InvalidRequest
from paceline.quantize.format import Format
from paceline.quantize.fp8 import Fp8BlockFormat, Fp8ChannelFormat
from paceline.quantize.int4 import Int4Format

Target: TypeAlias = Literal["int4", "fp8"]
Fp8Scales: TypeAlias = Literal["block", "channel"]
GROUPS = (32, 64, 128)

_SMALLEST_SHARD = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """`keep` are patterns of modules that stay as they are; `shard_bytes` bounds the files that are written."""

    target: Target
    group: int = 32
    fp8: Fp8Scales = "block"
    keep: tuple[str, ...] = ()
    experts_only: bool = False
    shard_bytes: int = 5_000_000_000

    def __post_init__(self) -> None:
        """Raises `InvalidRequest` for values that are not offered."""
        if self.group not in GROUPS:
            raise InvalidRequest(f"--group {self.group} is none of {', '.join(map(str, GROUPS))}")
        if self.shard_bytes < _SMALLEST_SHARD:
            raise InvalidRequest("shards of less than 1 MB are not worth a file each")

    def format(self) -> Format:
        if self.target == "int4":
            return Int4Format(self.group)
        return Fp8BlockFormat() if self.fp8 == "block" else Fp8ChannelFormat()
