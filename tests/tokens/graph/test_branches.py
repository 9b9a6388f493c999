"""Siblings, retries, forks, compaction: what is owned by which chain, and where every token goes."""

from __future__ import annotations

import pytest

from tests.tokens.graph.conftest import MakeSession
from tests.tokens.graph.support import OTHER, renderer_of
from tests.tokens.small import BASH, asks, result, user
from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.tokens.graph import GraphClosedError, SessionGraph, turn_record
from uni_agent.types import Message

SUMMARY = "The user wants a port of the parser; the lexer is done and its tests pass."


def test_life_01_candidates_and_going_on_from_the_second(session: MakeSession) -> None:
    s = session()
    at_once = [s.prepare([user("P")]) for _ in range(3)]
    a, b, c = (s.say(prepared, text) for prepared, text in zip(at_once, "abc", strict=True))
    d = s.ask([user("P"), b.message, user("q")], "d")
    chains = s.check()
    assert [chain.turns for chain in chains] == [(a.id,), (c.id,), (b.id, d.id)]
    assert all(chain.trained == chain.turns and not chain.abandoned for chain in chains)
    assert s.graph.account().siblings == 2


def test_life_01_equal_candidates_are_continued_at_the_newest(session: MakeSession) -> None:
    s = session()
    twins = [s.say(prepared, "same") for prepared in [s.prepare([user("P")]) for _ in range(3)]]
    assert s.prepare([user("P"), Message("assistant", "same"), user("q")]).parent is twins[2]


def test_life_02_case_10_a_lost_reply_and_a_rewritten_last_turn(session: MakeSession) -> None:
    s = session()
    lost = s.ask([user("u1")], "a1")
    kept = s.ask([user("u1")], "a1'")
    second = s.ask([user("u1"), kept.message, user("t1")], "a2")
    again = s.prepare([user("u1"), kept.message, user("t1")])
    assert s.text(again.prompt_ids).count("<|im_start|>assistant") == 2
    third = s.say(again, "a2'")
    chains = s.check()
    assert [(chain.turns, chain.abandoned) for chain in chains] == [
        ((lost.id,), True),
        ((kept.id, second.id), True),
        ((kept.id, third.id), False),
    ]
    # What was before the retry is trained where the conversation went on.
    assert [chain.trained for chain in chains] == [(lost.id,), (second.id,), (kept.id, third.id)]
    assert chains[1].branched_from == kept.id and chains[2].branched_from is None
    dropped = s.graph.trajectories(abandoned="drop")
    assert [(chain.turns, chain.trained) for chain in dropped] == [((kept.id, third.id), (kept.id, third.id))]
    account = s.graph.account(abandoned="drop").tokens
    assert account.dropped == {"abandoned_retry": len(lost.ids) + len(second.ids)} and account.balanced


def test_case_10_a_repeat_that_races_is_another_sample_unless_it_is_marked(session: MakeSession) -> None:
    for intent, abandoned in (("auto", False), ("retry", True), ("resample", False)):
        s = session()
        first, second = s.prepare([user("u")]), s.prepare([user("u")], intent=intent)
        s.say(second, "second")
        s.say(first, "first")
        by_turn = {chain.turns[0]: chain.abandoned for chain in s.check()}
        assert by_turn == {0: False, 1: abandoned}


def test_case_10_a_reply_that_was_used_is_never_abandoned(session: MakeSession) -> None:
    s = session()
    first = s.ask([user("u")], "first")
    s.ask([user("u")], "second")
    s.ask([user("u"), first.message, user("q")], "third")
    assert not any(chain.abandoned for chain in s.check())
    assert s.ask([user("u")], "wanted", intent="resample").id == 3
    assert not any(chain.abandoned for chain in s.check())


def test_case_8_sub_agents_under_the_same_key_and_the_way_back(session: MakeSession) -> None:
    s = session()
    main = [Message("system", "main"), user("go")]
    first = s.write(s.prepare(main), asks("delegate"))
    sub = [Message("system", "sub"), user("part")]
    opened = s.prepare(sub, [BASH, OTHER], tag="sub_agent")
    other = s.prepare([Message("system", "sub"), user("another part")], [BASH, OTHER], tag="sub_agent")
    assert opened.drift == other.drift == "new"
    inner = s.say(opened, "part done")
    s.say(other, "other done")
    back = s.prepare([*main, first.message, result("part done")])
    assert back.parent is first and back.drift == "clean"
    s.say(back, "all done")
    chains = s.check()
    assert [chain.turns for chain in chains] == [(1,), (2,), (0, 3)]
    assert chains[0].tags == ("sub_agent",) and chains[0].continues is None and inner.id == 1


