"""Why the model cannot take a request right now, if it cannot. Knows no route."""

from __future__ import annotations

from server.errors import ModelLoading, RunnerDied, RunnerStalled, ShuttingDown, Unavailable
from server.http.context import AppContext
from server.protocol import ModelInfo


def hindrance(context: AppContext) -> Unavailable | None:
    """None = ready."""
    runner = context.runner
    state = "STOPPED" if context.draining else runner.state.name
    match state:
        case "READY" if runner.stalled:
            return RunnerStalled(f"the model's process has done nothing for {runner.step_age_s:.0f} s", retry_after=60.0)
        case "READY":
            return None
        case "LOADING":
            percent = round(100 * runner.loading.progress)
            return ModelLoading(f"the model is being loaded ({runner.loading.stage}, {percent} %)", retry_after=2.0)
        case "RESTARTING":
            return RunnerDied("the model's process ended unexpectedly and is being started again", retry_after=2.0)
        case "FAILED":
            why = runner.fatal.message if runner.fatal is not None else "the server's log says why"
            return Unavailable(f"the model could not be loaded: {why}", retry_after=60.0)
        case _:
            return ShuttingDown("the server is shutting down", retry_after=5.0)


def require_model(context: AppContext) -> ModelInfo:
    """The model's facts. A process that is being restarted still counts: a request may wait for it a moment.

    Raises:
        Unavailable: it has never been ready, or the server is about to end.
    """
    why = hindrance(context)
    info = context.runner.info
    if why is not None and (info is None or not isinstance(why, RunnerDied)):
        raise why
    if info is None:
        raise ModelLoading("the model is being loaded", retry_after=2.0)
    return info
