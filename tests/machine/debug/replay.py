"""A debugger that answers from a recorded transcript: `python replay.py TRANSCRIPT`, MI commands on its standard input.

It ends with a message when it is asked what the transcript does not have next. Settings are answered whatever they are.
"""

import re
import sys
from pathlib import Path

MASK = re.compile(r"/tmp/[^ \"]*")


def exchanges(lines):
    """The greeting, then (command without its token, the token, the lines that answer it)."""
    commands: list[tuple[str, str, list[str]]] = [("", "", [])]
    answer, result = [], True
    waiting = [commands[0]]
    for line in lines:
        if line.startswith("> "):
            token, text = re.match(r"(\d*)(.*)", line[2:]).groups()
            waiting.append((text, token, []))
            commands.append(waiting[-1])
            continue
        answer.append(line[2:])
        text, token, _ = waiting[0]
        result = result or line.startswith(f"< {token}^")
        if result and line.startswith("< (gdb)"):
            waiting.pop(0)[2].extend(answer)
            answer, result = [], False
    return commands


def say(lines):
    print("\n".join(lines), flush=True)


def main():
    recorded = exchanges(Path(sys.argv[1]).read_text().splitlines())
    say(recorded.pop(0)[2])
    recorded = [exchange for exchange in recorded if 'console "set ' not in exchange[0]]
    for line in sys.stdin:
        token, text = re.match(r"(\d*)(.*)", line.rstrip("\n")).groups()
        if text == "-gdb-exit":
            say([f"{token}^exit"])
            return 0
        if 'console "set ' in text:
            say([f"{token}^done", "(gdb) "])
            continue
        expected, old, answer = recorded.pop(0) if recorded else ("the end", "", [])
        if MASK.sub("", text) != MASK.sub("", expected):
            say([f"not in the transcript: {text}; it has {expected}"])
            return 9
        say([token + said.removeprefix(old) if said.startswith(f"{old}^") else said for said in answer])
    return 0


if __name__ == "__main__":
    sys.exit(main())
