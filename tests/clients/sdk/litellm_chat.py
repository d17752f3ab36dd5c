"""An agent on litellm."""

from typing import Any

import litellm

from tests.clients.sdk import loop
from tests.clients.sdk.loop import Call, Turn
from tests.clients.sdk.openai_chat import Chat


class Lite(Chat):
    def _streamed(self, request: dict[str, Any]) -> Turn:
        chunks = list(self._complete(request, stream=True, stream_options={"include_usage": True}))
        return self._turn(litellm.stream_chunk_builder(chunks))

    def _whole(self, request: dict[str, Any]) -> Turn:
        return self._turn(self._complete(request))

    def _complete(self, request: dict[str, Any], **more: Any) -> Any:
        options = self._options
        asked = {**request, **more, "model": f"openai/{options.model}"}
        return litellm.completion(**asked, api_base=f"{options.url}/v1", api_key="unused", max_retries=3)

    def _turn(self, response: Any) -> Turn:
        (choice,) = response.choices
        message = choice.message
        calls = [Call(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
        reasoning = getattr(message, "reasoning_content", None) or ""
        return Turn(message.content or "", reasoning, calls, choice.finish_reason == "length")


if __name__ == "__main__":
    loop.main(Lite)
