"""Forks: the child gets nothing of its parent's store, and the parent notices nothing."""

from __future__ import annotations

import ast
import importlib
import json

import pytest

from bookstand.storage.process import process_markers
from bookstand.storage.process.fork_guard import ProcessBound
from tests.kit import PATIENCE, ROOT, Program

# What runs in programs of their own: forking a process full of threads is what is tested, and not to be had in pytest.
TOOLS = """
import json, os, signal, sys, threading, time, warnings
import bookstand
from bookstand import errors
warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(60)
path = sys.argv[1]

def fork(work):
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            answer = work()
        except BaseException as error:
            answer = f"raised {error!r}"
        os.write(outlet, json.dumps(answer, default=repr).encode())
        os._exit(0)
    os.close(outlet)
    with open(inlet, "rb") as stream:
        told = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(told) if told else f"ended with {status}"

def refusal(call):
    try:
        value = call()
    except BaseException as error:
        return type(error).__name__
    return f"returned {value!r}"

def tell(**what):
    print(json.dumps(what, default=repr), flush=True)
"""


def run(source: str, *arguments: object) -> list[dict]:
    with Program(TOOLS + source, *arguments) as program:
        status = program.finish()
    told = [json.loads(line) for line in program.lines]
    assert status == 0, (status, told[-3:])
    return told


EVERY_USE = """
store = bookstand.open(path)
other = bookstand.open(path)
writer, adv, closed = store.create_ledger(), store.create_ledger_adv(), store.create_ledger()
deferred = store.create_ledger(deferred_sync=True)
for handle in (writer, closed, deferred):
    handle.append(b"a")
adv.write(0, b"a")
closed.close()
reader, following = store.open_ledger(closed.id), other.open_ledger(writer.id, recovery=False)
running = iter(reader)
listing = store.list_ledgers()
next(listing)
transaction = store.transaction()
transaction.put_node("/t", b"1")
queued = writer.append_async(b"queued")

def uses():
    calls = {
        "result": lambda: queued.result(5),
        "append": lambda: writer.append(b"x"),
        "append_async": lambda: writer.append_async(b"x").result(5),
        "append_many": lambda: writer.append_many([b"x"] * 3),
        "adv": lambda: adv.write(1, b"x"),
        "deferred": lambda: deferred.append(b"x"),
        "force": deferred.force,
        "close writer": closed.read_last_confirmed and writer.close,
        "read": lambda: reader.read(0, 0),
        "iterate": lambda: next(running),
        "begin to iterate": lambda: list(reader),
        "read_last_confirmed": following.read_last_confirmed,
        "wait_entry": lambda: following.wait_entry(5, 5),
        "follow": lambda: list(following.follow(1)),
        "create": store.create_ledger,
        "open": lambda: store.open_ledger(closed.id),
        "delete": lambda: store.delete_ledger(closed.id),
        "list": lambda: list(store.list_ledgers()),
        "go on listing": lambda: next(listing),
        "metadata": lambda: store.ledger_metadata(closed.id),
        "is_closed": lambda: store.is_closed(closed.id),
        "node get": lambda: store.nodes.get("/n"),
        "node put": lambda: store.nodes.put("/n", b"1"),
        "children": lambda: store.nodes.children("/"),
        "transaction": lambda: transaction.__exit__(None, None, None),
        "begin a transaction": store.transaction,
        "verify": store.verify,
        "backup": lambda: store.backup(path + "-backup"),
        "compact": store.compact,
        "another client": lambda: other.create_ledger(),
    }
    answers = {name: refusal(call) for name, call in calls.items()}
    answers["close"] = refusal(store.close)
    answers["close again"] = refusal(store.close)
    return answers

tell(child=fork(uses))
tell(parent=[writer.append(b"b"), queued.result(), reader.read(0, 0)[0].data.decode(), adv.write(1, b"b"),
             sum(1 for _ in running), store.nodes.put("/n", b"1")])
transaction.__exit__(None, None, None)
tell(ok=store.verify().ok, problems=store.verify().problems)
store.close()
other.close()
"""


def test_every_use_in_the_child(store_path):
    child, parent, verified = run(EVERY_USE, store_path)
    allowed = {"ForkedStoreError"}
    answers = child["child"]
    assert answers.pop("close") == "returned None"
    assert answers.pop("close again") in ("returned None", "ForkedStoreError", "ClientClosedError")
    # Those two clients are closed for good by the child's own close().
    assert {name: answer for name, answer in answers.items() if answer not in allowed} == {}
    assert parent["parent"] == [2, 1, "a", 1, 1, 0]
    assert verified["ok"], verified


