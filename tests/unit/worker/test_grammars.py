"""Constraints for a worker's requests."""

import json
import threading
from unittest.mock import patch

import pytest

from paceline.contracts.errors import InvalidRequest
from paceline.engine.constraint import Grammars
from paceline.engine.masks import Constraint
from paceline.model.files import ModelFiles
from paceline.worker.grammars import GrammarThread
from tests.unit.engine_torch.models import save_model

DIGITS = json.dumps({"grammars": [{"lark_grammar": "start: /[0-9]{3}/"}]})


async def test_a_constraint_is_made_in_a_thread_of_its_own() -> None:
    thread = GrammarThread(None, 512, {0})
    await thread.load()
    names: list[str] = []
    make = Grammars.constraint

    def spy(self: Grammars, grammar: str, output: list[int]) -> Constraint:
        names.append(threading.current_thread().name)
        return make(self, grammar, output)

    with patch.object(Grammars, "constraint", spy):
        constraint = await thread.constraint(DIGITS, list(b"12"))
    assert constraint.take(ord("3"))
    assert constraint.ended
    (name,) = names
    assert name.startswith("grammars")
    thread.close()


async def test_a_model_without_a_tokenizer_takes_no_grammar(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files: ModelFiles = save_model("llama", tmp_path_factory.mktemp("llama")).files
    thread = GrammarThread(files, 160, {2})
    await thread.load()
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json is missing") as error:
        await thread.constraint(DIGITS, [])
    assert error.value.param == "grammar"
    thread.close()
