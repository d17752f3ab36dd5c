"""An agent on the anthropic SDK's Messages."""

import json
from typing import Any

import anthropic

from tests.clients.sdk import loop
from tests.clients.sdk.loop import Call, Options, Turn


class Messages:
    def __init__(self, options: Options) -> None:
        self._client = anthropic.Anthropic(base_url=options.url, api_key="unused")
        self._options = options
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def answer(self) -> Turn:
        request: dict[str, Any] = {
            "model": self._options.model,
            "messages": self.history,
            "tools": [{"name": loop.TOOL, "description": loop.DESCRIPTION, "input_schema": loop.PARAMETERS}],
            "max_tokens": self._options.max_tokens,
        }
        if self._options.stream:
            with self._client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = self._client.messages.create(**request)
        self.history.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in message.content],
            }
        )
        turn = Turn(cut=message.stop_reason == "max_tokens")
        for block in message.content:
            if block.type == "text":
                turn.text += block.text
            elif block.type == "thinking":
                turn.reasoning += block.thinking
            elif block.type == "tool_use":
                turn.calls.append(Call(block.id, block.name, json.dumps(block.input)))
        return turn

    def results(self, results: list[tuple[Call, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "content": output} for call, output in results
        ]
        self.history.append({"role": "user", "content": content})


if __name__ == "__main__":
    loop.main(Messages)
