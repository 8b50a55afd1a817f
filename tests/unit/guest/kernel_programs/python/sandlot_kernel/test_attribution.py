"""Attribution of output to cells, for threads that start threads."""

from __future__ import annotations

from tests.support.kernels import Process


def test_nested_threads_and_tasks_belong_to_the_first_cell(kernel: Process) -> None:
    code = (
        "go = threading.Event()\n"
        "def leaf(): go.wait(); print('leaf')\n"
        "def middle():\n    inner = threading.Thread(target=leaf)\n    inner.start()\n    inner.join()\n"
        "async def task(): await asyncio.to_thread(middle)\n"
        "outer = threading.Thread(target=lambda: asyncio.run(task()))\nouter.start()"
    )
    first = kernel.begin(code)
    kernel.until(first)
    outcome = kernel.until(kernel.begin("go.set()\nouter.join()"))
    assert [message["cell"] for message in outcome if message["event"] == "output"] == [first]


def test_subclassed_thread_belongs_to_the_cell_that_starts_it(kernel: Process) -> None:
    kernel.run("class Own(threading.Thread):\n    def run(self): print('own')\nthread = Own()")
    cell = kernel.begin("thread.start()\nthread.join()")
    outcome = kernel.until(cell)
    assert {message["cell"] for message in outcome} == {cell}


def test_thread_of_c_code_belongs_to_the_running_cell(kernel: Process) -> None:
    kernel.run("import _thread\nprinted = _thread.allocate_lock()\nprinted.acquire()\ndef raw():\n    print('raw')\n    printed.release()")
    cell = kernel.begin("_thread.start_new_thread(raw, ())\nprinted.acquire()")
    assert [message["cell"] for message in kernel.until(cell) if message["event"] == "output"] == [cell]
