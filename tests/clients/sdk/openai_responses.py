"""An agent on the openai SDK's Responses, which sends its whole history each time."""

from typing import Any

import openai

from tests.clients.sdk import loop
from tests.clients.sdk.loop import Call, Options, Turn


class Responses:
    def __init__(self, options: Options) -> None:
        self._client = openai.OpenAI(base_url=f"{options.url}/v1", api_key="unused")
        self._options = options
        self.history: list[Any] = []

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def answer(self) -> Turn:
        tool = {
            "type": "function",
            "name": loop.TOOL,
            "description": loop.DESCRIPTION,
            "parameters": loop.PARAMETERS,
            "strict": False,
        }
        request: dict[str, Any] = {
            "model": self._options.model,
            "input": self.history,
            "tools": [tool],
            "max_output_tokens": self._options.max_tokens,
            "store": False,
        }
        response = (
            self._streamed(request) if self._options.stream else self._client.responses.create(**request)
        )
        self.history += [item.model_dump(exclude_none=True) for item in response.output]
        turn = Turn(response.output_text, cut=response.status == "incomplete")
        for item in response.output:
            if item.type == "function_call":
                turn.calls.append(Call(item.call_id, item.name, item.arguments))
            elif item.type == "reasoning":
                turn.reasoning += "".join(part.text for part in item.content or [])
        return turn

    def results(self, results: list[tuple[Call, str]]) -> None:
        self.history += [
            {"type": "function_call_output", "call_id": call.id, "output": output} for call, output in results
        ]

    def _streamed(self, request: dict[str, Any]) -> Any:
        text = ""
        for event in self._client.responses.create(**request, stream=True):
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                assert text == event.response.output_text
                return event.response
            elif event.type in ("response.failed", "error"):
                raise RuntimeError(f"the answer broke off: {event}")
        raise RuntimeError("the stream has no end")


if __name__ == "__main__":
    loop.main(Responses)
