"""Images in the session graph (case 14): one chain for the same image, a branch for another, everything in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.tokens.graph.support import Session
from tests.tokens.media.vision import png, runs, shows, vision_renderer, write_vision_folder
from tests.tokens.small import BASH, asks, result, user
from uni_agent.tokens.graph import Chain, MaskedMatcher, Matcher, Prepared, SessionGraph, StrictMatcher
from uni_agent.tokens.media import media_of
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.trajectory import Trajectory
from uni_agent.types import Media, Message

SMALL, WIDE, TALL = png(), png(200, 60, 1), png(60, 200, 2)
AGAIN = png(note="sent again")


class VisionSession(Session):
    """A session that checks the images of every prompt and every chain."""

    def prepare(self, messages: Sequence[Message], tools: Sequence[object] = (BASH,), **kwargs: object) -> Prepared:
        prepared = super().prepare(messages, tools, **kwargs)
        self.consistent(prepared.prompt_ids, prepared.media)
        placeholder = self.renderer.media.placeholder_id if self.renderer.media else -1
        for image in prepared.images:
            end = image.start + image.length
            assert set(prepared.prompt_ids[image.start : end]) == {placeholder}
            assert placeholder not in (prepared.prompt_ids[image.start - 1], prepared.prompt_ids[end])
        assert tuple(image.media for image in prepared.images) == prepared.media
        return prepared

    def check(self) -> list[Chain]:
        chains = super().check()
        for chain in chains:
            trajectory = Trajectory.from_chain(chain, session_id="s")
            self.consistent(trajectory.ids, trajectory.multi_modal_data)
            assert Trajectory.from_json(trajectory.to_json()) == trajectory
        return chains

    def consistent(self, ids: Sequence[int], media: Sequence[Media]) -> None:
        """As many runs of placeholders as images, each as long as its image asks for."""
        processor = self.renderer.media
        assert processor is not None
        assert runs(ids, processor.placeholder_id) == [processor.tokens(image) for image in media]


def open_session(renderer: ChatTemplateRenderer, matcher: Matcher | None = None) -> VisionSession:
    return VisionSession(SessionGraph("s", renderer, matcher=matcher), renderer)


def tool(*parts: str | Media, call_id: str = "c0") -> Message:
    return shows(*parts, role="tool", tool_call_id=call_id, name="bash")


def test_case_14_the_same_image_in_another_file_goes_on_in_the_chain(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision)
    opening = shows("what is ", SMALL, "?")
    turn = s.write(s.prepare([opening]), asks("look"))
    second = s.write(s.prepare([opening, turn.message, tool("here: ", WIDE)]), asks("more"))
    again = [shows("what is ", AGAIN, "?"), turn.message, tool("here: ", WIDE), second.message, result("ok")]
    prepared = s.prepare(again)
    assert prepared.parent is second and prepared.drift == "realigned"
    assert prepared.media == (SMALL, WIDE)  # the files that the engine has seen
    s.say(prepared, "done")
    (chain,) = s.check()
    assert chain.trained == (0, 1, 2)
    same = [opening, turn.message, tool("here: ", WIDE), second.message, result("ok")]
    assert s.prepare(same).drift == "clean"


@pytest.mark.parametrize("matcher", [StrictMatcher(), MaskedMatcher()])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (shows("a", SMALL), shows("a", WIDE)),
        (shows("a", SMALL), shows("a", png(shade=1))),
        (shows("a", SMALL), user("a")),
        (user("a"), shows("a", SMALL)),
        (shows("a", SMALL), shows("a", SMALL, SMALL)),
        (shows("a", SMALL, WIDE), shows("a", WIDE, SMALL)),
        (shows("a", SMALL, "b"), shows("ab", SMALL)),
        (shows("a", SMALL, " b"), shows("a", SMALL, "b")),
        (shows("a", SMALL), shows("b", SMALL)),
    ],
)
def test_case_14_what_differs_opens_a_branch(
    vision: ChatTemplateRenderer, matcher: Matcher, first: Message, second: Message
) -> None:
    for answers in (False, True):
        s = open_session(vision, matcher)
        start = [user("go"), s.write(s.prepare([user("go")]), asks("x")).message] if answers else []
        made = [tool(*(m.parts or (m.content,))) if answers else m for m in (first, second)]
        turn = s.say(s.prepare([*start, made[0]]), "one")
        other = s.prepare([*start, made[1], turn.message, user("and?")])
        assert other.parent is not turn
        assert other.media == media_of([made[1]])
        s.say(other, "two")
        assert len(s.check()) == 2


@pytest.mark.parametrize(
    ("stored", "returned"),
    [
        (shows("a ", SMALL, " b "), shows(" a ", SMALL, " b")),
        (shows("a", SMALL), shows("a", "", AGAIN, "")),
        (shows("ab", SMALL), shows("a", "b", SMALL)),
    ],
)
def test_case_14_spellings_of_parts_that_mean_the_same(
    vision: ChatTemplateRenderer, stored: Message, returned: Message
) -> None:
    s = open_session(vision)
    turn = s.say(s.prepare([stored]), "one")
    assert s.prepare([returned, turn.message, user("and?")]).parent is turn


def test_case_14_masked_text_around_an_image_is_found_again(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision, MaskedMatcher())
    turn = s.say(s.prepare([shows("key sk-1 ", SMALL, " and pw-2")]), "one")
    assert s.prepare([shows("key *** ", AGAIN, " and ***"), turn.message, user("?")]).parent is turn
    assert s.prepare([shows("key *** ", WIDE, " and ***"), turn.message, user("?")]).parent is not turn
    assert s.prepare([shows("*** ", AGAIN, " or ***"), turn.message, user("?")]).parent is not turn


def test_case_14_parallel_results_with_images_in_any_order(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision)
    turn = s.write(s.prepare([user("go")]), asks("a", "b"))
    ids = [call.id for call in turn.message.tool_calls]
    results = [tool(SMALL, call_id=ids[0]), tool(WIDE, TALL, call_id=ids[1])]
    prepared = s.prepare([user("go"), turn.message, *reversed(results)])
    assert prepared.media == (SMALL, WIDE, TALL)
    last = s.say(prepared, "seen")
    later = s.prepare([user("go"), turn.message, *results, last.message, user("and?")])
    assert later.parent is last
    s.say(later, "done")
    s.check()


def test_case_14_branches_share_their_images_and_keep_their_own(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision)
    opening = [shows("see ", SMALL)]
    turn = s.write(s.prepare(opening), asks("look"))
    s.say(s.prepare([*opening, turn.message, tool(WIDE)]), "wide")
    s.say(s.prepare([*opening, turn.message, tool(TALL, SMALL)]), "tall")
    first, second = (Trajectory.from_chain(chain, session_id="s") for chain in s.check())
    assert first.multi_modal_data == (SMALL, WIDE)
    assert second.multi_modal_data == (SMALL, TALL, SMALL)


def test_case_14_a_restart_keeps_images_and_chain(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision)
    opening = [shows("see ", SMALL)]
    turn = s.write(s.prepare(opening), asks("look"))
    last = s.say(s.prepare([*opening, turn.message, tool(WIDE)]), "wide")
    history = [shows("see ", AGAIN), turn.message, tool(WIDE), last.message, user("and?")]
    before = s.prepare(history)
    other = s.restarted()
    after = other.prepare(history)
    assert (after.prompt_ids, after.media) == (before.prompt_ids, before.media) == (before.prompt_ids, (SMALL, WIDE))


def test_following_a_turn_with_an_image(vision: ChatTemplateRenderer) -> None:
    s = open_session(vision)
    turn = s.write(s.prepare([user("go")]), asks("look"))
    prepared = s.graph.follow(turn, [tool(TALL, call_id=turn.message.tool_calls[0].id)])
    s.consistent(prepared.prompt_ids, prepared.media)
    assert prepared.media == (TALL,)


MESSAGES = st.lists(st.sampled_from(["text", "<|image_pad|>", " ", SMALL, AGAIN, WIDE, TALL]), min_size=1, max_size=4)


class RandomClients(RuleBasedStateMachine):
    """Clients that send, resend in other files, edit, branch and restart."""

    renderer: ChatTemplateRenderer

    @initialize()
    def begin(self) -> None:
        self.session = open_session(self.renderer)
        self.histories: list[list[Message]] = [[]]

    @rule(data=st.data(), parts=MESSAGES, calls=st.booleans())
    def speak(self, data: st.DataObject, parts: list[str | Media], calls: bool) -> None:
        history = data.draw(st.sampled_from(self.histories))
        role, fields = "user", {}
        if history and history[-1].tool_calls:
            role, fields = "tool", {"tool_call_id": history[-1].tool_calls[0].id, "name": "bash"}
        if any(isinstance(part, Media) for part in parts):
            new = shows(*parts, role=role, **fields)
        else:
            new = Message(role, "".join(map(str, parts)), **fields)  # pyright: ignore[reportArgumentType]
        request = [self.resent(message, data) for message in history] + [new]
        prepared = self.session.prepare(request)
        turn = self.session.write(prepared, asks("ls")) if calls else self.session.say(prepared, "said")
        self.histories.append([*history, new, turn.message])

    def resent(self, message: Message, data: st.DataObject) -> Message:
        if not message.parts or not data.draw(st.booleans()):
            return message
        swap: dict[Media, Media] = {SMALL: AGAIN, AGAIN: SMALL}
        parts = [swap.get(part, part) if isinstance(part, Media) else part for part in message.parts]
        return shows(*parts, role=message.role, tool_call_id=message.tool_call_id, name=message.name)

    @rule()
    def restart(self) -> None:
        other = self.session.restarted()
        fresh = VisionSession(other.graph, self.renderer)
        fresh.prompts, fresh.sampled = other.prompts, other.sampled
        self.session = fresh

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "session"):
            chains = self.session.check()
            # Whatever file an image was sent in, each history that went on is one chain of its own turns.
            assert sum(len(chain.trained) for chain in chains) == len(self.session.graph.turns)


@pytest.fixture(scope="module", autouse=True)
def _machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    RandomClients.renderer = vision_renderer(write_vision_folder(tmp_path_factory.mktemp("m") / "model"))


RandomClients.TestCase.settings = settings(max_examples=25, stateful_step_count=10, deadline=None)
TestRandomClients = RandomClients.TestCase
