"""An agent on the openai SDK's Chat Completions."""

from typing import Any

import openai

from tests.clients.sdk import loop
from tests.clients.sdk.loop import Call, Options, Turn


class Chat:
    def __init__(self, options: Options) -> None:
        self._client = openai.OpenAI(base_url=f"{options.url}/v1", api_key="unused")
        self._options = options
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def answer(self) -> Turn:
        function = {"name": loop.TOOL, "description": loop.DESCRIPTION, "parameters": loop.PARAMETERS}
        request: dict[str, Any] = {
            "model": self._options.model,
            "messages": self.history,
            "tools": [{"type": "function", "function": function}],
            "max_tokens": self._options.max_tokens,
        }
        turn = self._streamed(request) if self._options.stream else self._whole(request)
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in turn.calls
            ]
        self.history.append(message)
        return turn

    def results(self, results: list[tuple[Call, str]]) -> None:
        self.history += [
            {"role": "tool", "tool_call_id": call.id, "content": output} for call, output in results
        ]

    def _streamed(self, request: dict[str, Any]) -> Turn:
        turn = Turn()
        stream = self._client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            for choice in chunk.choices:
                turn.text += choice.delta.content or ""
                turn.reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                turn.cut |= choice.finish_reason == "length"
                for part in choice.delta.tool_calls or []:
                    if part.id:
                        assert part.index == len(turn.calls)
                        turn.calls.append(Call(part.id, part.function.name))
                    turn.calls[part.index].arguments += part.function.arguments or ""
        return turn

    def _whole(self, request: dict[str, Any]) -> Turn:
        (choice,) = self._client.chat.completions.create(**request).choices
        message = choice.message
        calls = [Call(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
        reasoning = getattr(message, "reasoning_content", None) or ""
        return Turn(message.content or "", reasoning, calls, choice.finish_reason == "length")


if __name__ == "__main__":
    loop.main(Chat)
