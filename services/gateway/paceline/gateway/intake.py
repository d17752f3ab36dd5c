"""From an HTTP request to jobs for the mesh: every check that can be made before a worker hears of it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from paceline.contracts.errors import InvalidRequest
from paceline.contracts.messages import MAX_PROMPT_LOGPROBS, Sampling
from paceline.gateway.ask import Ask
from paceline.gateway.auth import Tenant
from paceline.gateway.call import Job
from paceline.gateway.errors import Rejected, body_timed_out, http_problem, too_large
from paceline.gateway.front import Front
from paceline.gateway.session import session_key
from paceline.gateway.tokenizing import Encoded, Tokenizing
from paceline.gateway.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers that a request asks for. `first` of those to the same prompt, whose cached pages the others
    use: they begin when it has begun."""

    job: Job
    prompt: Encoded
    first: bool


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


async def make_choices(
    front: Front,
    language: Tokenizing,
    ask: Ask,
    headers: Mapping[str, str],
    tenant: Tenant,
    request_id: str,
    deadline: float,
) -> list[Choice]:
    """Tokenize, and check that it fits. Raises the errors that the client is to see."""
    front.check_model(ask.model)
    room = front.mesh.room(front.model)
    choices = []
    for i, prompt in enumerate(ask.prompts):
        encoded = await language.encode(prompt, ask, room)
        sampling = _sampling(ask, encoded, room)
        session = session_key(headers, ask.cache_key, salt=tenant.salt, prompt=encoded.tokens)
        stop_ids = frozenset(sampling.stop_token_ids)
        for j in range(ask.choices):
            number = i * ask.choices + j
            job = Job(
                request_id=_id_of(request_id, number),
                model=front.model,
                tenant=tenant.name,
                salt=tenant.salt,
                session=session,
                prompt=encoded.tokens,
                sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + number) % 2**63),
                stop_ids=stop_ids if sampling.ignore_eos else stop_ids | language.tokenizer.eos_ids,
                draft=ask.draft,
                deadline=deadline,
                low_priority=ask.low_priority,
            )
            choices.append(Choice(job, encoded, first=j == 0))
    return choices


def _sampling(ask: Ask, prompt: Encoded, room: int) -> Sampling:
    # Of an echo without an answer the one token that a worker has to say is left out.
    limit = max(1, min(ask.sampling.max_tokens, room - len(prompt.tokens)))
    scored = ask.logprobs if ask.echo else None
    if scored is not None and len(prompt.tokens) * (1 + scored) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest("The prompt is too long for log probabilities of its tokens", param="logprobs")
    return msgspec.structs.replace(
        ask.sampling,
        max_tokens=limit,
        grammar=prompt.grammar,
        logprobs=ask.logprobs,
        prompt_logprobs=scored,
    )


def _id_of(request_id: str, number: int) -> str:
    """In the mesh each answer is a request of its own; the first bears the client's id."""
    if number == 0:
        return request_id
    return hashlib.sha256(f"{request_id} {number}".encode()).hexdigest()[:32]
