"""From an HTTP request to a job for the mesh: every check that can be made before a worker hears of it."""

from collections.abc import Mapping

from aiohttp import web

from paceline.contracts.errors import ModelNotFound
from paceline.gateway.auth import Tenant
from paceline.gateway.call import Job
from paceline.gateway.errors import Rejected, body_timed_out, http_problem, too_large
from paceline.gateway.front import Front
from paceline.gateway.openai import ChatRequest
from paceline.gateway.session import session_key
from paceline.gateway.tokenizing import Tokenizing
from paceline.gateway.uploads import Uploads


async def read_body(http: web.Request, uploads: Uploads, *, limit: int, timeout: float) -> bytes:
    """The whole body. Raises `Rejected`: 413 when it has more than `limit` bytes, before reading it where its length
    was announced; 408 when it takes longer than `timeout` seconds, or than its place in `uploads` is left to it; 400
    when its encoding is broken. Raises `Busy` when too many bodies are read already."""
    if (http.content_length or 0) > limit:
        raise Rejected(too_large(limit))
    try:
        async with uploads.place(timeout):
            return await http.read()
    except web.HTTPRequestEntityTooLarge as e:
        raise Rejected(too_large(limit)) from e
    except TimeoutError as e:
        raise Rejected(body_timed_out()) from e
    except web.RequestPayloadError as e:
        raise Rejected(http_problem(400, "The body cannot be decoded")) from e


async def make_job(
    front: Front,
    language: Tokenizing,
    headers: Mapping[str, str],
    body: bytes,
    tenant: Tenant,
    request_id: str,
    deadline: float,
) -> tuple[ChatRequest, Job]:
    """Validate, tokenize, and check that it fits. Raises the errors that the client is to see."""
    tokenizer = language.tokenizer
    chat = await language.parse(body)
    if chat.model != front.model:
        raise ModelNotFound(f"The model {chat.model!r} does not exist; this server has {front.model!r}")
    room = front.mesh.room(front.model)
    prompt = await language.encode(chat, room)
    stop_ids = frozenset(chat.stop_token_ids or ())
    job = Job(
        request_id=request_id,
        model=front.model,
        tenant=tenant.name,
        salt=tenant.salt,
        session=session_key(headers, chat.prompt_cache_key, salt=tenant.salt, prompt=prompt),
        prompt=prompt,
        sampling=chat.sampling(room - len(prompt)),
        stop_ids=stop_ids if chat.ignore_eos else stop_ids | tokenizer.eos_ids,
        draft=chat.draft is not False,
        deadline=deadline,
    )
    return chat, job
