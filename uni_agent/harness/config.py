"""The `agent` block: who acts in the sandbox."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from uni_agent.config.base import Config, part_tag
from uni_agent.types import Message, Task, parse_messages


class InteractionHarnessConfig(Config):
    """Our own loop: AgentInteraction, in process, over the `model` block."""

    type: Literal["interaction"] = "interaction"
    system_prompt: str | None = None
    """System message put before the task's prompt, unless that brings its own."""
    prompt_template: str | None = None
    """Jinja template of the user message over `prompt` and `task`; an undefined variable is an error."""

    def messages(self, task: Task) -> list[Message]:
        """The opening messages for `task`. Raises ValueError for a prompt that cannot be read."""
        messages = parse_messages(task.prompt)
        if self.prompt_template is not None:
            messages[-1] = Message(messages[-1].role, self._render(messages[-1].content, task))
        if self.system_prompt is not None and messages[0].role != "system":
            messages.insert(0, Message("system", self.system_prompt))
        return messages

    def _render(self, prompt: str, task: Task) -> str:
        from jinja2 import StrictUndefined, TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        try:
            return environment.from_string(self.prompt_template or "").render(
                prompt=prompt, task=task.model_dump(mode="json")
            )
        except TemplateError as error:
            raise ValueError(f"agent.prompt_template: {error}") from error


HarnessConfig = Annotated[
    Annotated[InteractionHarnessConfig, Tag("interaction")],
    Discriminator(part_tag),
]
"""Who acts in the sandbox, chosen by `type`."""
