"""Builders with defaults for the gateway's tests."""

from typing import Literal

from paceline.contracts.messages import Beacon, Load, ModelInfo, Role

MODEL = ModelInfo(
    name="m", context=4096, fingerprint=b"p" * 32, kv_dtype="float32", page_bytes=1024, engine="fake"
)


def make_beacon(
    role: Role,
    worker: str,
    *,
    load: Load | None = None,
    model: ModelInfo | None = MODEL,
    host: str = "h",
    state: Literal["starting", "ready", "draining", "gone"] = "ready",
    incarnation: str = "i1",
) -> Beacon:
    return Beacon(
        role=role,
        worker=worker,
        incarnation=incarnation,
        host=host,
        pid=1,
        state=state,
        started=1.0,
        load=load or Load(),
        model=model,
    )
