"""Random sessions, exported: every converter keeps every sampled token where it was, exactly once."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.tokens.graph.test_random_clients import Clients
from tests.trajectory.support import exported, sampled_once
from uni_agent.trajectory import Trajectory, fit, logical_trajectories
from uni_agent.trajectory.rows import token_row
from uni_agent.trajectory.sft import sft_example
from uni_agent.trajectory.tinker import datum_fields
from uni_agent.trajectory.verl import agent_loop_fields, padded_fields, session_order


def trained_pairs(ids: list[int], mask: list[int], logprobs: Any) -> list[tuple[int, float]]:
    """Token and logprob of everything that trains."""
    return [(i, p) for i, m, p in zip(ids, mask, logprobs, strict=True) if m]


class Exports(Clients):
    """The clients of the session graph; what is checked at the end is the export."""

    def teardown(self) -> None:
        trajectories = exported(self.session)
        sampled_once(self.session, trajectories)
        kept = exported(self.session, abandoned="drop")
        account = self.session.graph.account(abandoned="drop").tokens
        assert sum(t.accounting.trained for t in kept) == account.trained
        self.check_groups(trajectories)
        for t in trajectories:
            assert Trajectory.from_json(json.loads(json.dumps(t.to_json()))) == t
            assert Trajectory.from_json(t.to_json()) == t
            self.check_converters(t)
            self.check_cuts(t)

    def check_groups(self, trajectories: list[Trajectory]) -> None:
        groups = logical_trajectories(trajectories)
        assert sorted(t.id for parts in groups for t in parts) == sorted(t.id for t in trajectories)
        for parts in groups:
            assert all(after.continues == before.id for before, after in pairwise(parts))
            turns = [turn for part in parts for turn in part.trained]
            assert len(turns) == len(set(turns))
        assert sorted(t.id for t in session_order(trajectories)) == sorted(t.id for t in trajectories)

    def check_converters(self, t: Trajectory) -> None:
        assert t.response_logprobs is not None
        # The support's engine gives -(id + 1) / 1e5, so a logprob says which token it belongs to.
        pairs = trained_pairs(t.response_ids, t.response_mask, t.response_logprobs)
        assert all(p == -(i + 1) / 1e5 for i, p in pairs)
        verl = agent_loop_fields(t, global_steps=3)
        assert trained_pairs(verl["response_ids"], verl["response_mask"], verl["response_logprobs"]) == pairs
        versions = [int(span.version) for span in t.weight_spans] or [3]
        extra = verl["extra_fields"]
        assert (extra["min_global_steps"], extra["max_global_steps"]) == (min(versions), max(versions))
        row = token_row(t)
        assert trained_pairs(row["response_ids"], row["response_mask"], row["response_logprobs"]) == pairs
        assert row["tokens_trained"] == len(pairs)
        datum = datum_fields(t, advantage=2.0)["loss_fn_inputs"]
        assert trained_pairs(datum["target_tokens"], datum["weights"], datum["logprobs"]) == pairs
        assert datum["advantages"] == [2.0 * w for w in datum["weights"]]
        padded = padded_fields(t, prompt_length=len(t.prompt_ids) + 3, response_length=len(t.response_ids) + 5)
        assert trained_pairs(padded["responses"], padded["response_mask"], padded["rollout_log_probs"]) == pairs
        messages = sft_example(t)["messages"]
        said = [m for m in messages if m["train"]]
        assert all(m["role"] == "assistant" for m in said)
        assert [turn for m, turn in zip(messages, t.message_turns, strict=True) if m["train"]] == list(t.trained)

    def check_cuts(self, t: Trajectory) -> None:
        for prompt, response in ((1, None), (len(t.prompt_ids), 1), (3, len(t.response_ids)), (2, 7)):
            cut = fit(t, max_prompt=prompt, max_response=response)
            assert len(cut.prompt_ids) <= prompt and (response is None or len(cut.response_ids) <= response)
            assert cut.ids == t.ids[: len(cut.ids)]
            assert cut.accounting.balanced and cut.accounting.sampled == t.accounting.sampled
            assert cut.response_logprobs is not None and t.response_logprobs is not None
            pairs = trained_pairs(cut.response_ids, cut.response_mask, cut.response_logprobs)
            whole = trained_pairs(t.response_ids, t.response_mask, t.response_logprobs)
            assert pairs == whole[: len(pairs)]
            assert cut.accounting.dropped.get("max_length", 0) == len(whole) - len(pairs)
            trained = [m for m in sft_example(cut)["messages"] if m["train"]]
            assert len(trained) == sum(
                s.kind == "sampled" and len(t.prompt_ids) + s.end <= len(cut.ids) for s in t.spans
            )


@pytest.mark.parametrize("name", ["policy", "qwen3", "qwen3_coder"])
def test_random_sessions_train_every_sampled_token_once_in_every_form(name: str) -> None:
    machine = type(f"Exports_{name}", (Exports,), {"template": name})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=14, deadline=None))