OWN_STORE = """
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"the parent's")

def work():
    answers = []
    for name in (path, path + "-another"):
        with bookstand.open(name) as own:
            mine = own.create_ledger()
            answers.append([mine.append(b"the child's"), len(mine.append_many([b"x"] * 500))])
            pending = mine.append_async(b"y")
            called = threading.Event()
            pending.add_done_callback(lambda _: called.set())
            answers.append([called.wait(15), list(own.list_ledgers()), own.verify().ok])
    return answers

tell(child=fork(work))
tell(parent=[writer.append(b"again"), list(store.list_ledgers()), store.verify().ok])
for _ in range(3):
    tell(again=fork(work)[0])
store.close()
tell(markers=[name for name in os.listdir(path) if name.startswith("open-")])
"""


@pytest.mark.slow
def test_the_child_may_open_the_same_store_for_itself(store_path):
    child, parent, *again, markers = run(OWN_STORE, store_path)
    assert child["child"] == [[0, 500], [True, [0, 1], True], [0, 500], [True, [0], True]]
    assert parent["parent"] == [1, [0, 1], True]
    assert [one["again"] for one in again] == [[0, 500]] * 3
    assert markers["markers"] == []


AMONG_THREADS = """
sys.setswitchinterval(1e-5)
store = bookstand.open(path)
confirmed = {}
stop = threading.Event()
failures = []

def append():
    writer = store.create_ledger()
    confirmed[writer.id] = -1
    while not stop.is_set():
        confirmed[writer.id] = writer.append(b"x" * 50)

def append_async():
    writer = store.create_ledger()
    confirmed[writer.id] = -1
    while not stop.is_set():
        pendings = [writer.append_async(b"y") for _ in range(20)]
        called = []
        for pending in pendings:
            pending.add_done_callback(called.append)
        confirmed[writer.id] = pendings[-1].result(60)

def read():
    while not stop.is_set():
        for ledger in list(confirmed):
            reader = store.open_ledger(ledger, recovery=False)
            if reader.last_add_confirmed >= 0:
                reader.read(0, min(5, reader.last_add_confirmed))
        store.nodes.put("/n", b"x")

def guarded(work):
    def run():
        try:
            work()
        except BaseException as error:
            failures.append(repr(error))
            stop.set()
    return run

threads = [threading.Thread(target=guarded(work)) for work in (append, append, append_async, append_async, read, read)]
for thread in threads:
    thread.start()
time.sleep(0.2)

def work():
    answer = refusal(lambda: store.nodes.get("/n"))
    with bookstand.open(path) as own:
        mine = own.create_ledger()
        mine.append(b"the child's")
        mine.append_async(b"z").result(15)
        mine.close()
        return [answer, own.is_closed(mine.id)]

forks = 0
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until and not stop.is_set():
    answer = fork(work if forks % 4 == 0 else lambda: [refusal(store.create_ledger), True])
    if answer != ["ForkedStoreError", True]:
        failures.append(answer)
        break
    forks += 1
stop.set()
for thread in threads:
    thread.join(60)
    if thread.is_alive():
        failures.append("a thread of the parent did not come back")
tell(forks=forks, failures=failures, confirmed=confirmed, ok=store.verify().ok)
store.close()
with bookstand.open(path) as store:
    tell(kept={ledger: store.open_ledger(ledger).last_add_confirmed for ledger in confirmed})
"""


@pytest.mark.long
def test_forks_among_threads_that_append_and_read(store_path):
    """Whatever lock a thread of the parent holds at that moment, neither side waits for it for ever."""
    result, kept = run(AMONG_THREADS, store_path, 6)
    assert result["failures"] == []
    assert result["ok"]
    assert result["forks"] > 10
    for ledger, last in result["confirmed"].items():
        assert last >= 0
        assert kept["kept"][ledger] >= last


