"""The bash kernel, run on the bash of this machine."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.kernels import Piped, ship


@pytest.fixture
def shell(tmp_path: Path) -> Generator[Piped]:
    (tmp_path / "work").mkdir()
    ship(tmp_path / "programs")
    kernel = Piped([sys.executable, "-SI", str(tmp_path / "programs/kernel_programs/bash/kernel.py")], tmp_path / "work")
    yield kernel
    assert kernel.close() in (0, -signal.SIGKILL)
    deadline = time.monotonic() + 30
    while members(kernel.process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert members(kernel.process.pid) == []


def members(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for pid in [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]:
        with suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(state[3]) == session and state[0] != "Z":
                found.append(pid)
    return found


def test_variables_and_functions_persist_between_cells(shell: Piped, tmp_path: Path) -> None:
    first = shell.run("x=5; declare -A map=([a]=1); export E=e\nf() { echo f$x ${map[a]}; }\nalias ll='echo L'\nshopt -s nullglob\nmkdir sub; cd sub")
    assert (first.is_ok, first.count, first.stdout, first.stderr, first.order) == (True, 1, "", "", ["started", "done"])
    outcome = shell.run("f; ll; pwd; echo *.none; sh -c 'echo $E'")
    assert outcome.stdout == f"f5 1\nL\n{tmp_path}/work/sub\n\ne\n"
    assert (outcome.count, outcome.stderr) == (2, "")


def test_stdout_and_stderr_are_separate_and_arrive_before_the_end(shell: Piped) -> None:
    outcome = shell.run("echo out; echo err >&2; ls /nowhere; printf 'no newline'")
    assert outcome.stdout == "out\nno newline"
    assert outcome.stderr.splitlines()[0] == "err"
    assert "/nowhere" in outcome.stderr
    assert outcome.order[-1] == "done"


def test_status_of_the_last_command_is_that_of_the_cell(shell: Piped, subtests: pytest.Subtests) -> None:
    for code, status in [("false", 1), ("(exit 7)", 7), ("no-such-command-at-all", 127), ("echo; [[ a == b ]]", 1), ("sh -c 'kill -9 $$'", 137)]:
        with subtests.test(code=code, status=status):
            outcome = shell.run(code)
            assert not outcome.is_ok
            assert outcome.errors == [("ExitStatus", str(status))]
            assert shell.run("echo $?").stdout == f"{status}\n"


def test_syntax_error_is_reported_with_its_line(shell: Piped) -> None:
    shell.run("kept=yes")
    outcome = shell.run("echo before\n\necho (\necho after")
    assert outcome.stdout == "before\n"
    assert "line 3: syntax error near unexpected token" in outcome.stderr
    assert outcome.errors == [("ExitStatus", "2")]
    assert "line" in shell.run("if true; then").stderr
    assert shell.run("echo $kept; echo $LINENO").stdout == "yes\n1\n"


def test_standard_input_is_empty(shell: Piped) -> None:
    outcome = shell.run("cat; read x; echo \"status $? <$x>\"; python3 -c 'import sys; print(repr(sys.stdin.read()))'")
    assert outcome.stdout == "status 1 <>\n''\n"


def test_interrupt_ends_the_cell_and_not_the_shell(shell: Piped) -> None:
    shell.run("kept=yes; sleep 300 & job=$!")
    for code in ("sleep 300; echo never", "while :; do :; done", "sleep 300 | cat", "x=$(sleep 300); echo never", "wait"):
        cell = shell.begin(f"echo on; {code}")
        shell.until(cell, lambda outcome: outcome.stdout == "on\n")
        time.sleep(0.05)
        outcome = shell.stop(cell)
        assert (outcome.stdout, outcome.stderr, outcome.errors) == ("on\n", "", [("KeyboardInterrupt", "")]), code
    assert shell.run("echo $kept; kill -0 $job && echo there; jobs").stdout.startswith("yes\nthere\n[1]+  Running")


def test_interrupt_is_repeated_if_a_command_survives_it(shell: Piped) -> None:
    code = "import time\nprint('on', flush=True)\ntry:\n    time.sleep(300)\nexcept KeyboardInterrupt:\n    print('caught')\n"
    cell = shell.begin(f'python3 -c "{code}"\nsleep 300\nsleep 300\necho never')
    shell.until(cell, lambda outcome: outcome.stdout == "on\n")
    outcome = shell.stop(cell)
    assert (outcome.stdout[:3], "never" in outcome.stdout, outcome.errors) == ("on\n", False, [("KeyboardInterrupt", "")])


def test_background_jobs_continue_without_reports(shell: Piped) -> None:
    outcome = shell.run("sleep 300 & true & wait %2; kill %1; wait %1; echo $?")
    assert (outcome.stdout.splitlines()[-1], outcome.is_ok) == ("143", True)
    assert "[" not in outcome.stdout
    cell = shell.begin("(sleep 0.2; echo late) & echo at once")
    assert shell.finish(cell).stdout == "at once\n"
    outcome = shell.run("wait; echo waited")
    assert (outcome.stdout, outcome.stderr) == ("late\nwaited\n", "")
    assert shell.run("jobs").stdout == ""


def test_set_e_ends_the_cell_and_not_the_shell(shell: Piped, subtests: pytest.Subtests) -> None:
    for strict in ["set -e", "set -euo pipefail", "set -Ee"]:
        with subtests.test(strict=strict):
            shell.run("kept=yes")
            for code, status in (
                ("false; echo never", 1),
                ("f() { sh -c 'exit 4'; echo never; }\nf", 4),
                ("x=$(false); echo never", 1),
                ("(exit 5); echo never", 5),
            ):
                outcome = shell.run(f"{strict}\necho on\n{code}")
                assert (outcome.stdout, outcome.stderr, outcome.errors) == ("on\n", "", [("ExitStatus", str(status))]), code
            outcome = shell.run("echo $? $kept; if false; then :; fi; false || echo fine; ! true; [[ $- == *e* ]] && echo strict")
            assert (outcome.stdout, outcome.is_ok) == ("5 yes\nfine\nstrict\n", True)


def test_unset_variable_under_set_u_fails_the_cell_only(shell: Piped) -> None:
    outcome = shell.run("kept=yes; set -u\necho $nosuch")
    assert "nosuch: unbound variable" in outcome.stderr
    assert outcome.errors == [("ExitStatus", "1")]
    assert shell.run("echo $kept").stdout == "yes\n"


def test_exit_ends_the_shell_and_the_next_cell_starts_a_new_one(shell: Piped, tmp_path: Path) -> None:
    shell.run("x=1; cd /; trap 'echo bye' EXIT")
    outcome = shell.run("echo on; exit 3; echo never")
    assert (outcome.stdout, outcome.errors) == ("on\nbye\n", [("ExitStatus", "3")])
    assert outcome.stderr == "The shell has ended with status 3. The next cell starts a new shell.\n"
    assert shell.run("echo <$x>; pwd".replace("<$x>", '"<$x>"')).stdout == f"<>\n{tmp_path}/work\n"
    outcome = shell.run("exit")
    assert (outcome.is_ok, "has ended with status 0" in outcome.stderr) == (True, True)
    outcome = shell.run("kill -9 $$")
    assert (outcome.errors, "by signal 9" in outcome.stderr) == ([("ExitStatus", "137")], True)
    outcome = shell.run("exec sh -c 'echo replaced; exit 6'")
    assert (outcome.stdout, outcome.errors) == ("replaced\n", [("ExitStatus", "6")])
    assert shell.run("echo again").stdout == "again\n"


def test_stray_break_and_return_do_not_end_the_kernel(shell: Piped) -> None:
    shell.run("kept=yes")
    for code in ("break", "break 9", "continue 2", "return 4", "shift 3", "fi", "}", "exec 761>&-; true"):
        shell.run(code)
    assert shell.run("echo still").stdout == "still\n"


def test_environment_of_a_cell_applies_to_that_cell_only(shell: Piped) -> None:
    shell.run("export WAS=before; plain=mine")
    outcome = shell.run("sh -c 'echo $WAS $NEW $plain'; WAS=changed", {"WAS": "it's", "NEW": "a\nb", "plain": "lent", "not-a-name": "x"})
    assert outcome.stdout == "it's a b lent\n"
    assert shell.run("sh -c 'echo $WAS $NEW $plain'; echo $WAS $NEW $plain").stdout == "before\nbefore mine\n"
    cell = shell.begin("echo on; sleep 300", {"WAS": "lent"})
    shell.until(cell, lambda outcome: outcome.stdout == "on\n")
    shell.stop(cell)
    assert shell.run("echo $WAS").stdout == "before\n"


def test_settings_of_a_cell_neither_end_nor_confuse_the_kernel(shell: Piped, subtests: pytest.Subtests) -> None:
    for code in [
        "PROMPT_COMMAND='echo prompt; exit'",
        "PROMPT_COMMAND=(exit exit)",
        "unset PROMPT_COMMAND",
        "readonly PROMPT_COMMAND=exit",
        "printf() { :; }",
        "read() { :; }; mapfile() { :; }; local() { :; }; jobs() { :; }",
        "eval() { :; }; set() { :; }; shopt() { :; }; enable() { :; }",
        "unset() { :; }; export() { :; }; declare() { :; }; kill() { :; }",
        "exit() { return 0; }; return() { :; }; break() { :; }; continue() { :; }; exec() { :; }; trap() { :; }",
        "builtin() { :; }; command() { :; }; printf() { :; }; mapfile() { :; }; eval() { :; }",
        ":() { false; }; true() { false; }; test() { false; }; [() { false; }",
        "shopt -s expand_aliases; alias builtin=false eval=false printf=false mapfile=false set=false",
        "enable -n printf mapfile eval kill jobs shopt",
        "set -u",
        "set -f -C -k",
        "set -a -h -b",
        "set -o posix; printf() { :; }; mapfile() { :; }",
        "shopt -s extdebug failglob nocasematch xpg_echo compat31",
        "IFS=x",
        "readonly IFS=0123456789 number=1 status=1 name=1 entry=1",
        "declare -n number=x status=x name=x entry=x",
        "FUNCNEST=1",
        'exec 3>&-; for fd in {3..254}; do builtin eval "exec $fd>&-"; done',
        "__sandlot_over() { :; }; unset -f __sandlot_next || true",
        "exec no-such-program || true",
        "[[ a b ]]",
        "[[ (",
        "set -r",
        "set -n; set -t; set -p; set -m",
        "enable -n builtin eval mapfile",
        "trap 'echo never >/dev/full; false' CHLD USR1; kill -USR1 $$",
        "for name in $(compgen -v); do unset $name; done 2>/dev/null; kept=yes PATH=/usr/bin:/bin",
        "exec 60>&- 61>&- 62>&- 63>&-",
    ]:
        with subtests.test(code=code):
            shell.run(f"kept=yes\n{code}")
            for _ in range(2):
                outcome = shell.run('echo "<$kept>"')
                assert (outcome.stdout, outcome.stderr, outcome.errors) == ("<yes>\n", "", [])
            assert shell.run("(\\builtin exit 4)").errors == [("ExitStatus", "4")]
            assert shell.run("sh -c 'echo $LENT'", {"LENT": "a b"}).stdout == "a b\n"
            assert shell.run('echo "<${LENT-gone}>"').stdout == "<gone>\n"
            shell.run('kill -9 "$$"; \\builtin kill -9 "$$"')


def test_failed_expansion_under_set_e_ends_the_cell_and_keeps_the_variables(shell: Piped, subtests: pytest.Subtests) -> None:
    shell.run(
        "declare -A map=([a]='1 2'); list=(a 'b c'); export OUT=o; f() { echo \"f $1\"; }; alias ll='echo L'; set -- one 'two 2'; cd /; umask 027"
    )
    shell.run("shopt -s nullglob; set -o pipefail; trap 'echo usr' USR1; readonly fixed=1; sleep 300 & job=$!")
    for code in ("echo $nosuch", ": ${nosuch?}", "fixed=2", "source /nowhere", "g() { echo ${nosuch:?no}; }; g", "x=${list[-9]}"):
        with subtests.test(code=code):
            outcome = shell.run(f"set -eu\necho on\n{code}\necho never")
            assert (outcome.stdout, outcome.errors, "shell" in outcome.stderr) == ("on\n", [("ExitStatus", "1")], False)
            outcome = shell.run('echo $? "${map[a]}" "${list[1]}" "$2" $fixed; f x; ll; pwd; umask; sh -c "echo $OUT"; echo *.none; kill -0 $job')
            assert outcome.stdout == "1 1 2 b c two 2 1\nf x\nL\n/\n0027\no\n\n", outcome
            assert shell.run("kill -USR1 $$; [[ $- == *e*u* ]] && shopt -qo pipefail && echo strict").stdout == "usr\nstrict\n"


def test_failed_command_under_set_e_keeps_the_shell_whatever_its_traps_are(shell: Piped, subtests: pytest.Subtests) -> None:
    for traps, output in [
        ("trap 'echo failed $? at $LINENO' ERR", "failed 4 at 3\n"),
        ("trap '' ERR", ""),
        ("trap - ERR", ""),
        ("trap 'echo never' INT", ""),
        ("trap '' INT; PROMPT_COMMAND=('exit 3' 'exit 4')", ""),
        ("trap 'echo never' EXIT; trap '{ __sandlot_fail \"$?\"; }' ERR", ""),
        ("set +E; f() { (exit 4); echo never; }; trap f USR1; kill -USR1 $$", ""),
    ]:
        with subtests.test(traps=traps):
            outcome = shell.run(f"kept=yes; set -e\n{traps}\n(exit 4)\necho never")
            assert (outcome.stdout, outcome.errors) == (output, [("ExitStatus", "4")])
            assert shell.run("trap - ERR EXIT; echo $kept").stdout == "yes\n"
            shell.run('kill -9 "$$"')  # quoted, because IFS may contain digits


def test_debug_and_return_traps_see_only_commands_of_cells(shell: Piped) -> None:
    shell.run("f() { :; }; declare -ft f; trap 'echo \"> $BASH_COMMAND\"' DEBUG; trap 'echo back' RETURN")
    for _ in range(2):
        outcome = shell.run("true\nf")
        assert (outcome.stdout, outcome.stderr) == ("> true\n> f\n> f\n> :\n> :\nback\n", "")
    assert shell.run("trap - DEBUG RETURN").stdout == "> trap - DEBUG RETURN\n"
    assert shell.run("true; f").stdout == ""


def test_end_of_the_shell_between_two_cells_is_reported_in_the_second(shell: Piped) -> None:
    shell.run("kept=yes; exec 760>&-")
    outcome = shell.run("echo later")
    if "before this cell" not in outcome.stderr:  # the cell was sent before the shell had ended
        assert "has ended" in outcome.stderr
    assert shell.run('echo "<$kept>"').stdout == "<>\n"


def test_interrupt_keeps_the_shell_whatever_its_prompt_and_timeout_are(shell: Piped, subtests: pytest.Subtests) -> None:
    for code in ["PROMPT_COMMAND='echo prompt'", "PROMPT_COMMAND='break; return 3'", "printf() { :; }; builtin() { :; }", "set -o posix; IFS=1"]:
        with subtests.test(code=code):
            cell = shell.begin(f'kept=yes; {code}\necho "$$"\nsleep 300')
            pid = shell.until(cell, lambda outcome: outcome.stdout.endswith("\n")).stdout.strip()
            while not Path(f"/proc/{pid}/task/{pid}/children").read_text():
                time.sleep(0.01)  # sleep was not started yet
            assert shell.stop(cell).errors == [("KeyboardInterrupt", "")]
            assert shell.run('echo "<$kept>"').stdout == "<yes>\n"
            shell.run('kill -9 "$$"')  # quoted, because IFS may contain digits


def test_rest_of_a_line_that_an_interrupted_shell_left_unread_is_skipped(shell: Piped) -> None:
    pid = shell.run('kept=yes; echo "$$"').stdout.strip()
    for rest in (b"\n", b"2\n", b"#1\n", b"\n\n"):
        Path(f"/proc/{pid}/fd/760").write_bytes(rest)
        assert shell.run('echo "<$kept>"').stdout == "<yes>\n"


def test_failed_command_ends_only_its_cell_if_ifs_contains_digits(shell: Piped) -> None:
    shell.run("kept=yes; IFS=0123456789; set -e")
    outcome = shell.run("false; echo never")
    assert (outcome.stdout, outcome.errors) == ("", [("ExitStatus", "1")])
    assert shell.run('echo "<$kept>"').stdout == "<yes>\n"


def test_timeout_of_the_shell_does_not_end_it(shell: Piped) -> None:
    cell = shell.begin("kept=yes; TMOUT=1; echo on; sleep 300")
    shell.until(cell, lambda outcome: outcome.stdout == "on\n")
    assert shell.stop(cell).errors == [("KeyboardInterrupt", "")]
    time.sleep(1.5)  # bash ends an idle shell after TMOUT seconds
    assert shell.run("echo $kept $TMOUT").stdout == "yes 1\n"
    time.sleep(1.5)
    assert shell.run("echo $kept; [[ -o posix ]] || echo plain; shopt -q inherit_errexit || echo off").stdout == "yes\nplain\noff\n"


def test_options_of_the_shell_are_kept_between_cells(shell: Piped) -> None:
    shell.run("set -fuCka; set +B")
    for letter in "fukCa":
        assert letter in shell.run("echo $-").stdout
    assert shell.run("mine=1; sh -c 'echo $mine'").stdout == "1\n"
    assert "unbound variable" in shell.run("echo $nosuch").stderr
    outcome = shell.run("set +fuCka; set -v\necho on")
    assert outcome.stderr == "echo on\n"
    assert shell.run("echo more").stderr == "echo more\n"


def test_trace_shows_only_commands_of_the_cell(shell: Piped) -> None:
    outcome = shell.run("set -x; echo traced")
    assert (outcome.stdout, outcome.stderr.lstrip("+")) == ("traced\n", " echo traced\n")
    assert shell.run("echo more; set +x").stderr.splitlines()[0].lstrip("+") == " echo more"
    assert shell.run("echo quiet").stderr == ""


def test_long_code_and_unusual_bytes_are_run_and_nul_is_refused(shell: Piped) -> None:
    lines = "\n".join(f"x{number}={number}" for number in range(20000))
    assert shell.run(f"{lines}\necho $x19999").stdout == "19999\n"
    assert shell.run("echo 'ä€😀'").stdout == "ä€😀\n"
    outcome = shell.run("printf '\\xff\\x00\\xfe'")
    assert outcome.stdout == "\ufffd\0\ufffd"
    assert shell.run("echo a\0b").errors == [("ValueError", "The code contains a NUL character, which bash does not allow.")]
    assert shell.run("echo on").stdout == "on\n"


def test_two_wakes_before_a_cell_both_apply(shell: Piped) -> None:
    shell.run("export GOES=1")
    shell.send({"op": "wake", "entropy": b"\x12" * 32, "env": {"FIRST": "1", "OTHER": "1"}, "cwd": ""})
    shell.send({"op": "wake", "entropy": b"\x13" * 32, "env": {"SECOND": "2", "OTHER": "2"}, "gone": ["GOES", "not a name"], "cwd": ""})
    assert shell.run("echo $FIRST $SECOND $OTHER ${GOES-gone}").stdout == "1 2 2 gone\n"
    assert shell.run("exit 0").is_ok
    assert shell.run("echo $FIRST $SECOND $OTHER ${GOES-gone}").stdout == "1 2 2 gone\n", "a new shell has them too"


def test_shell_and_jobs_end_with_the_guest(tmp_path: Path) -> None:
    ship(tmp_path)
    kernel = Piped([sys.executable, "-SI", str(tmp_path / "kernel_programs/bash/kernel.py")], tmp_path)
    kernel.begin("sleep 301 & echo $!; sleep 302")
    assert int(kernel.until("cell-1", lambda outcome: "\n" in outcome.stdout).stdout)
    kernel.close()
    deadline = time.monotonic() + 30
    while members(kernel.process.pid) and time.monotonic() < deadline:  # processes end one after the other
        time.sleep(0.02)
    assert members(kernel.process.pid) == []


def test_interrupt_soon_after_the_start_is_at_most_one_error(shell: Piped) -> None:
    for number in range(32):
        cell = shell.begin(("while true; do true; done", "sleep 300", "false", "true")[number % 4])
        shell.until(cell, lambda outcome: "started" in outcome.order)
        time.sleep(number % 31 / 1000)
        outcome = shell.stop(cell)
        assert len(outcome.errors) == (not outcome.is_ok), outcome


def test_interrupt_at_the_end_of_the_start_reaches_commands_of_cells(tmp_path: Path) -> None:
    ship(tmp_path)
    start = tmp_path / "kernel_programs/bash/init.bash"
    with start.open("a", encoding="utf-8") as file:
        file.write("kill -INT $$\n")
    kernel = Piped([sys.executable, "-SI", str(start.with_name("kernel.py"))], tmp_path)
    try:
        assert kernel.run("cut -d ' ' -f 5 /proc/self/stat").stdout == f"{kernel.process.pid}\n", "the process group of a command is the kernel's"
        cell = kernel.begin("sleep 300")
        kernel.until(cell, lambda outcome: "started" in outcome.order)
        assert kernel.stop(cell).errors == [("KeyboardInterrupt", "")]
    finally:
        kernel.close()


def test_next_cell_runs_after_many_interrupts(shell: Piped) -> None:
    source = random.Random(7)
    for number in range(20):
        cell = shell.begin(f"kept={number}; sleep 300", env={"LENT": "1"})
        shell.until(cell, lambda outcome: "started" in outcome.order)
        for _ in range(source.randrange(1, 6)):
            time.sleep(source.uniform(0, 0.006))
            shell.interrupt()
        assert shell.stop(cell).errors, number
        assert not shell.run("true").errors or not shell.run("true").errors, "a late one may strike the first"
    assert shell.run("echo ${LENT-none}").stdout == "none\n"


def test_interrupt_during_the_end_report_of_a_cell_loses_nothing(shell: Piped) -> None:
    outcome = shell.run("x=5; printf() { unset -f printf; kill -INT $$; }")  # printf sends the report
    assert outcome.errors in ([], [("KeyboardInterrupt", "")])
    assert shell.run("echo $x").stdout == "5\n"