def test_case_8_changed_tools_open_a_branch_and_the_old_tools_find_the_old_chain(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], "hi")
    history = [user("go"), turn.message, user("q")]
    changed = s.prepare(history, [BASH, OTHER])
    assert changed.parent is None and changed.drift == "forked" and "python" in s.text(changed.prompt_ids)
    s.say(changed, "with more tools")
    assert s.prepare(history).parent is turn
    assert sum(len(chain.trained) for chain in s.check()) == 2


def test_case_9_a_chain_after_a_compaction_names_the_chain_it_continues(session: MakeSession) -> None:
    s = session()
    first = s.ask([user("go")], "working")
    summary = s.ask([user("go"), first.message, user("summarise")], SUMMARY)
    after = s.ask([Message("system", "x"), user(f"Summary so far:\n{SUMMARY}\nGo on.")], "done")
    chains = s.check()
    assert [chain.turns for chain in chains] == [(first.id, summary.id), (after.id,)]
    assert chains[1].continues == chains[0].id and chains[0].continues is None


def test_case_9_a_compaction_that_keeps_an_assistant_message(session: MakeSession) -> None:
    s = session()
    first = s.write(s.prepare([user("go")]), asks("ls"))
    second = s.write(s.prepare([user("go"), first.message, result("A")]), asks("pwd"))
    prepared = s.prepare([user("what happened before: much"), second.message, result("B")])
    assert prepared.parent is None and prepared.continues is second
    s.say(prepared, "done")
    chains = s.check()
    assert chains[1].continues == chains[0].id and chains[1].trained == (2,)
    told = s.prepare([user("unrelated"), second.message, result("B")], continues=None)
    assert told.continues is None


def test_case_11_edited_injected_and_deleted_messages(session: MakeSession) -> None:
    s = session()
    history: list[Message] = [user("go")]
    for i in range(3):
        turn = s.write(s.prepare(history), asks(f"step {i}"))
        history += [turn.message, result(f"out {i}")]
    edited = [*history[:3], Message("assistant", "other words"), *history[4:]]
    prepared = s.prepare(edited)  # the second turn is edited, two back
    assert prepared.parent is s.graph.turns[0] and prepared.drift == "forked" and prepared.continues is None
    s.say(prepared, "went another way")
    injected = s.prepare([*history, Message("assistant", "I was never sampled"), user("so?")])
    assert injected.parent is s.graph.turns[2]
    assert s.text(injected.prompt_ids).count("I was never sampled<|im_end|>") == 1
    s.say(injected, "ok")
    deleted = s.prepare([*history[:2], user("no result")])
    assert deleted.parent is s.graph.turns[0] and "out 0" not in s.text(deleted.prompt_ids)
    few_shot = s.prepare([user("2+2"), Message("assistant", "4"), user("3+3")])
    assert few_shot.parent is None and few_shot.drift == "new"
    s.say(few_shot, "6")
    assert sum(sum(chain.cache.response_mask) for chain in s.check()) == sum(map(len, s.sampled.values()))


def test_case_6_a_cut_turn_is_closed_as_context_and_not_touched(session: MakeSession) -> None:
    for text in ("half an ans", "<think>\nhalf a tho", '<tool_call>\n{"name": "ba', "half of é"):
        s = session()
        ids = s.renderer.tokenizer.encode(text)
        ids = ids[:-1] if text.endswith("é") else ids
        turn = s.say(s.prepare([user("go")]), "", finish="length", ids=ids)
        assert turn.cut
        prepared = s.prepare([user("go"), turn.message, user("go on")])
        assert prepared.parent is turn
        s.say(prepared, "rest")
        (chain,) = s.check()
        closing = [span for span in chain.cache.spans if span.kind == "closing"]
        assert len(closing) == 1 and closing[0].start == len(ids) and closing[0].turn == 0
        assert chain.cache.response_ids[: len(ids)] == ids
        assert s.text(chain.cache.ids).count("<|im_end|>") == 5  # system, user, cut turn, user, turn


def test_case_6_a_cut_turn_is_continued_without_a_word_from_the_client(session: MakeSession) -> None:
    s = session()
    turn = s.say(s.prepare([user("go")]), "", finish="length", ids=s.renderer.tokenizer.encode("half"))
    prepared = s.prepare([user("go"), turn.message])
    assert prepared.parent is turn and s.text(prepared.prompt_ids).endswith("half<|im_end|>\n<|im_start|>assistant\n")
    s.say(prepared, "rest")
    again = s.prepare([user("go"), turn.message])
    assert again.context is s.graph.turns[1].context
    s.check()