OPENING_MEANWHILE = """
sys.setswitchinterval(1e-5)
stop = threading.Event()
failures = []

def open_and_close(number):
    while not stop.is_set():
        try:
            with bookstand.open(f"{path}-{number}") as store:
                store.nodes.put("/n", b"1")
        except BaseException as error:
            failures.append(repr(error))
            return

threads = [threading.Thread(target=open_and_close, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()

def work():
    with bookstand.open(f"{path}-child") as store:
        return store.nodes.put("/n", b"1") >= 0

forks = 0
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    answer = fork(work)
    if answer is not True:
        failures.append(answer)
        break
    forks += 1
stop.set()
for thread in threads:
    thread.join(60)
    if thread.is_alive():
        failures.append("a thread of the parent did not come back")
tell(forks=forks, failures=failures)
"""


@pytest.mark.long
def test_forks_while_stores_are_opened_and_closed(store_path):
    (result,) = run(OPENING_MEANWHILE, store_path, 4)
    assert result["failures"] == []
    assert result["forks"] > 10


PENDING = """
store = bookstand.open(path, hooks=None)
writer = store.create_ledger()
done = writer.append_async(b"a")
done.result()
with store.storage.committer.paused():
    queued = [writer.append_async(b"q") for _ in range(5)]
    child = None

def work():
    started = time.monotonic()
    answers = [refusal(pending.result) for pending in queued]
    answers += [refusal(lambda: queued[0].result(5)), refusal(lambda: queued[0].exception(5))]
    return [answers, done.result(), time.monotonic() - started < 15]

answer = fork(work)
tell(child=answer, parent=[pending.result(30) for pending in queued])
store.close()
"""


def test_results_under_way_raise_in_the_child(store_path):
    """Nobody commits for the child; waiting for it must not last for ever."""
    (result,) = run(PENDING, store_path)
    answers, done, in_time = result["child"]
    assert set(answers) <= {"ForkedStoreError"} | ({"returned 1"} | {f"returned {i}" for i in range(6)})
    assert "ForkedStoreError" in answers or answers == [f"returned {i}" for i in range(1, 6)] + ["returned 1"] * 2
    assert (done, in_time) == (0, True)
    assert result["parent"] == [1, 2, 3, 4, 5]


READERS = """
store = bookstand.open(path)
writer = store.create_ledger()
writer.append_many([b"%d" % i for i in range(5000)])
reader = store.open_ledger(writer.id)
environment = store.storage._environment
held = iter(reader)
first = [next(held).entry_id for _ in range(10)]
for _ in range(20):
    fork(lambda: refusal(store.close))
slots = environment._env.readers()
tell(rest=sum(1 for _ in held), slots=slots.count(str(os.getpid())), ok=store.verify().ok)
with bookstand.open(path) as another:
    tell(again=len(another.open_ledger(writer.id).read(0, 4999)))
store.close()
"""


def test_the_childs_end_takes_nothing_from_the_parents_readers(store_path):
    result, again = run(READERS, store_path)
    assert result["rest"] == 4990
    assert result["ok"]
    assert again["again"] == 5000


POOL = """
import multiprocessing
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"a")

def work(number):
    with bookstand.open(path) as own:
        mine = own.create_ledger()
        for i in range(20):
            mine.append(b"%d" % i)
        mine.close()
        return mine.id

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        ledgers = pool.map(work, range(9))
    tell(ledgers=sorted(ledgers), appended=writer.append(b"b"), ok=store.verify().ok)
    store.close()
"""


def test_a_pool_of_forked_processes(store_path):
    (result,) = run(POOL, store_path)
    assert result == {"ledgers": list(range(1, 10)), "appended": 1, "ok": True}


GRANDCHILDREN = """
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"a")

def child():
    answer = [refusal(lambda: store.nodes.get("/n"))]
    with bookstand.open(path) as own:
        own.nodes.put("/child", b"1")
        answer.append(fork(lambda: [refusal(lambda: own.nodes.get("/child")), refusal(lambda: writer.append(b"x"))]))
        answer.append(own.nodes.get("/child")[0].decode())
    return answer

tell(child=fork(child), parent=writer.append(b"b"), node=store.nodes.get("/child")[0].decode())
store.close()
"""


def test_forks_of_forks(store_path):
    (result,) = run(GRANDCHILDREN, store_path)
    assert result["child"] == ["ForkedStoreError", ["ForkedStoreError", "ForkedStoreError"], "1"]
    assert (result["parent"], result["node"]) == (1, "1")


CHILD_FIRST = """
# The child that dies at once, by whatever means, must not hold up its parent.
store = bookstand.open(path)
for number in range(10):
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGKILL) if number % 2 else os._exit(0)
    store.nodes.put("/n", b"%d" % number)
    os.waitpid(child, 0)
tell(ok=store.verify().ok)
store.close()
"""


