"""What is written of a session: `<log_dir>/step_N/<uid>_<session>/attempt_K/{session,trajectories}.json`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uni_agent.trajectory.trajectory import Trajectory

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SessionLogs:
    """Writes below `root`; "" writes nothing. A disk that refuses is warned about once and fails no rollout."""

    root: str
    _warned: bool = False

    async def folder(self, step: int, uid: str, session: int, attempt: int) -> str:
        """The folder of one attempt, made; "" where nothing is written."""
        if not self.root:
            return ""
        path = Path(self.root) / f"step_{step}" / f"{uid}_{session}" / f"attempt_{attempt}"
        try:
            await asyncio.to_thread(path.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            self._warn(error)
            return ""
        return str(path)

    async def write(self, folder: str, about: Mapping[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Write how an attempt ended, and its trajectories as the gateway gave them. Never raises."""
        if not folder:
            return

        def save() -> None:
            data = [trajectory.to_json() for trajectory in trajectories]
            for name, value in (("trajectories", data), ("session", dict(about))):
                text = json.dumps(value, ensure_ascii=False, default=str, indent=None if name == "trajectories" else 1)
                (Path(folder) / f"{name}.json").write_text(text, encoding="utf-8", errors="replace")

        try:
            await asyncio.to_thread(save)
        except (OSError, ValueError) as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            _log.warning("logs of sessions cannot be written to %s: %s", self.root, error)
        self._warned = True
