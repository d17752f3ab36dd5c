"""What `paceline plan` prints: the answer, the arithmetic behind it as tables, then what it takes for granted."""

from rich.table import Table

from paceline.cli.screen import Screen
from paceline.planner.kv import SpanCost
from paceline.planner.plan import Plan
from paceline.planner.published import TOLERANCE, Claim
from paceline.planner.summary import Summary
from paceline.planner.units import GIB, both


def show(plan: Plan, summary: Summary, screen: Screen) -> None:
    screen.line(_verdict(plan, summary), style="bold green" if summary.fits else "bold red")
    held = "tokens that such a pool would hold" if _excess(plan) else "tokens that fit"
    screen.line(_by_role(f"{held}, in all", [(p.role, p.tokens) for p in plan.profiles]))
    screen.line(_by_role("longest sequence", [(p.role, p.longest) for p in plan.profiles]))
    screen.line()
    screen.line(
        f"{summary.model}: {summary.parameters / 1e9:,.2f}B parameters, {summary.weights}", style="bold"
    )
    screen.line(summary.source, style="dim")
    screen.line()
    screen.console.print(_weights(plan))
    if summary.stored_bytes is not None:
        screen.line(f"the directory holds {both(summary.stored_bytes)} of tensors, in all")
    screen.line()
    screen.console.print(_memory(plan))
    screen.line()
    for assumption in summary.assumptions:
        screen.line(f"- {assumption}", style="dim")


def show_claims(claims: list[Claim], screen: Screen) -> None:
    grid = _grid(
        "model",
        "published",
        "",
        "our arithmetic",
        "range of readings",
        "verdict",
        left=("model", "published"),
    )
    for claim in claims:
        unit = "" if claim.unit == "tokens" else f" {claim.unit}"
        grid.add_row(
            claim.model,
            claim.what,
            _number(claim.published) + unit,
            "-" if claim.ours is None else _number(claim.ours),
            f"{_number(claim.low)} - {_number(claim.high)}",
            claim.verdict,
        )
    screen.console.print(grid)
    screen.line()
    for claim in claims:
        screen.line(f"{claim.model}, {claim.what}: {claim.arithmetic}.", style="dim")
    screen.line()
    screen.line(
        f"explained: within {TOLERANCE:.0%}. The figures are their operator's; nothing is fitted to them."
    )


def _weights(plan: Plan) -> Table:
    grid = _grid("weights", "parameters", "stored as", "in all", "per GPU", left=("weights", "stored as"))
    for row in plan.kinds:
        grid.add_row(
            row.kind,
            f"{row.parameters / 1e9:,.3f}B",
            ", ".join(row.precisions),
            f"{row.bytes / GIB:,.2f} GiB",
            f"{row.bytes_per_gpu / GIB:,.2f} GiB",
        )
    grid.add_section()
    grid.add_row("all", f"{plan.parameters / 1e9:,.3f}B", "", both(plan.weights), both(plan.weights_per_gpu))
    return grid


def _memory(plan: Plan) -> Table:
    request, parallel = plan.request, plan.request.parallel
    one = "one GPU" if parallel.gpus == 1 else f"one of {parallel.gpus} GPUs"
    name = f"{one}: TP {parallel.tp}, PP {parallel.pp}, EP {parallel.ep}, DP {parallel.dp}"
    grid = _grid(name, *(profile.role for profile in plan.profiles), left=(name,))
    for label, values in (
        ("memory", [f"{request.gpu_memory / GIB:,.2f} GiB" for _ in plan.profiles]),
        ("- reserve", [f"{request.reserve / GIB:,.2f} GiB" for _ in plan.profiles]),
        ("- weights", [f"{profile.weights / GIB:,.2f} GiB" for profile in plan.profiles]),
        ("- workspace", [f"{profile.workspace.bytes / GIB:,.2f} GiB" for profile in plan.profiles]),
        ("    of hidden states", [f"{profile.workspace.hidden / GIB:,.2f} GiB" for profile in plan.profiles]),
        ("    the larger of attention", [f"{p.workspace.attention / GIB:,.2f} GiB" for p in plan.profiles]),
        ("    and MLP or experts", [f"{profile.workspace.mlp / GIB:,.2f} GiB" for profile in plan.profiles]),
        ("    and logits", [f"{profile.workspace.logits / GIB:,.2f} GiB" for profile in plan.profiles]),
        (
            "= KV pool" if request.kv_pool is None else "= left",
            [f"{profile.left / GIB:,.2f} GiB" for profile in plan.profiles],
        ),
    ):
        grid.add_row(label, *values)
    if request.kv_pool is not None:
        grid.add_row("KV pool, as given", *(f"{profile.pool / GIB:,.2f} GiB" for profile in plan.profiles))
    grid.add_section()
    grid.add_row("KV stored as", *(profile.kv_dtype for profile in plan.profiles))
    for i, cost in enumerate(plan.profiles[0].kv.spans):
        grid.add_row(_span(cost), *(f"{profile.kv.spans[i].token_bytes:,} B" for profile in plan.profiles))
    if plan.profiles[0].kv.capped_bytes:
        grid.add_row("capped part of a sequence", *(both(p.kv.capped_bytes) for p in plan.profiles))
    grid.add_section()
    grid.add_row("tokens that fit, per GPU", *(f"{profile.tokens_per_gpu:,}" for profile in plan.profiles))
    grid.add_row("tokens that fit, in all", *(f"{profile.tokens:,}" for profile in plan.profiles))
    grid.add_row("longest sequence", *(f"{profile.longest:,}" for profile in plan.profiles))
    return grid