def test_a_child_that_dies_at_once(store_path):
    assert run(CHILD_FIRST, store_path) == [{"ok": True}]


def test_a_program_started_by_a_process_with_a_store(store):
    """Not a fork in Python's sense; nothing of the store is inherited."""
    writer = store.create_ledger()
    with Program("import os; print(sorted(os.listdir('/proc/self/fd'), key=int)[-1])") as program:
        assert writer.append(b"a") == 0
        program.finish()
    assert int(program.lines[0]) < 10
    assert PATIENCE > 0


LEAVING = """
store = bookstand.open(path)

def transaction():
    made = store.transaction()
    made.put_node("/n", b"1")
    return made

blocks = {
    "store": lambda: bookstand.open(path),
    "writer": store.create_ledger,
    "reader": lambda: store.open_ledger(store.create_ledger().id),
    "transaction": transaction,
    "topic": lambda: store.topic("t"),
    "subscription": lambda: store.topic("t").subscription("s"),
    "consumer": lambda: store.topic("t").subscription("s").consumer("c"),
    "cursor": lambda: store.topic("t").cursor("c"),
}

def leave(block, error):
    try:
        with block:
            if os.fork():
                os.wait()
                return "in the parent"
            if error is not None:
                raise error
    except BaseException as raised:
        answer = type(raised).__name__
    else:
        answer = "left"
    os.write(inlet, answer.encode())
    os._exit(0)

for name, make in blocks.items():
    for error in (None, KeyError("of the child")):
        outlet, inlet = os.pipe()
        parent = refusal(lambda: leave(make(), error))
        tell(name=name, error=repr(error), child=os.read(outlet, 100).decode(), parent=parent)
tell(node=store.nodes.get("/n")[0].decode(), ok=store.verify().ok)
"""


def test_leaving_a_block_in_the_child(store_path):
    """Nothing ends in the child. A block that promises a change of the store says so, unless an exception ends it."""
    *left, after = run(LEAVING, store_path)
    durable = {"writer", "transaction"}
    for one in left:
        expected = "KeyError" if one["error"] != "None" else "ForkedStoreError" if one["name"] in durable else "left"
        assert one["child"] == expected, one
        assert one["parent"] == "returned 'in the parent'", one
    assert len(left) == 16
    assert after == {"node": "1", "ok": True}


IN_A_TRANSACTION = """
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"a")
environment = store.storage._environment

def fork_and_unwind(block):
    try:
        with block as transaction:
            child = os.fork()
            if child == 0:
                raise SystemExit
            status = os.waitpid(child, 0)[1]
            return status, [line.split() for line in environment._env.readers().splitlines()]
    except (SystemExit, errors.ForkedStoreError):
        # The end of a transaction of the parent, too, is refused.
        os._exit(7)

status, readers = fork_and_unwind(environment.read())
tell(read=os.waitstatus_to_exitcode(status), slots=[line[-1] for line in readers if line[0] == str(os.getpid())])

def callback(pending):
    global forked
    child = os.fork()
    if child == 0:
        os._exit(0 if refusal(lambda: writer.append(b"of the child")) == "ForkedStoreError" else 1)
    forked = os.waitpid(child, 0)[1]

pending = writer.append_async(b"b")
pending.add_done_callback(callback)
tell(appended=pending.result(30), callback=forked, after=writer.append(b"c"), ok=store.verify().ok)
"""


def test_a_fork_in_the_middle_of_a_transaction(store_path):
    """A handler of a signal or a callback may fork anywhere. LMDB's reader slot remains the parent's."""
    read, rest = run(IN_A_TRANSACTION, store_path)
    assert read["read"] == 7
    assert len(read["slots"]) == 1
    assert read["slots"][0].isdigit(), "the parent's transaction was ended by the child"
    assert rest == {"appended": 1, "callback": 0, "after": 2, "ok": True}


OWN_LOCKS = """
import fcntl, gc
from bookstand.storage.lmdb import environment
if sys.argv[2] == "freed":
    environment._leak = lambda env: None
store = bookstand.open(path)
store.nodes.put("/n", b"1")

def child():
    global store
    own = bookstand.open(path)
    assert own.nodes.get("/n")[0] == b"1"
    del store
    gc.collect()
    # A process of its own asks for the lock by which LMDB knows that a reader's process lives.
    asking = os.fork()
    if asking == 0:
        file = os.open(f"{path}/lock.mdb", os.O_RDWR)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, os.getppid())
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(asking, 0)[1])

tell(lost=fork(child))
"""


