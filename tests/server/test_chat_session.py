"""The state table of a chat, row by row, without sockets."""

from __future__ import annotations

import pytest

from fanlight_engine.request import (
    Conversation,
    Embeddings,
    Frames,
    ImagePart,
    MediaUrl,
    Message,
    OutputOptions,
    Part,
    Patches,
    Role,
    SamplingOptions,
    StoredMedia,
    StoredTensor,
    TextPart,
    Tiles,
    VideoPart,
)
from fanlight_engine.tensor_data import TensorData
from fanlight_server import chat_session
from fanlight_server.chat_session import (
    MAX_WAITING_TURNS,
    AnswerOptions,
    ChatSession,
    ChatSetup,
    Interrupt,
    State,
    Turn,
    TurnRequest,
)
from fanlight_server.held_bytes import bytes_of_messages
from fanlight_server.status import ErrorReason, ServiceError

SETUP_OPTIONS = AnswerOptions(SamplingOptions(temperature=0.5, top_k=3), OutputOptions(), "setup.config")
TURN_OPTIONS = AnswerOptions(SamplingOptions(max_new_tokens=9), OutputOptions(text=False, logprobs=True), "turn.config")
SYSTEM = Message(Role.SYSTEM, (TextPart("Be brief."),))


def said(text: str) -> Message:
    return Message(Role.USER, (TextPart(text),))


def ask(text: str, turn_id: str | None = None, parent: str | None = None, options: AnswerOptions | None = None):
    return TurnRequest(turn_id, parent, (said(text),), options)


def answered(text: str, *ids: int) -> Message:
    return Message(Role.ASSISTANT, (TextPart(text, ids or None),))


def messages(session: ChatSession, turn: Turn) -> tuple[Message, ...]:
    prompt = session.generation(turn).prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def play(session: ChatSession, request: TurnRequest, answer: str, *ids: int) -> Turn:
    """Run a turn to its end."""
    turn = session.add_turn(request)
    assert session.start_next_turn() is turn
    session.finish(turn, TextPart(answer, ids or None))
    return turn


@pytest.fixture
def session() -> ChatSession:
    session = ChatSession()
    session.set_up(ChatSetup("", (SYSTEM,), SETUP_OPTIONS))
    return session


def refused(reason: ErrorReason):
    return pytest.raises(ServiceError, check=lambda error: error.refusal.reason is reason)


def test_new_takes_setup_and_nothing_else() -> None:
    session = ChatSession()
    with refused(ErrorReason.CHAT_NOT_SET_UP):
        session.add_turn(ask("hi"))
    session.set_up(ChatSetup("", (), SETUP_OPTIONS))
    assert session.state is State.IDLE


def test_idle_starts_a_turn(session: ChatSession) -> None:
    turn = session.add_turn(ask("hi"))
    assert session.start_next_turn() is turn
    assert session.state is State.RUNNING
    assert messages(session, turn) == (SYSTEM, said("hi"))


def test_idle_ignores_an_interrupt(session: ChatSession) -> None:
    assert session.interrupt(Interrupt(None)) is None
    assert session.interrupt(Interrupt("nobody")) is None
    assert session.state is State.IDLE


def test_a_second_setup_is_refused_and_the_chat_lives_on(session: ChatSession) -> None:
    with refused(ErrorReason.CHAT_ALREADY_SET_UP):
        session.set_up(ChatSetup("", (), SETUP_OPTIONS))
    assert session.add_turn(ask("hi")).id == "turn-1"


def test_running_queues_turns_up_to_a_limit(session: ChatSession) -> None:
    session.add_turn(ask("first"))
    session.start_next_turn()
    for number in range(MAX_WAITING_TURNS):
        session.add_turn(ask(f"waiting {number}"))
    with refused(ErrorReason.TURN_QUEUE_FULL):
        session.add_turn(ask("one too many"))


def test_an_interrupted_running_turn_keeps_its_partial_answer(session: ChatSession) -> None:
    turn = session.add_turn(ask("tell me"))
    session.start_next_turn()
    assert session.interrupt(Interrupt(None)) is turn
    assert session.state is State.RUNNING, "its driver ends it"
    session.finish(turn, TextPart("Once upon", (7, 8)))
    following = session.add_turn(ask("go on"))
    assert messages(session, following) == (SYSTEM, said("tell me"), answered("Once upon", 7, 8), said("go on"))


