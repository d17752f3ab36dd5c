"""An agent on pydantic-ai, which has a loop of its own."""

from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.clients.sdk import loop


def shell(command: str) -> str:
    """Run a command in a shell and return what it prints."""
    return loop.run_shell(command)


def main() -> None:
    options, state, prompt = loop.arguments()
    provider = OpenAIProvider(base_url=f"{options.url}/v1", api_key="unused")
    model = OpenAIChatModel(options.model, provider=provider)
    agent = Agent(model, tools=[shell], model_settings=ModelSettings(max_tokens=options.max_tokens))
    history = ModelMessagesTypeAdapter.validate_json(state.read_bytes()) if state.exists() else None
    if options.stream:
        result = agent.run_stream_sync(prompt, message_history=history)
        output = result.get_output()
    else:
        result = agent.run_sync(prompt, message_history=history)
        output = result.output
    thoughts = [
        part.content for m in result.new_messages() for part in m.parts if part.part_kind == "thinking"
    ]
    loop.tell({"text": output, "reasoning": "".join(thoughts)})
    state.write_bytes(result.all_messages_json())


if __name__ == "__main__":
    main()