@pytest.mark.parametrize(("environments", "lost"), [("kept", 0), ("freed", 1)])
def test_the_childs_own_store_keeps_its_locks(store_path, environments, lost):
    """Closing the parent's environment would release LMDB's locks of the child's own, which belong to the process."""
    assert run(OWN_LOCKS, store_path, environments) == [{"lost": lost}]


TEMPORARY = """
import tempfile
tempfile.tempdir = path
os.makedirs(path)
parent = os.getpid()
with bookstand.temporary() as store:
    for ending in ("leave", "exit"):
        child = os.fork()
        if child == 0:
            if ending == "leave":
                break
            raise SystemExit
        os.waitpid(child, 0)
        tell(there=os.listdir(path) != [], node=store.nodes.put("/n", b"1"))
if os.getpid() == parent:
    tell(there=os.listdir(path) != [])
"""


def test_a_child_leaves_a_temporary_store_to_its_parent(store_path):
    told = run(TEMPORARY, store_path)
    assert told == [{"there": True, "node": 0}, {"there": True, "node": 1}, {"there": False}]


OUTLIVING = """
from bookstand.storage.process import process_markers
store = bookstand.open(path)
role = store.storage.acquire_role("bookies")
lock = process_markers.FolderLock(path)
lock.__enter__()
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
# Both ends of the pipe to the test are the child's now.
tell(child=os.getpid())
sys.stdin.readline()
"""


def test_locks_of_a_parent_end_with_it(store_path):
    """A child that outlives its parent neither keeps the folder locked nor makes the parent seem alive."""
    with Program(TOOLS + OUTLIVING, store_path) as program:
        program.wait_for_lines(1)
        survey = process_markers.OpenProcesses(str(store_path))
        assert (survey.writers, len(survey.died_writing)) == (0, 1)
        role = process_markers.ExclusiveRole(str(store_path), "bookies")
        role.take()
        role.remove()
        program.tell("go")
        program.finish()


AWAITING = """
import asyncio
store = bookstand.open(path)
writer = store.create_ledger()
topic = store.topic("t")
subscription = topic.subscription("s")
consumer = subscription.consumer("c")
with store.storage.committer.paused():
    queued = [writer.append_async(b"q") for _ in range(2)]
    published = topic.publish_async(b"m")

    async def uses():
        answers = {}
        async def one(name, awaitable):
            try:
                await asyncio.wait_for(awaitable(), 20)
            except BaseException as error:
                answers[name] = type(error).__name__
            else:
                answers[name] = "returned"
        async def waiting(pending):
            return await pending
        async def iterating():
            async for message in consumer:
                return message
        await one("queued", lambda: waiting(queued[-1]))
        await one("published", lambda: waiting(published))
        await one("append", lambda: waiting(writer.append_async(b"x")))
        await one("publish", lambda: waiting(topic.publish_async(b"x")))
        await one("receive", lambda: subscription.receive_async(1))
        await one("consumer", lambda: consumer.receive_async(1))
        await one("iterate", iterating)
        return answers

    child = fork(lambda: asyncio.run(uses()))
tell(child=child, parent=[pending.result(30) for pending in queued])
tell(received=len(asyncio.run(subscription.receive_async(1))))
"""


def test_awaiting_in_the_child(store_path):
    child, received = run(AWAITING, store_path)
    assert set(child["child"].values()) == {"ForkedStoreError"}, child
    assert len(child["child"]) == 7
    assert (child["parent"], received) == ([0, 1], {"received": 1})


READ_ONLY = """
with bookstand.open(path) as store:
    writer = store.create_ledger()
    writer.append_many([b"a"] * 5)
    writer.close()
store = bookstand.open(path, read_only=True)
reader = store.open_ledger(writer.id)

def work():
    answers = [refusal(lambda: reader.read(0, 4)), refusal(store.list_ledgers)]
    with bookstand.open(path, read_only=True) as own:
        return [*answers, len(own.open_ledger(writer.id).read(0, 4))]

tell(child=fork(work), parent=len(reader.read(0, 4)))
"""


def test_a_store_that_is_only_read(store_path):
    (told,) = run(READ_ONLY, store_path)
    assert told == {"child": ["ForkedStoreError", "ForkedStoreError", 5], "parent": 5}


