"""The acker: told when all is done, never before, in whatever order and batches messages come."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eddyline.errors import QueueError
from eddyline.relay.acker import (
    DONE,
    FAILED,
    TIMED_OUT,
    Acker,
    AckerCounts,
    Ackers,
    Anchors,
    EndedRoots,
    acker_of,
    new_ids,
    xor_by_root,
)
from eddyline.relay.trees import Trees

PROPERTY = settings(deadline=None, max_examples=60)

INIT, ACK, FAIL = "init", "ack", "fail"


@dataclass(frozen=True)
class Message:
    kind: str
    root: int
    value: int = 0
    task: int = 0


def fold(acker: Acker | Ackers, messages: list[Message]) -> EndedRoots:
    by = {kind: [m for m in messages if m.kind == kind] for kind in (INIT, ACK, FAIL)}
    return acker.fold(
        ([m.root for m in by[INIT]], [m.value for m in by[INIT]], [m.task for m in by[INIT]]),
        ([m.root for m in by[ACK]], [m.value for m in by[ACK]]),
        [m.root for m in by[FAIL]],
    )


def outcomes(ended: EndedRoots) -> dict[int, tuple[int, int]]:
    found = zip(ended.roots.tolist(), ended.tasks.tolist(), ended.outcomes.tolist(), strict=True)
    return {root: (task, outcome) for root, task, outcome in found}


def balanced(acker: Acker) -> bool:
    a = acker.counts
    return a.started == a.done + a.failed + a.timed_out + a.in_flight


class Plain:
    """The same rules, a message at a time, in a dict."""

    def __init__(self) -> None:
        self.buckets: list[dict[int, list]] = [{}, {}]

    def message(self, message: Message) -> dict[int, tuple[int, int]]:
        bucket = next((b for b in self.buckets if message.root in b), self.buckets[0])
        entry = bucket.setdefault(message.root, [0, None, False])
        if message.kind == INIT and entry[1] is None:
            entry[0] ^= message.value
            entry[1] = message.task
        elif message.kind == ACK:
            entry[0] ^= message.value
        entry[2] |= message.kind == FAIL
        if entry[1] is None or (entry[0] and not entry[2]):
            return {}
        del bucket[message.root]
        return {message.root: (entry[1], FAILED if entry[2] else DONE)}

    def rotate(self) -> dict[int, tuple[int, int]]:
        old = self.buckets.pop()
        self.buckets.insert(0, {})
        return {root: (task, TIMED_OUT) for root, (_, task, _) in old.items() if task is not None}


def tree(
    root: int, task: int, parents: list[list[int]], random: np.random.Generator
) -> list[Message]:
    """The messages of a DAG: tuple 0 is the record, tuple n + 1 is made of `parents[n]`."""
    edges = {(0, 0): int(new_ids(1, random)[0])}
    for child, made_of in enumerate(parents, 1):
        for parent in made_of:
            edges[parent, child] = int(new_ids(1, random)[0])
    messages = [Message(INIT, root, edges[0, 0], task)]
    for node in range(len(parents) + 1):
        value = edges[0, 0] if node == 0 else 0
        for (parent, child), edge in edges.items():
            if child and node in (parent, child):
                value ^= edge
        messages.append(Message(ACK, root, value))
    return messages


def dags(nodes_max: int = 6) -> st.SearchStrategy[list[list[int]]]:
    def parents(count: int) -> st.SearchStrategy[list[list[int]]]:
        return st.tuples(
            *(
                st.lists(st.integers(0, n), min_size=1, max_size=3, unique=True)
                for n in range(count)
            )
        ).map(list)

    return st.integers(0, nodes_max).flatmap(parents)


def test_the_worked_example():
    acker = Acker()
    told = [
        acker.init([66], [8], [11]),
        acker.ack([66], [8 ^ 4 ^ 7]),
        acker.ack([66], [4]),
        acker.ack([66], [7]),
    ]
    assert 8 ^ 4 ^ 7 == 11
    assert [outcomes(one) for one in told] == [{}, {}, {}, {66: (11, DONE)}]
    assert acker.counts.in_flight == acker.counts.unknown == 0


def test_the_values_of_the_worked_example():
    acker = Acker()
    values = []
    for message in (
        Message(INIT, 66, 8, 11),
        Message(ACK, 66, 8 ^ 4 ^ 7),
        Message(ACK, 66, 4),
    ):
        fold(acker, [message])
        values += [int(v) for b in acker._buckets for run in b.runs for v in run.values]
    assert values == [8, 3, 7]


def test_an_entry_is_20_bytes_whatever_the_size_of_the_tree():
    random, acker, count = np.random.default_rng(1), Acker(), 10_000
    anchors = Anchors.of_records(count, random)
    acker.init(anchors.roots, anchors.edges, anchors.tuples)
    sizes = [acker.nbytes / count]
    for _ in range(3):  # each tuple becomes two
        inputs = np.repeat(anchors.tuples, 2)
        anchors, messages = anchors.emit(np.arange(len(inputs)), inputs, random)
        acker.ack(*messages)
        sizes.append(acker.nbytes / count)
    assert sizes == [20.0] * 4
    ended = acker.ack(*xor_by_root(anchors.roots, anchors.edges))
    assert ended.outcomes.tolist() == [DONE] * count


def test_memory_is_bounded_while_roots_come_and_go():
    random, acker = np.random.default_rng(1), Acker()
    waiting, most = [], 0.0
    for step in range(300):
        anchors = Anchors.of_records(100, random)
        acker.init(anchors.roots, anchors.edges, anchors.tuples)
        waiting.append(anchors)
        if len(waiting) > 20:
            done = waiting.pop(0)
            acker.ack(done.roots, done.edges)
        if step > 20:
            most = max(most, acker.nbytes / acker.counts.in_flight)
    assert most <= 50  # 20, and as much again for what is over, and a batch


@pytest.mark.parametrize(
    ("parents", "others", "count"), [([[0], [0], [1, 2]], 0, 120), ([[0], [0, 1]], 1, 720)]
)
def test_every_order_of_a_small_dag(parents, others, count):
    """Every order, one by one: record -> a, b -> c made of both; and with another record beside."""
    random = np.random.default_rng(3)
    messages = tree(1, 5, parents, random)
    beside = tree(2, 6, [], random) * others
    orders = 0
    for order in itertools.permutations(messages + beside):
        acker = Acker()
        for place, message in enumerate(order):
            told = outcomes(fold(acker, [message]))
            came = order[: place + 1]
            expected = {
                root: (task, DONE)
                for root, task, parts in ((1, 5, messages), (2, 6, beside))
                if parts and message in parts and all(part in came for part in parts)
            }
            assert told == expected
            assert balanced(acker)
        orders += 1
    assert orders == count


def test_every_loss_and_every_duplicate_of_a_small_dag_in_every_order():
    """A duplicate never completes a tree early; a loss never completes it."""
    messages = tree(1, 5, [[0], [0, 1]], np.random.default_rng(3))
    for twice in messages:
        for order in set(itertools.permutations([*messages, twice])):
            acker, told = Acker(), {}
            for place, message in enumerate(order):
                found = outcomes(fold(acker, [message]))
                if found:
                    assert not told
                    assert set(messages) <= set(order[: place + 1])
                told |= found
            late = {**outcomes(acker.rotate()), **outcomes(acker.rotate())}
            if twice.kind == INIT:
                # told done once; an init behind the end begins a root that is given up
                assert told == {1: (5, DONE)}
            else:
                assert len(told) + len(late) == 1
    for lost in messages:
        for order in itertools.permutations([m for m in messages if m is not lost]):
            acker = Acker()
            assert not any(outcomes(fold(acker, [message])) for message in order)
            acker.rotate()
            expected = {} if lost.kind == INIT else {1: (5, TIMED_OUT)}
            assert outcomes(acker.rotate()) == expected


@PROPERTY
@given(
    st.lists(dags(), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 0.05]),
)
def test_batches_equal_a_message_at_a_time(shapes, random, batch, losses, doubles, fails):
    ids = np.random.default_rng(random.randrange(1 << 30))
    roots = [int(root) for root in new_ids(len(shapes), ids)]
    messages = [
        m
        for task, (root, shape) in enumerate(zip(roots, shapes, strict=True))
        for m in tree(root, task, shape, ids)
    ]
    messages = [m for m in messages if random.random() >= losses]
    messages += [m for m in messages if random.random() < doubles]
    messages += [Message(FAIL, root) for root in roots if random.random() < fails]
    random.shuffle(messages)
    one, many, plain = Acker(), Ackers(3), Plain()
    found: list[dict] = [{}, {}, {}]
    done: list[set] = [set(), set(), set()]  # a double behind the end begins a root that times out

    def hear(*told):
        for held, ended, heard in zip(found, done, told, strict=True):
            held |= heard
            ended |= {root for root, (_, outcome) in heard.items() if outcome == DONE}

    for start in range(0, len(messages), batch):
        part = messages[start : start + batch]
        if batch == 1 and random.random() < 0.2:
            hear(outcomes(one.rotate()), outcomes(many.rotate()), plain.rotate())
        each = [plain.message(message) for message in part]
        hear(outcomes(fold(one, part)), outcomes(fold(many, part)), {})
        for told in each:
            hear({}, {}, told)
        assert balanced(one)
    for _ in range(2):
        hear(outcomes(one.rotate()), outcomes(many.rotate()), plain.rotate())
    assert found[0] == found[1]
    assert one.counts.in_flight == one.counts.unknown == 0
    if batch == 1 or not (doubles or fails):
        assert found[0] == found[2]
    elif not fails:
        # what cancels itself within a batch can't be told from what never came
        assert done[0] <= done[2]


@PROPERTY
@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 1000))
def test_tuples_of_several_inputs_are_parts_of_all_their_trees(records, outputs, seed):
    random = np.random.default_rng(seed)
    acker = Acker()
    anchors = Anchors.of_records(records, random)
    acker.init(anchors.roots, anchors.edges, anchors.tuples)
    links = random.integers(0, [[outputs or 1], [records]], (2, outputs)) if outputs else ([], [])
    links = np.unique(np.asarray(links, np.int64), axis=1)
    made, messages = anchors.emit(links[0], links[1], random)
    done = set(acker.ack(*messages).tasks.tolist())
    assert done == set(range(records)) - set(links[1].tolist())
    last = random.permutation(np.unique(made.tuples))
    for tuple_ in last:
        mine = made.tuples == tuple_
        done |= set(acker.ack(*xor_by_root(made.roots[mine], made.edges[mine])).tasks.tolist())
    assert done == set(range(records))
    assert acker.counts.done == records


def test_rows_that_nobody_acknowledged_are_no_outcome():
    trees = Trees(3, np.random.default_rng(1))
    assert trees.finish([b"a", b"b", b"c"]).done.all()
    # a second time opens each edge again
    with pytest.raises(QueueError, match="3 records") as error:
        trees.finish([b"a", b"b", b"c"])
    assert error.value.condition == "ACCOUNT_WRONG"


def test_what_has_failed_is_told_once_and_before_its_init_waits_for_it():
    acker = Acker()
    assert not outcomes(acker.fail([7]))
    assert outcomes(acker.init([7], [1], [3])) == {7: (3, FAILED)}
    acker.init([8], [1], [4])
    assert outcomes(acker.fail([8, 8])) == {8: (4, FAILED)}
    assert not outcomes(acker.fail([8]))
    # complete and failed at once: failed
    assert outcomes(acker.fold(([9], [1], [5]), ([9], [1]), [9])) == {9: (5, FAILED)}
    assert balanced(acker)


def test_what_is_over_leaves_nothing_to_a_root_of_the_same_id():
    acker = Acker()
    acker.init([8, 9], [1, 1], [4, 5])
    acker.fail([8])
    acker.init([8], [2], [6])
    assert outcomes(acker.ack([8], [2])) == {8: (6, DONE)}
    assert acker.counts.in_flight == 1
    assert acker.counts.unknown == 0


def test_a_root_times_out_between_one_and_two_rotations_however_busy_it_is():
    acker = Acker()
    acker.init([1], [1], [0])
    assert not outcomes(acker.rotate())
    acker.init([2], [1], [0])
    acker.ack([1], [2])
    assert outcomes(acker.rotate()) == {1: (0, TIMED_OUT)}
    assert outcomes(acker.rotate()) == {2: (0, TIMED_OUT)}
    assert acker.counts.timed_out == 2


def test_messages_behind_the_end_are_held_for_a_while_and_told_to_no_one():
    acker = Acker()
    acker.fold(([1], [6], [0]), ([1], [6]))
    acker.ack([1], [6])
    assert acker.counts.unknown == 1
    acker.rotate()
    assert not outcomes(acker.rotate())
    assert (acker.counts.unknown, acker.counts.late) == (0, 1)


def test_a_root_without_tuples_is_done_at_once():
    assert outcomes(Acker().init([1], [0], [9])) == {1: (9, DONE)}


def test_signed_ids_of_spark_and_arrow_arrays():
    roots = pa.array([-1, 5], pa.int64())
    told = Acker().fold((roots, [3, 4], [1, 2]), (pa.chunked_array([roots]), [3, 4]))
    assert told.roots.tolist() == [5, (1 << 64) - 1]
    assert told.outcomes.tolist() == [DONE, DONE]
    assert acker_of(roots, 4).tolist() == [3, 1]


@pytest.mark.parametrize("ackers", [1, 3, 8])
def test_ackers_share_the_roots(ackers):
    random = np.random.default_rng(1)
    anchors = Anchors.of_records(10_000, random)
    many = Ackers(ackers)
    many.fold((anchors.roots, anchors.edges, anchors.tuples))
    held = [acker.counts.in_flight for acker in many.ackers]
    assert sum(held) == 10_000
    assert min(held) > 0.9 * 10_000 / ackers
    told = many.fold(ack=(anchors.roots, anchors.edges))
    assert sorted(told.tasks.tolist()) == list(range(10_000))
    many.fold(init=([7], [8], [9]))
    many.rotate()
    assert many.counts.in_flight == 1
    many.rotate()
    assert many.counts == AckerCounts(started=10_001, done=10_000, timed_out=1)


def test_ids_that_were_rounded_are_refused():
    with pytest.raises(TypeError, match="64 bits"):
        Acker().ack(np.array([1.0]), np.array([1.0]))