def test_case_12_nothing_is_committed_late(session: MakeSession) -> None:
    s = session()
    s.ask([user("go")], "hi")
    waiting = s.prepare([user("again")])
    before = s.graph.trajectories()
    s.graph.close()
    s.graph.close()
    with pytest.raises(GraphClosedError):
        s.say(waiting, "too late")
    with pytest.raises(GraphClosedError):
        s.prepare([user("more")])
    assert s.graph.trajectories() == before


@pytest.mark.parametrize(
    "output",
    [
        TokenOutput([5, 6], [-1.0], "stop"),
        TokenOutput([5, 6], None, "abort"),
        TokenOutput([5], None, "stop", (WeightSpan("v", 0, 2),)),
        TokenOutput([5, 6], None, "stop", routed_experts=[[0], [0], [0]]),
    ],
)
def test_case_13_life_05_what_does_not_fit_is_refused_and_leaves_no_trace(
    session: MakeSession, output: TokenOutput
) -> None:
    s = session()
    prepared = s.prepare([user("go")])
    with pytest.raises(ValueError):
        s.graph.commit(prepared, output, Message("assistant", "hi"))
    assert not s.graph.turns and not s.graph.trajectories()
    s.graph.record_drop("aborted", 2)
    s.say(prepared, "hi")
    account = s.graph.account().tokens
    assert account.dropped == {"aborted": 2} and account.balanced and account.sampled == 2 + len(s.sampled[0])


def test_case_13_versions_stay_with_their_tokens_and_missing_logprobs_stay_missing(session: MakeSession) -> None:
    s = session()
    first = s.ask([user("go")], "hi")
    prepared = s.prepare([user("go"), first.message, user("q")])
    ids = [5, 6, 7]
    spans = (WeightSpan("1", 0, 2), WeightSpan("2", 2, 3))
    s.graph.commit(prepared, TokenOutput(ids, None, "length", spans), Message("assistant", "abc"))
    (chain,) = s.graph.trajectories()
    at = len(chain.cache.response_ids) - 3
    assert [(w.version, w.start - at, w.end - at) for w in chain.cache.weight_spans] == [("1", 0, 2), ("2", 2, 3)]
    assert chain.cache.response_logprobs is None


def test_case_15_shared_prefixes_with_experts_are_trained_in_the_first_chain_alone(session: MakeSession) -> None:
    s = session()
    shared = s.write(s.prepare([user("go")]), asks("ls"))
    for text in ("one", "two", "three"):
        s.write(s.prepare([user("go"), shared.message, user(text)]), Message("assistant", text))
    chains = s.check()
    assert [chain.trained for chain in chains] == [(0, 1), (2,), (3,)]
    # Each chain is a sequence of its own to a trainer that replays routes, so that each has the rows of all its turns.
    assert [len(chain.cache.routed_experts) for chain in chains] == [2, 2, 2]
    assert [chain.branched_from for chain in chains] == [None, 0, 0]
    assert s.graph.trajectories() == chains


@pytest.mark.parametrize("missing", [0, 1])
def test_case_15_experts_of_prompt_and_output_are_cut_to_the_output(session: MakeSession, missing: int) -> None:
    s = session()
    prepared = s.prepare([user("go")])
    start = len(prepared.prompt_ids)
    rows = [[[i]] for i in range(start + 3 - missing)]
    turn = s.graph.commit(prepared, TokenOutput([5, 6, 7], None, "stop", routed_experts=rows), Message("assistant"))
    assert turn.routed_experts == rows[start:]
    assert turn.context.routed_experts == rows[:start]
    later = s.prepare([user("go"), Message("assistant"), user("on")])
    end = len(later.prompt_ids)
    more = [[[i]] for i in range(end + 2 - missing)]
    s.graph.commit(later, TokenOutput([8, 9], None, "stop", routed_experts=more), Message("assistant", "x"))
    [chain] = s.graph.trajectories()
    covered = {at + k: row for at, rows in chain.cache.routed_experts for k, row in enumerate(rows)}
    known = range(-start, len(chain.cache.response_ids) - missing)
    assert covered == {at: [[at + start]] for at in known}, "every token has its own row, that of a last token later"