SERVED = """
import socket, urllib.request
from bookstand.server import serve
arguments, children = {}, []

def connect(server):
    host, _, port = server.zookeeper.rpartition(":")
    connection = socket.create_connection((host, int(port)), 20)
    connection.sendall(b"ruok")
    return connection

for _ in range(2):
    with serve(path, 1, metrics=arguments.get("metrics", "127.0.0.1:0"), **arguments.get("ports", {})) as server:
        waiting = socket.create_connection(tuple(server.cluster.zookeeper_address), 20)
        child = os.fork()
        if child == 0:
            # The end of the block does nothing here.
            break
        children.append(child)
        tell(answer=connect(server).recv(10).decode(), uses=refusal(server.state)[:8])
        urllib.request.urlopen(server.metrics_url, timeout=20).read()
        arguments["metrics"] = server.metrics_url.split("/")[2]
        arguments["ports"] = {
            "zookeeper": server.zookeeper,
            "bookie_ports": [address[1] for address in server.cluster.bookie_addresses],
        }
    # The child still lives: neither the connection nor the ports may be its.
    tell(end=waiting.recv(10).decode())
if child == 0:
    time.sleep(50)
    os._exit(0)
for child in children:
    os.kill(child, signal.SIGKILL)
tell(ended="both")
"""


def test_a_child_keeps_no_port_of_a_server(store_path):
    told = run(SERVED, store_path)
    assert told == [{"answer": "imok", "uses": "returned"}, {"end": ""}] * 2 + [{"ended": "both"}]


# Kinds of objects that a fork may find in the hands of another thread, and what they are instead of bound to a process.
UNBOUND = {
    "Batch": "belongs to a committer",
    "Completion": "its driver is bound",
    "Waiters": "belongs to an object that is bound",
    "ThreadTimer": "begins anew in the child",
    "_Background": "replaced in the child",
    "HookThreads": "used by a server alone",
    "InterceptedWrite": "its threads are a server's",
    "Cluster": "used by the loop of a server alone",
    "RoundScheduler": "used by the loop of a server alone",
    "ServerFaults": "used by a server alone",
}
BLOCKING = {"shut_gate", "Waiters", "Lock", "RLock", "Condition", "Event", "Semaphore", "Thread"}


@pytest.mark.slow
def test_every_object_with_a_lock_is_bound_to_its_process():
    unbound = set()
    for room in ("storage", "ledger", "managed_ledger", "cursor", "delivery", "server"):
        for file in sorted((ROOT / room).rglob("*.py")):
            module = ".".join(("bookstand", *file.relative_to(ROOT).with_suffix("").parts))
            for kind in ast.walk(ast.parse(file.read_text())):
                if isinstance(kind, ast.ClassDef) and _makes(kind, BLOCKING):
                    made = getattr(importlib.import_module(module), kind.name)
                    if not issubclass(made, ProcessBound):
                        unbound.add(kind.name)
    assert unbound == UNBOUND.keys()


def _makes(kind: ast.ClassDef, names: set[str]) -> bool:
    for node in ast.walk(kind):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                return True
    return False


INTERRUPTED = """
from tests.soak.interruption import Interruption
# What an interrupted handler of a fork raises is printed, and goes no further.
sys.unraisablehook = lambda _: None
store = bookstand.open(path)
writers = [store.create_ledger() for _ in range(3)]

def forked(number):
    inlet, outlet = os.pipe()
    with Interruption(number) as interruption:
        child = os.fork()
    if not child:
        answers = {refusal(lambda: one.last_add_pushed) for one in [*writers, store]}
        told = [interruption.place is not None, interruption.instructions, sorted(answers)]
        os.write(outlet, json.dumps(told).encode())
        os._exit(0)
    os.close(outlet)
    with open(inlet, "rb") as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return json.loads(told)

_, length, _ = forked(0)
tell(length=length)
for number in range(1, length, int(sys.argv[2])):
    met, _, answers = forked(number)
    tell(met=met, number=number, answers=answers)
tell(after=writers[0].append(b"a"))
"""


def test_an_interrupted_fork_disables_all_objects(store_path):
    """Ctrl-C reaches the child as well, which may be in the middle of that."""
    length, *children, after = run(INTERRUPTED, store_path, 61)
    assert length["length"] > 500
    assert sum(child["met"] for child in children) > 5
    for child in children:
        assert child["answers"] == ["ForkedStoreError"], child
    assert after["after"] == 0