def test_an_interrupted_waiting_turn_leaves_the_queue(session: ChatSession) -> None:
    session.add_turn(ask("runs", "a"))
    session.start_next_turn()
    waiting = session.add_turn(ask("waits", "b"))
    assert session.interrupt(Interrupt("b")) is waiting
    assert session.interrupt(Interrupt("b")) is None, "it has ended"
    assert session.running is not None
    session.finish(session.running, TextPart("ok"))
    assert session.start_next_turn() is None


def test_half_closed_is_over_when_the_queue_is(session: ChatSession) -> None:
    session.add_turn(ask("one"))
    session.close_input()
    assert not session.is_over
    turn = session.start_next_turn()
    assert turn is not None
    assert not session.is_over
    session.finish(turn, TextPart("done"))
    assert session.is_over


def test_draining_refuses_turns_and_finishes_those_it_has(session: ChatSession) -> None:
    turn = session.add_turn(ask("one"))
    session.drain()
    with refused(ErrorReason.DRAINING):
        session.add_turn(ask("two"))
    assert not session.is_over
    assert session.start_next_turn() is turn
    session.finish(turn, TextPart("done"))
    assert session.is_over


def test_a_turn_follows_the_head_unless_it_names_a_parent(session: ChatSession) -> None:
    play(session, ask("a", "a"), "A", 1)
    play(session, ask("b", "b"), "B", 2)
    branch = play(session, ask("c", "c", parent="a"), "C", 3)
    assert messages(session, branch) == (SYSTEM, said("a"), answered("A", 1), said("c"), answered("C", 3))
    after_branch = play(session, ask("d"), "D")
    assert after_branch.parent is branch, "the head is the turn sent last"
    fresh = session.add_turn(ask("again", parent=""))
    assert messages(session, fresh) == (SYSTEM, said("again"))


def test_asking_again_is_a_turn_with_the_same_parent(session: ChatSession) -> None:
    play(session, ask("a", "a"), "A")
    play(session, ask("b", "b"), "first try")
    again = session.add_turn(ask("b", "b2", parent="a"))
    assert messages(session, again) == (SYSTEM, said("a"), answered("A"), said("b"))


def test_an_unknown_parent_is_refused(session: ChatSession) -> None:
    with refused(ErrorReason.TURN_NOT_FOUND):
        session.add_turn(ask("hi", parent="ghost"))


def test_turn_ids_are_unique_and_made_when_unset(session: ChatSession) -> None:
    play(session, ask("x", "turn-1"), "X")
    assert session.add_turn(ask("y")).id == "turn-2"
    with refused(ErrorReason.TURN_ID_IN_USE):
        session.add_turn(ask("z", "turn-1"))
    with refused(ErrorReason.FIELD_INVALID):
        session.add_turn(ask("z", "\n"))


def test_a_failed_turn_leaves_the_tree_and_its_id_is_free(session: ChatSession) -> None:
    play(session, ask("a", "a"), "A")
    failing = session.add_turn(ask("b", "b"))
    session.start_next_turn()
    session.fail(failing)
    retry = session.add_turn(ask("b", "b"))
    assert messages(session, retry) == (SYSTEM, said("a"), answered("A"), said("b"))


def test_a_turn_that_follows_a_failed_one_fails_as_well(session: ChatSession) -> None:
    failing = session.add_turn(ask("a", "a"))
    following = session.add_turn(ask("b", "b"))
    session.start_next_turn()
    session.fail(failing)
    assert session.start_next_turn() is following
    with refused(ErrorReason.TURN_NOT_FOUND):
        session.generation(following)


def test_a_turns_config_replaces_the_setups_whole(session: ChatSession) -> None:
    plain = play(session, ask("a"), "A")
    assert session.generation(plain).sampling == SETUP_OPTIONS.sampling
    special = session.add_turn(ask("b", options=TURN_OPTIONS))
    generation = session.generation(special)
    assert generation.sampling == SamplingOptions(max_new_tokens=9), "nothing of the setup's shines through"
    assert generation.output == OutputOptions(text=True, token_ids=True, logprobs=True), "the answer becomes history"


