"""Limits and rules of an episode."""

from __future__ import annotations

from pydantic import Field

from uni_agent.config.base import Config


class InteractionConfig(Config):
    """How long an episode may take, what it may cost, and what the model is shown."""

    max_turns: int = Field(default=50, ge=1)
    """Turns the model gets; an episode whose last turn does not finish ends as max_step_limit."""
    action_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one command; past it the command is ended, its output so far is the observation, the shell stays."""
    timeout_budget: int = Field(default=3, ge=0)
    """Commands that may time out in one episode; one more ends it as timeout_budget_exhausted."""
    turn_timeout: float | None = Field(default=None, gt=0)
    """Seconds for one turn (model call and tools); past it the episode ends as timeout_error."""
    episode_timeout: float | None = Field(default=3600.0, gt=0)
    """Seconds for the whole episode, sandbox start and grading not counted; past it the episode ends as time_limit."""
    format_error_budget: int = Field(default=3, ge=0)
    """Consecutive turns without a usable tool call that are answered with a hint; one more ends as format_error."""
    syntax_error_budget: int = Field(default=10, ge=0)
    """Consecutive turns with nothing but shell syntax errors; one more ends the episode as syntax_error."""
    observation_limit: int = Field(default=16_000, ge=200)
    """Characters of one observation; longer ones keep head and tail and say how much was left out."""
    observation_token_limit: int | None = Field(default=None, ge=16)
    """Tokens of one observation, for models whose tokenizer is known here; None: no such limit."""
    chat_mode: bool = False
    """A turn without a tool call is the answer and ends the episode as answered."""
    mask_abnormal_exit_traj: bool = False
    """Train only on episodes that the agent ended itself; the tokens of others are recorded as masked."""
