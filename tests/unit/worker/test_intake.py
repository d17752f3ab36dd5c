from typing import Any

import msgspec
import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import Sampling
from paceline.worker.intake import check
from tests.workers import make_work

GOOD = make_work([1, 2, 99])


def test_good_work_passes() -> None:
    check(GOOD, vocab=100)
    scored = Sampling(max_tokens=8, logprobs=20, prompt_logprobs=1)
    check(msgspec.structs.replace(GOOD, prompt=[1] * 65536, sampling=scored), vocab=100)


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "zz"},
        {"request_id": "A" * 32},
        {"attempt": 0},
        {"attempt": 2**16},
        {"gateway": "a b"},
        {"gateway": "a.*"},
        {"prompt": []},
        {"prompt": [1, 100]},
        {"prompt": [-1]},
        {"prompt": [2**40]},
        {"prompt": [2**80]},
        {"output": [100]},
        {"output": list(range(8))},
        {"sampling": Sampling(max_tokens=0)},
        {"sampling": Sampling(max_tokens=8, logit_bias={100: 1.0})},
        {"sampling": Sampling(max_tokens=8, stop_token_ids=(100,))},
        {"sampling": Sampling(max_tokens=8, logprobs=21)},
        {"sampling": Sampling(max_tokens=8, logprobs=-1)},
        {"sampling": Sampling(max_tokens=8, prompt_logprobs=21)},
        {"sampling": Sampling(max_tokens=8, prompt_logprobs=-1)},
        {"prompt": [1] * 65537, "sampling": Sampling(max_tokens=8, prompt_logprobs=1)},
    ],
    ids=str,
)
def test_work_that_would_fail_beside_others_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        check(msgspec.structs.replace(GOOD, **change), vocab=100)
