"""What `paceline up` finds out about a model before it starts anything."""

import re
from typing import Literal

from paceline.cli.processes import Options
from paceline.cli.screen import Screen
from paceline.contracts.errors import InvalidRequest
from paceline.engine.choice import choose
from paceline.engine.cpu import build, levels
from paceline.engine.cpu.support import check_model, check_precision
from paceline.engine.layout import plan_layout
from paceline.engine.registry import EngineName
from paceline.engine.support import check_weights
from paceline.model.config import read_config
from paceline.model.files import ModelFiles
from paceline.model.template import ChatTemplate
from paceline.model.tokenizer import Tokenizer
from paceline.model.weights import open_weights

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def check(files: ModelFiles, options: Options, screen: Screen) -> EngineName:
    """The engine that will run the model. Reads headers only, and what makes tokens of messages; compiles the cpu
    engine, which its workers share and would all compile at once.

    Raises `InvalidRequest`: one line for people, where five processes would say it in logs.
    """
    if options.device is not None and not _DEVICE.fullmatch(options.device):
        raise InvalidRequest(f"device {options.device!r} is none of cpu, cuda, cuda:N")
    config = read_config(files)
    engine = options.engine
    if engine != "fake":
        engine = _choose(engine, files, options, screen)
        stored = open_weights(files, config)
        check_weights(stored, files.path, options.device or "cpu")
        if engine == "cpu":
            check_model(config, stored, files.path)
            for weights in (options.weights, options.decode_weights):
                check_precision(stored, weights or "auto", files.path)
        for dtype in (options.kv_dtype, options.decode_kv_dtype):
            plan_layout(config, dtype or "float32")
    ChatTemplate.load(files)
    Tokenizer.load(files)
    if engine == "cpu":
        with screen.busy("compiling the cpu engine for this machine, once"):
            build.library(levels.detect())
    return engine


def _choose(
    name: Literal["auto", "cpu", "torch"], files: ModelFiles, options: Options, screen: Screen
) -> Literal["cpu", "torch"]:
    given = {options.weights or "auto", options.decode_weights or "auto"} - {"auto"}
    choice = choose(
        name,
        files,
        device=options.device or "cpu",
        dtype=options.dtype or "auto",
        weights=given.pop() if given else "auto",
    )
    if choice.reason:
        screen.line(f"engine {choice.engine}: {choice.reason}")
    return choice.engine
