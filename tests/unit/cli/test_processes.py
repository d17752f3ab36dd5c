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
    specs = children(Options(engine="fake", device="cuda:1", dtype="float32"), SHARED)
    assert [(s.role, s.env) for s in specs if s.role == "decode"] == [
        (
            "decode",
            {
                **SHARED,
                "PACELINE_ENGINE": "fake",
                "PACELINE_DEVICE": "cuda:1",
                "PACELINE_DTYPE": "float32",
                "PACELINE_WORKER": "decode-0",
            },
        )
    ]


def test_decode_workers_may_keep_kv_in_a_form_of_their_own() -> None:
    specs = children(Options(kv_dtype="bfloat16", decode_kv_dtype="fp8_e4m3"), SHARED)
    found = {spec.role: spec.env["PACELINE_KV_DTYPE"] for spec in specs}
    assert (found["prefill"], found["decode"]) == ("bfloat16", "fp8_e4m3")
    assert "PACELINE_KV_DTYPE" not in children(Options(), SHARED)[0].env


def test_decode_workers_may_round_weights_by_themselves() -> None:
    specs = children(Options(engine="cpu", weights="int8", decode_weights="int4"), SHARED)
    found = {spec.role: spec.env["PACELINE_WEIGHTS"] for spec in specs}
    assert (found["prefill"], found["decode"]) == ("int8", "int4")
    assert "PACELINE_WEIGHTS" not in children(Options(), SHARED)[0].env