def _span(cost: SpanCost) -> str:
    if cost.span is None or cost.tokens is None:
        return f"KV per token, {cost.layers} layers that keep all"
    kind = type(cost.span).__name__.lower()
    return f"KV per token, {cost.layers} layers, {kind} of {cost.span.size:,}: at most {cost.tokens:,} tokens"


def _by_role(what: str, tokens: list[tuple[str, int]]) -> str:
    return f"{what}: " + ", ".join(f"{count:,} in {role}" for role, count in tokens)


def _verdict(plan: Plan, summary: Summary) -> str:
    whole = summary.minimum_gpus_for_context
    context = f"--context {summary.context} needs {_needed(whole, summary)}"
    if summary.fits and summary.longest_sequence < summary.context:
        return f"fits {summary.longest_sequence:,} of {summary.context:,} tokens of context; {context}"
    if summary.fits:
        # Experts may be spread here as the search for the fewest GPUs does not try.
        known = whole is not None and whole <= summary.gpus
        least = f"; at least {_needed(whole, summary)}" if known else ""
        return f"fits {summary.context:,} tokens of context{least}"
    verdict = f"does not fit on {_gpus(summary.gpus)}{_excess(plan)}"
    if summary.minimum_gpus is None:
        return f"{verdict}; no tensor parallelism is enough"
    least = f"{verdict}; at least {_needed(summary.minimum_gpus, summary)}"
    return least if summary.minimum_gpus == whole else f"{least}; {context}"


def _excess(plan: Plan) -> str:
    """Why a KV pool that was given cannot be had, if so."""
    memory, pool = plan.request.gpu_memory, plan.request.kv_pool
    if pool is None:
        return ""
    given = f": the KV pool of {pool / GIB:,.2f} GiB exceeds the"
    if pool > memory:
        return f"{given} card, which has {memory / GIB:,.2f} GiB"
    least = min(plan.profiles, key=lambda profile: profile.left)
    if pool <= least.left:
        return ""
    return f"{given} {max(0, least.left) / GIB:,.2f} GiB that are left of the card in {least.role}"


def _needed(count: int | None, summary: Summary) -> str:
    """GPUs, and how they are used besides tensor parallelism."""
    if count is None:
        return "more GPUs"
    ep = count // summary.pp if summary.ep > 1 else 1
    held = [
        f"{name} {ways}" for name, ways in (("PP", summary.pp), ("DP", summary.dp), ("EP", ep)) if ways > 1
    ]
    return _gpus(count) + (f" with {', '.join(held)}" if held else "")


def _gpus(count: int) -> str:
    return "one GPU" if count == 1 else f"{count} GPUs"


def _number(value: float) -> str:
    if value >= 10_000:
        return f"{value / 1e6:,.3f}M"
    return f"{value:,.1f}" if value != int(value) else f"{int(value)}"


def _grid(*names: str, left: tuple[str, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        # On a narrow terminal figures go on in the next line, where rich would cut them off.
        grid.add_column(name, justify="left" if name in left else "right", overflow="fold")
    return grid
