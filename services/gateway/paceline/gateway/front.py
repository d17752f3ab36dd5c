"""What the HTTP handlers of one gateway share."""

from dataclasses import dataclass, replace

from paceline.contracts.errors import ModelNotFound, Unavailable
from paceline.gateway.admission import Admission
from paceline.gateway.answer import Usage
from paceline.gateway.auth import Keys
from paceline.gateway.limits import Limits
from paceline.gateway.mesh import Mesh
from paceline.gateway.metrics import Metrics
from paceline.gateway.prices import Prices
from paceline.gateway.settings import Settings
from paceline.gateway.tokenizing import Tokenizing
from paceline.gateway.uploads import Uploads


@dataclass
class Front:
    """`tokenizing` is None until the model's tokenizer is loaded; `created` is when the gateway began, UNIX seconds."""

    settings: Settings
    model: str
    created: int
    keys: Keys
    limits: Limits
    metrics: Metrics
    admission: Admission
    uploads: Uploads
    mesh: Mesh
    aliases: frozenset[str] = frozenset()
    prices: Prices | None = None
    tokenizing: Tokenizing | None = None
    draining: bool = False

    def language(self) -> Tokenizing:
        """The model's tokenizer and template. Raises `Unavailable` when no new request can be taken."""
        if self.draining:
            raise Unavailable("the server is shutting down")
        if self.tokenizing is None:
            raise Unavailable("the server is starting")
        return self.tokenizing

    def check_model(self, name: str) -> None:
        """Raises `ModelNotFound` when a client asks for a model of this name, which is "" if it does not say."""
        if name not in ("", self.model) and not self.aliases & {name, "*"}:
            raise ModelNotFound(f"The model {name!r} does not exist; this server has {self.model!r}")

    def priced(self, usage: Usage) -> Usage:
        """With what it costs."""
        return usage if self.prices is None else replace(usage, cost=self.prices.cost(usage))

    def missing(self) -> list[str]:
        """What stands between a request and its answer; nothing when the model can be served."""
        missing = []
        if self.draining:
            missing.append("gateway: draining")
        if self.tokenizing is None:
            missing.append("gateway: tokenizer is loading")
        try:
            self.mesh.room(self.model)
        except Unavailable:
            missing.append(f"decode: no worker is ready for {self.model}")
        return missing