def test_a_prepare_that_is_never_committed_leaves_no_trace(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], "hi")
    for text in ("a", "b", "b"):
        s.prepare([user("go"), turn.message, user(text)])
        s.prepare([user(text)], [OTHER])
    assert not turn.contexts and s.graph.account().trees == 1
    assert s.prepare([user("go"), turn.message, user("b")]).drift == "clean"


def test_racing_requests_in_other_spellings_keep_the_prompts_that_were_seen(session: MakeSession) -> None:
    s = session()
    turn = s.ask([user("go")], "hi")
    one = s.prepare([user("go"), turn.message, user("q")])
    two = s.prepare([user("go"), turn.message, user("q ")])
    three = s.prepare([user("go"), turn.message, user("q")])
    for prepared, text in ((one, "1"), (two, "2"), (three, "3")):
        s.say(prepared, text)
    s.check()
    assert [len(context.turns) for context in turn.contexts] == [2, 1]


def test_a_request_is_committed_once(session: MakeSession) -> None:
    s = session()
    prepared = s.prepare([user("go")])
    s.say(prepared, "hi")
    with pytest.raises(ValueError, match="committed already"):
        s.say(prepared, "hi")
    s.check()


def test_template_variables_open_a_tree_of_their_own() -> None:
    renderer = renderer_of("qwen3")
    fixed = SessionGraph("s", renderer)
    with pytest.raises(ValueError, match="fixed template variables"):
        fixed.prepare([user("go")], [], template_kwargs={"enable_thinking": False})
    graph = SessionGraph("s", renderer, renderer_for=lambda _: renderer_of("qwen2_5"))
    plain = graph.prepare([user("go")], [])
    graph.commit(plain, TokenOutput([2], None, "stop"), Message("assistant"))
    other = graph.prepare([user("go"), Message("assistant"), user("q")], [], template_kwargs={"enable_thinking": False})
    assert other.parent is None and other.drift == "forked"


def test_only_the_thinking_policies_that_exist_are_taken() -> None:
    with pytest.raises(ValueError, match="keep, template"):
        SessionGraph("s", renderer_of("qwen3"), thinking="drop")  # pyright: ignore[reportArgumentType]


def test_case_15_a_session_goes_on_after_a_restart_with_the_same_tokens(session: MakeSession) -> None:
    s = session()
    first = s.write(s.prepare([user("go")]), asks("ls", "pwd"))
    s.write(s.prepare([user("go"), first.message, result("only the second", "c1")]), asks("id"))
    s.ask([user("go")], "resent")
    again = s.restarted()
    assert again.check() == s.check() and again.graph.account() == s.graph.account()
    request = [user("go"), first.message, result("only the second", "c1")]
    assert again.prepare(request).context.turns[0].id == 1
    assert again.prepare(request).prompt_ids == s.prompts[1]
    records = [turn_record(turn) for turn in s.graph.turns]
    assert sum(len(record.ids) + len(record.context_ids) for record in records) == sum(
        len(chain.cache) for chain in s.graph.trajectories()
    ) - len(first.context.ids)
    with pytest.raises(ValueError, match="turn 3 comes next"):
        again.graph.restore(records[0])


def test_a_request_of_another_session_is_refused(session: MakeSession) -> None:
    s, other = session(), session()
    turn = s.ask([user("go")], "hi")
    other.ask([user("go")], "hi")
    with pytest.raises(ValueError, match="another graph"):
        other.say(s.prepare([user("go"), turn.message, user("q")]), "hi")


def test_a_turn_of_no_tokens_is_closed_and_the_chain_goes_on(session: MakeSession) -> None:
    s = session()
    prepared = s.prepare([user("go")])
    turn = s.record(prepared, s.graph.commit(prepared, TokenOutput([], [], "length"), Message("assistant")), [])
    s.say(s.prepare([user("go"), turn.message, user("well?")]), "yes")
    (chain,) = s.check()
    assert chain.trained == (0, 1) and sum(chain.cache.response_mask) == len(s.sampled[1])


def test_outputs_that_the_engine_goes_on_using_do_not_change_what_is_stored(session: MakeSession) -> None:
    s = session()
    prepared = s.prepare([user("go")])
    ids, logprobs = [5, 6], [-1.0, -2.0]
    turn = s.graph.commit(prepared, TokenOutput(ids, logprobs, "length"), Message("assistant", "x"))
    before = s.graph.trajectories()
    ids.append(7)
    logprobs.clear()
    prepared.prompt_ids.clear()
    (chain,) = s.graph.trajectories()
    chain.cache.response_ids.clear()
    assert s.graph.trajectories() == before and turn.ids == [5, 6]
