"""The line that users paste."""

import json
import shlex

from paceline.cli.example import PROMPT, curl


def body_of(line: str) -> dict[str, object]:
    words = shlex.split(line)
    body: dict[str, object] = json.loads(words[words.index("-d") + 1])
    return body


def test_a_shell_reads_one_command_with_the_whole_prompt() -> None:
    line = curl("http://127.0.0.1:8080", "org/it's-a-model", with_key=False)
    assert "\n" not in line
    assert shlex.split(line)[:3] == ["curl", "-N", "http://127.0.0.1:8080/v1/chat/completions"]
    body = body_of(line)
    assert body["model"] == "org/it's-a-model"
    assert body["messages"] == [{"role": "user", "content": PROMPT}]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_the_prompt_fills_four_pages_whatever_the_tokenizer() -> None:
    # A token never spans two words of prose.
    assert len(PROMPT.split()) > 256


def test_the_passage_needs_no_quoting() -> None:
    assert not set(PROMPT) & set("'\"\\!$`")


def test_a_key_is_sent_only_when_the_gateway_wants_one() -> None:
    url = "http://127.0.0.1:8080"
    assert "Authorization" not in curl(url, "m", with_key=False)
    # Expanded by the user's shell, so the key itself is not printed.
    assert '-H "Authorization: Bearer $PACELINE_API_KEY"' in curl(url, "m", with_key=True)
