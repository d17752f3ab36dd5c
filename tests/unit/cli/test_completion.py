"""What `paceline chat` makes of a gateway's answers."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline.cli.completion import ChatError, Figures, Server, first_model, stream

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[Server]]

MESSAGES = [{"role": "user", "content": "hi"}]
USAGE = '{"choices":[],"usage":{"prompt_tokens":90,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":64}}}'


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a gateway that answers everything with one handler."""
    servers: list[TestServer] = []

    async def serve(handler: Handler) -> Server:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return Server(str(server.make_url("")).rstrip("/"))

    yield serve
    for server in servers:
        await server.close()


def sse(*events: str, end: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in [*events, *(["[DONE]"] if end else [])]:
            await response.write(f"data: {event}\n\n".encode())
        return response

    return handler


def delta(text: str) -> str:
    return f'{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}'


async def collect(server: Server, figures: Figures) -> list[str]:
    return [text async for text in stream(server, "m", MESSAGES, figures)]


async def test_text_arrives_in_pieces_and_usage_fills_the_figures(serve: Serve) -> None:
    role = '{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}'
    server = await serve(sse(role, delta("Hello"), delta(" you"), USAGE))
    figures = Figures()
    assert await collect(server, figures) == ["Hello", " you"]
    assert (figures.prompt_tokens, figures.cached_tokens, figures.completion_tokens) == (90, 64, 3)
    assert figures.ttft_s is not None
    assert 0 < figures.ttft_s <= figures.total_s


def test_speed_counts_the_tokens_after_the_first() -> None:
    assert Figures(ttft_s=1.0, total_s=3.0, completion_tokens=5).tokens_per_s == 2.0
    assert Figures(ttft_s=1.0, total_s=1.0, completion_tokens=1).tokens_per_s is None


async def test_an_error_in_the_stream_is_shown(serve: Serve) -> None:
    server = await serve(sse(delta("Hel"), '{"error":{"message":"worker lost","type":"server_error"}}'))
    with pytest.raises(ChatError, match=r"^worker lost$"):
        await collect(server, Figures())


async def test_a_stream_without_an_end_is_no_answer(serve: Serve) -> None:
    server = await serve(sse(delta("Hel"), end=False))
    with pytest.raises(ChatError, match=r"^the answer broke off$"):
        await collect(server, Figures())


async def test_a_refusal_shows_its_status_and_message(serve: Serve) -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "try later"}}, status=429)

    with pytest.raises(ChatError, match=r"^HTTP 429: try later$"):
        await collect(await serve(refuse), Figures())


async def test_the_key_and_the_question_are_sent(serve: Serve) -> None:
    seen: list[object] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        seen.extend([request.path, request.headers["Authorization"], await request.json()])
        return await sse()(request)

    server = await serve(handler)
    asked = stream(Server(server.url, "secret"), "m", MESSAGES, Figures(), temperature=0)
    assert [text async for text in asked] == []
    assert seen == [
        "/v1/chat/completions",
        "Bearer secret",
        {
            "model": "m",
            "messages": MESSAGES,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        },
    ]


async def test_the_first_served_model_is_taken(serve: Serve) -> None:
    async def models(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "a"}, {"id": "b"}]})

    assert await first_model(await serve(models)) == "a"


async def test_nobody_there_says_how_to_start_one(unused_tcp_port: int) -> None:
    with pytest.raises(ChatError, match="paceline up"):
        await first_model(Server(f"http://127.0.0.1:{unused_tcp_port}"))
