"""Which processes a command line asks for."""

from paceline.cli.processes import Options, children

SHARED = {"PACELINE_NATS_URL": "nats://t@127.0.0.1:1"}


def workers(options: Options) -> list[str]:
    return [spec.worker for spec in children(options, SHARED)]


def test_one_of_each_by_default() -> None:
    assert workers(Options()) == ["gateway-0", "kvstore-0", "prefill-0", "decode-0", "drafter-0"]


def test_counts() -> None:
    assert workers(Options(prefill=2, decode=3, draft=False)) == [
        *("gateway-0", "kvstore-0", "prefill-0", "prefill-1"),
        *("decode-0", "decode-1", "decode-2"),
    ]


def test_unified_workers_replace_prefill_and_decode_with_as_many_processes() -> None:
    assert workers(Options(unified=True)) == ["gateway-0", "kvstore-0", "decode-0", "decode-1", "drafter-0"]
    assert workers(Options(unified=True, decode=1, prefill=4)) == [
        "gateway-0",
        "kvstore-0",
        "decode-0",
        "drafter-0",
    ]


def test_settings_reach_every_child_beside_its_own_name() -> None:
    specs = children(Options(engine="fake", dtype="float32"), SHARED)
    assert [(s.role, s.env) for s in specs if s.role == "decode"] == [
        (
            "decode",
            {
                **SHARED,
                "PACELINE_ENGINE": "fake",
                "PACELINE_DTYPE": "float32",
                "PACELINE_WORKER": "decode-0",
            },
        )
    ]
