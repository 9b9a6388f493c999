"""verl's agent loop manager over the gateway: what `agent_loop_manager_class` names."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Self

from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.optional import load
from uni_agent.training.framework.config import FrameworkSettings, read_settings
from uni_agent.training.framework.queue import fail_prompts

_log = logging.getLogger(__name__)

_START_SECONDS = 900.0
_CALL_SECONDS = 300.0
_WORKER_CPUS = 0.1
_POLL_SECONDS = 1.0


class AgentFrameworkRolloutAdapter:
    """Hands the trainer's prompts to one worker process and returns at once; results appear in TransferQueue.

    Made by verl's v1 trainer (0.9.1) through `create`. Errors of rollouts are logged; `generate_sequences` and `check`
    raise when every rollout of an earlier batch failed, and when the worker's process died.
    """

    def __init__(self, settings: FrameworkSettings, worker: Any, urls: Sequence[str] = ()) -> None:
        """Use `create`; `worker` is the handle of a FrameworkWorker that has started."""
        self.settings = settings
        self.worker = worker
        self.urls = list(urls)
        self._ray: Any = load("ray", extra="train", needed_for="rollouts behind the gateway")
        self._dead = ""
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._watched, name="gateway rollouts", daemon=True)
        self._watch.start()

    @classmethod
    def create(
        cls,
        *,
        config: Any,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Sequence[Any] | None = None,
        **_: Any,
    ) -> Self:
        """The manager, with its gateways listening.

        Raises ConfigError for settings that cannot be, a teacher (distillation is not supported here) and verl's v0
        trainer; UniAgentError when a gateway does not start.
        """
        if teacher_client:
            raise ConfigError(
                "distillation: the gateway's rollouts have no teacher; turn it off, or leave "
                "actor_rollout_ref.rollout.agent.agent_loop_manager_class unset"
            )
        transfer: Any = config.get("transfer_queue") or {}
        if not transfer.get("enable", True):
            raise ConfigError(
                "transfer_queue.enable: the gateway's rollouts need verl's v1 trainer (trainer.use_v1=true)"
            )
        settings = read_settings(config)
        ray: Any = load("ray", extra="train", needed_for="rollouts behind the gateway")
        worker = _actor(ray, settings).remote(settings, llm_client, list(reward_loop_worker_handles or ()))
        try:
            urls = ray.get(worker.start.remote(), timeout=_START_SECONDS)
        except ray.exceptions.RayError as error:
            ray.kill(worker)
            cause: Any = getattr(error, "cause", None)
            if isinstance(cause, UniAgentError):
                raise cause from error
            raise UniAgentError(f"the worker of the gateway's rollouts did not start: {error}") from error
        return cls(settings, worker, urls)

    def generate_sequences(self, prompts: Any) -> None:
        """Begin with a TensorDict of prompts, whose statuses the trainer has put to `pending`; does not wait for them.

        Raises UniAgentError when an earlier batch failed as a whole or the worker died, ConfigError for rows that
        cannot be worked and for the DataProto of verl's v0 trainer.
        """
        from uni_agent.training.framework.rows import read_batch

        batch = read_batch(prompts)
        self._raise(self._call("submit", batch.rows, batch.validate))

    def check(self) -> None:
        """Raise what `generate_sequences` would raise of earlier batches."""
        self._raise(self._call("check"))

    def stats(self) -> dict[str, Any]:
        """Counts and errors so far; see `FrameworkWorker.stats`."""
        return self._call("stats")

    def shutdown(self) -> None:
        """Give up what is under way and stop worker and gateways. Idempotent."""
        self._stop.set()
        if self._dead:
            return
        try:
            self._call("shutdown")
        finally:
            self._ray.kill(self.worker)
            self._dead = "it was shut down"

    def _call(self, method: str, *args: Any) -> Any:
        ray = self._ray
        if self._dead:
            raise UniAgentError(f"the worker of the gateway's rollouts is gone: {self._dead}")
        try:
            return ray.get(getattr(self.worker, method).remote(*args), timeout=_CALL_SECONDS)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, UniAgentError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            raise UniAgentError(f"the worker of the gateway's rollouts does not answer: {error}") from error

    def _raise(self, fatal: str) -> None:
        if fatal:
            raise UniAgentError(fatal)

    # ------------------------------------------------------------------------------------------ a worker that dies

    def _watched(self) -> None:
        """Wait for the worker's death: its prompts would stay `running`, and the trainer would wait for ever."""
        ray = self._ray
        ref = self.worker.ended.remote()
        while not self._stop.wait(0):
            try:
                if not ray.wait([ref], timeout=_POLL_SECONDS)[0]:
                    continue
                ray.get(ref)
            except ray.exceptions.ActorUnavailableError:
                ref = self.worker.ended.remote()
                continue
            except Exception as error:  # Ray itself may be gone
                if not self._stop.is_set():
                    self._died(error)
            return

    def _died(self, error: Exception) -> None:
        self._dead = str(error).strip() or type(error).__name__
        _log.error("the worker of the gateway's rollouts died: %s", self._dead)
        queue: Any = load("transfer_queue", extra="train", needed_for="rollouts behind the gateway")
        try:
            # All prompts of this queue are this worker's: a trainer has one manager.
            count = fail_prompts(queue, pause=self._stop.wait)
        except Exception:  # the end of a thread: nobody else would say so
            _log.exception("prompts cannot be marked as failed: the trainer may wait for them for ever; stop it")
        else:
            _log.error("%d prompts were under way and are marked as failed", count)


def _actor(ray: Any, settings: FrameworkSettings) -> Any:
    from uni_agent.training.framework.worker import worker_class

    # As many calls as there may be: `ended` alone never returns.
    return ray.remote(num_cpus=_WORKER_CPUS, max_concurrency=1000, max_restarts=0)(worker_class(settings))
