"""What an operator can choose; `runtime.config.read` fills it from PACELINE_* variables."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Of each tenant the last `drafter_tenant_tokens` tokens are kept, 20 to 140 bytes each, for the
    `drafter_tenants` most recent tenants.
    """

    drafter_tenant_tokens: int = 200_000
    drafter_tenants: int = 16