@pytest.mark.parametrize(
    ("engine_field", "named"),
    [
        ("conversation.messages[0].parts[0].image", "setup.history[0].parts[0].image"),
        ("conversation.messages[1].parts[0].image", "turn.parent_turn_id"),
        ("conversation.messages[3].parts[2].image", "turn.messages[0].parts[2].image"),
        ("config.sampling.temperature", "setup.config.sampling.temperature"),
        ("prompt", "turn.messages"),
        ("model", "setup.model"),
    ],
)
def test_the_engines_paths_become_paths_of_the_chat(session: ChatSession, engine_field: str, named: str) -> None:
    play(session, ask("a"), "A")
    turn = session.add_turn(ask("b"))
    assert session.name_field(turn, engine_field) == named


def test_what_a_chat_holds_is_bounded(session: ChatSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_session, "MAX_HISTORY_BYTES", 10_000)
    picture = Message(Role.USER, (ImagePart(bytes(6_000)),))
    first = session.add_turn(TurnRequest(None, None, (picture,), None))
    with refused(ErrorReason.FIELD_INVALID):
        session.add_turn(TurnRequest(None, None, (picture,), None))
    session.start_next_turn()
    session.fail(first)
    session.add_turn(TurnRequest(None, None, (picture,), None))


def test_the_principal_of_a_chat_asks_for_all_its_turns() -> None:
    session = ChatSession("alice")
    session.set_up(ChatSetup("", (), SETUP_OPTIONS))
    assert session.generation(session.add_turn(ask("hi"))).principal == "alice"


def test_resolved_messages_replace_those_that_were_said(session: ChatSession) -> None:
    play(session, TurnRequest(None, None, (shown(StoredMedia("a")), said("look")), None), "A", 1)
    turn = session.add_turn(TurnRequest(None, None, (shown(StoredMedia("b")),), None))
    resolved = (SYSTEM, shown(b"a"), said("look"), answered("A", 1), shown(b"b"))
    session.keep_resolved(turn, resolved)
    assert messages(session, turn) == resolved
    session.start_next_turn()
    session.finish(turn, TextPart("B"))
    following = session.add_turn(ask("and now?"))
    assert messages(session, following) == (*resolved, answered("B"), said("and now?"))


def test_resolved_messages_that_are_too_large_leave_the_chat_as_it_was(
    session: ChatSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_session, "MAX_HISTORY_BYTES", 10_000)
    turn = session.add_turn(TurnRequest(None, None, (shown(StoredMedia("a")),), None))
    with refused(ErrorReason.FIELD_INVALID):
        session.keep_resolved(turn, (SYSTEM, shown(bytes(20_000))))
    assert messages(session, turn) == (SYSTEM, shown(StoredMedia("a")))
    session.start_next_turn()
    session.fail(turn)
    again = session.add_turn(TurnRequest(None, None, (shown(StoredMedia("a")),), None))
    session.keep_resolved(again, (SYSTEM, shown(bytes(7_000))))
    with refused(ErrorReason.FIELD_INVALID):
        session.add_turn(TurnRequest(None, None, (shown(bytes(3_000)),), None))


TENSOR = TensorData("float32", (1, 250), bytes(1000))


@pytest.mark.parametrize(
    ("part", "content_bytes"),
    [
        (TextPart("abcd", (1, 2)), 32),
        (ImagePart(bytes(1000)), 1000),
        (ImagePart(MediaUrl("http://host/")), 48),
        (ImagePart(Tiles(TENSOR)), 1000),
        (ImagePart(Tiles(StoredTensor("d", "n" * 100))), 400),
        (ImagePart(Embeddings({"a": TENSOR, "b": TENSOR}, "f")), 2000),
        (VideoPart(Patches(TENSOR, (1, 1, 1))), 1000),
        (VideoPart(Frames((bytes(1000), bytes(500)))), 1500),
        (VideoPart(Frames((b"",) * 1000)), 64_000),
    ],
    ids=lambda value: type(getattr(value, "source", value)).__name__,
)
def test_every_source_counts_as_held(part: Part, content_bytes: int) -> None:
    held = bytes_of_messages([Message(Role.USER, (part,))]) - bytes_of_messages([Message(Role.USER, ())])
    assert content_bytes <= held <= content_bytes + 300


def shown(source: bytes | StoredMedia) -> Message:
    return Message(Role.USER, (ImagePart(source),))
